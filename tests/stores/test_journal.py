"""The bytes of the journal: chained, readable by any JSON tool, torn told from damaged."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail import testing
from rerail.core.events import Event, StepCompleted, StepStarted
from rerail.core.unit_id import UnitId
from rerail.errors import JournalDamaged
from rerail.stores import journal, segments
from rerail.stores.directory import DirectoryStore
from rerail.stores.journal import Position
from tests.conftest import Project

AT = datetime(2026, 1, 1, tzinfo=UTC)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def records(texts: list[str]) -> list[Event]:
    return [StepCompleted(at=AT, step="a", attempt=1, duration=0.5, outputs={"t": text}) for text in texts]


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_lines_are_json_and_the_sums_are_what_the_format_says(texts: list[str]) -> None:
    events = records(texts)
    data, last = journal.encode(events, journal.first_sum("run"), 1, 0)
    previous = hashlib.sha256(b"run").hexdigest()[:16]
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        value = json.loads(line)
        assert list(value)[:3] == ["sum", "seq", "ack"]
        assert value["seq"] == number
        # What anybody can compute without rerail, as docs/reference/journal.md says.
        body = line[len('{"sum":"') + 16 + 1 :]
        previous = hashlib.sha256(previous.encode() + body).hexdigest()[:16]
        assert value["sum"] == previous
    assert last == previous
    got = journal.verify(data, Position(offset=0, seq=0, sum=journal.first_sum("run")))
    assert [event for _, event in journal.decode_all(got.lines)] == events


@pytest.mark.scenario("E4")
@given(st.lists(TEXTS, min_size=2, max_size=4), st.data())
def test_records_that_change_places_or_come_from_another_run_break_the_chain(
    texts: list[str], data: st.DataObject
) -> None:
    mine, _ = journal.encode(records(texts), journal.first_sum("mine"), 1, 0)
    theirs, _ = journal.encode(records(texts), journal.first_sum("theirs"), 1, 0)
    start = Position(offset=0, seq=0, sum=journal.first_sum("mine"))
    lines = mine.split(b"\n")[:-1]
    at = data.draw(st.integers(0, len(lines) - 2))
    swapped = [*lines]
    swapped[at], swapped[at + 1] = swapped[at + 1], swapped[at]
    spliced = [*lines]
    spliced[at] = theirs.split(b"\n")[at]
    doubled = [*lines[: at + 1], *lines[at:]]

    for bad in (swapped, spliced, doubled):
        assert journal.verify(b"\n".join(bad) + b"\n", start).bad is not None


def killed_run(tmp_path: Path, batches: int) -> tuple[DirectoryStore, Path]:
    """A journal whose writer never said goodbye: several synced batches, no snapshot."""
    store = DirectoryStore(str(tmp_path / ".rerail"))
    log = store.create(testing.header(), b"")
    log.append([testing.started()])
    for number in range(1, batches + 1):
        log.append(
            [
                StepStarted(at=AT, step=f"s{number}", attempt=1),
                StepCompleted(at=AT, step=f"s{number}", attempt=1, duration=1),
            ]
        )
    log._lock.release()  # as the kernel does when the process dies; the padding stays in the file
    return store, Path(log.path) / segments.file_name(1)


@pytest.mark.scenario("A2", "B3", "B11")
@pytest.mark.parametrize("kind", ["zeros", "garbage", "missing middle", "cut"])
def test_a_torn_last_batch_is_dropped_whole_or_in_part_and_said(tmp_path: Path, kind: str) -> None:
    store, path = killed_run(tmp_path, 3)
    data = path.read_bytes()
    lines = data.rstrip(b"\n").split(b"\n")
    start = len(b"\n".join(lines[:-2])) + 1  # the last batch: two records
    match kind:
        case "zeros":
            torn = data[:start] + b"\0" * 300 + data[start + 300 :]
        case "garbage":
            torn = data[:start] + bytes(range(256)) + data[start + 256 :]
        case "missing middle":  # the first record of the batch is lost, the second is there
            torn = data[:start] + b"\n" * (len(lines[-2])) + data[start + len(lines[-2]) :]
        case _:
            torn = data[: start + 40]
    path.write_bytes(torn)

    recording = store.read("r1")
    assert recording.state.seq == 5
    assert recording.state.unit(UnitId("s3")).status == "pending"
    assert any("incomplete" in notice for notice in recording.notices)


@pytest.mark.scenario("B3", "E4")
def test_the_same_damage_one_batch_earlier_is_refused_with_its_place(tmp_path: Path) -> None:
    store, path = killed_run(tmp_path, 3)
    data = path.read_bytes()
    lines = data.rstrip(b"\n").split(b"\n")
    start = len(b"\n".join(lines[:-4])) + 1
    path.write_bytes(data[:start] + b"\0" * 60 + data[start + 60 :])

    with pytest.raises(JournalDamaged) as caught:
        store.read("r1")
    assert caught.value.offset == start
    assert caught.value.where == "journal-0001.jsonl:5"
    assert caught.value.hint == "rerail repair r1"


def test_life_goes_on_after_a_torn_tail(tmp_path: Path) -> None:
    store, path = killed_run(tmp_path, 2)
    path.write_bytes(path.read_bytes().rstrip(b"\n")[:-10])
    log = store.own("r1")
    assert any("incomplete" in notice for notice in log.recording.notices)
    log.append([testing.resumed(), StepStarted(at=AT, step="s9", attempt=1)])
    log.close()

    recording = store.read("r1")
    assert recording.state.unit(UnitId("s9")).status == "running"
    assert [seq for seq, _ in store.history("r1")] == list(range(1, recording.state.seq + 1))


@pytest.mark.scenario("F4", "F11")
def test_what_a_superseded_writer_still_appends_does_not_count(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path / ".rerail"))
    zombie = store.create(testing.header(), b"")
    zombie.append([testing.started()])
    zombie._lock.release()  # somebody removed the lock file, say, and another process took over
    log = store.own("r1")
    log.append([testing.resumed()])
    file = zombie._file
    assert file is not None
    zombie._write(file, [StepStarted(at=AT, step="ghost", attempt=1)], 2)
    log.append([StepStarted(at=AT, step="real", attempt=1)])
    log.close()

    recording = store.read("r1")
    assert set(recording.state.units) == {("real", None)}
    assert any("never acknowledged" in notice for notice in recording.notices)


@pytest.mark.scenario("E11")
@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"x": {"b": [{"c": 1, "c": 1}]}}', '{"a": ":", "b": 1, "b": 2}'])
def test_an_object_that_says_something_twice_is_refused(project: Project, text: str) -> None:
    project.pipeline(f"steps:\n  - id: s\n    run: |\n      echo '{text}' >> \"$RERAIL_OUTPUT\"\n")

    refused = project.rerail("run", "pipeline.yaml", check=1)

    assert "two values" in refused.stderr
