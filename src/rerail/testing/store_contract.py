"""Contract of stores as plain pytest classes, for authors of stores.

class TestMyStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path): return MyStore(tmp_path)
"""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rerail import processes
from rerail.core.checkpoint import checkpoint_of
from rerail.core.claims import Claim, ClaimRecord
from rerail.core.events import ApprovalGiven, Event, RunFinished, RunResumed, RunStarted, StepCompleted, StepStarted
from rerail.core.formats import HEADER
from rerail.core.model import Call, Pipeline, RunHeader, RunOptions, Step
from rerail.core.state import fold
from rerail.core.summary import summary_of
from rerail.core.unit_id import UnitId
from rerail.errors import RerailError, RunBusy, RunExists, RunNotFound, StateUnwritable
from rerail.ports import RunWriter, Store

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def header(run_id: str = "r1") -> RunHeader:
    """Return a header for tests of stores."""
    return RunHeader(
        format=HEADER.version,
        run_id=run_id,
        pipeline="p",
        pipeline_path="p.yaml",
        work_dir=".",
        created_at="2026-01-02T03:04:05Z",
        rerail="test",
        params={"text": "ü\u2028\n\"'", "number": 1.5, "nothing": None},
    )


def started() -> RunStarted:
    """Return the opening event of a new run."""
    return RunStarted(at=AT, owner=processes.identity(AT), pipeline_sha256="", options=RunOptions(parallel=3), steps=2)


def resumed() -> RunResumed:
    """Return the opening event of a later invocation."""
    return RunResumed(at=AT, owner=processes.identity(AT), pipeline_sha256="", options=RunOptions(), steps=2)


class StoreContract:
    """Contract that the engine relies on; every store keeps all of it."""

    def test_a_created_run_is_listed_and_empty(self, store: Store) -> None:
        store.create(header(), b"text").close()

        assert store.runs() == ["r1"]
        assert store.read("r1").header == header()
        assert store.read("r1").state.status == "pending"
        assert store.pipeline("r1", "") == b"text"

    def test_an_id_is_taken_once(self, store: Store) -> None:
        store.create(header(), b"").close()

        with pytest.raises(RunExists):
            store.create(header(), b"")

    def test_a_run_that_is_not_there_is_not_found(self, store: Store) -> None:
        for call in (store.own, store.read, store.history, store.ownership, store.delete):
            with pytest.raises(RunNotFound):
                call("absent")

    def test_what_is_appended_is_read_back_exactly(self, store: Store) -> None:
        outputs = {"text": "a\u2028b\nc\x85\U0001f600\x00", "deep": [{"n": None, "f": 1e-9, "i": -(2**63)}]}
        events: list[Event] = [
            started(),
            StepStarted(at=AT, step="a", attempt=1),
            StepCompleted(at=AT, step="a", attempt=1, duration=0.25, outputs=outputs, metrics={"cost_usd": 0.1}),
        ]
        log = store.create(header(), b"")
        log.append(events[:2])
        log.append(events[2:])
        log.close()

        assert list(store.history("r1")) == list(enumerate(events, 1))
        assert store.read("r1").state.unit(UnitId("a")).outputs == outputs

    def test_a_later_life_goes_on_where_the_last_one_ended(self, store: Store) -> None:
        log = store.create(header(), b"")
        log.append([started(), StepStarted(at=AT, step="a", attempt=1)])
        log.close()
        log = store.own("r1")

        assert log.recording.state.unit(UnitId("a")).status == "running"
        log.append([resumed()])
        log.append([RunFinished(at=AT, status="failed")])
        log.close()
        assert [seq for seq, _ in store.history("r1")] == [1, 2, 3, 4]
        assert store.read("r1").state.status == "failed"

    def test_an_owned_run_is_busy_and_readers_do_not_mind(self, store: Store) -> None:
        log = store.create(header(), b"")
        log.append([started()])

        with pytest.raises(RunBusy):
            store.own("r1")
        with pytest.raises(RunBusy):
            store.delete("r1")
        assert store.read("r1").state.status == "running"
        assert store.ownership("r1").alive
        log.close()
        store.own("r1").close()

    def test_a_run_stays_the_same_one_through_its_lives(self, store: Store) -> None:
        log = store.create(header(), b"")
        first = log.identity
        log.append([started()])
        log.close()
        log = store.own("r1")

        assert log.identity == first
        log.close()

    def test_a_snapshot_changes_nothing_that_is_read(self, store: Store) -> None:
        pipeline = Pipeline(name="p", steps=(Step(id="a", action=Call(target="f")),))
        log = store.create(header(), b"")
        log.append([started(), StepStarted(at=AT, step="a", attempt=1)])
        before = store.read("r1").state
        for _ in range(3):
            log.save_snapshot(checkpoint_of(header(), pipeline, before), keep=1)

        assert store.read("r1").state == before
        log.append([StepCompleted(at=AT, step="a", attempt=1, duration=1.0)])
        log.close()
        assert store.read("r1").state.unit(UnitId("a")).status == "completed"
        assert len(list(store.history("r1"))) == 3

    def test_records_are_found_by_what_they_are_about(self, store: Store) -> None:
        def about(step: str, item: str | None = None) -> list[Event]:
            outputs = {"event": "step-completed", "at": "x", "step": "a", "text": '"event":"step-completed"\n'}
            began = StepStarted(at=AT, step=step, item=item, attempt=1)
            return [began, StepCompleted(at=AT, step=step, item=item, attempt=1, duration=0.5, outputs=outputs)]

        log = store.create(header(), b"")
        log.append([started(), *about("a"), *about("ab"), *about("b/a")])
        log.append([*about("b", "a"), RunFinished(at=AT, status="failed")])
        log.close()
        log = store.own("r1")
        log.append([resumed()])
        position = log.position
        log.append(about("a", "x"))

        assert list(log.find(("step-completed",), "a")) == [about("a")[1], about("a", "x")[1]]
        assert list(log.find(("step-completed", "step-started"), "b")) == about("b", "a")
        assert list(log.find(("step-completed",), "a", position)) == [about("a", "x")[1]]
        assert list(log.find(("step-completed",), "c")) == []
        log.close()
        assert list(store.find("r1", ("step-started",), "ab")) == [about("ab")[0]]

    def test_a_frozen_pipeline_is_read_back(self, store: Store) -> None:
        log = store.create(header(), b"old")
        log.freeze_pipeline(b"new")
        log.close()

        assert store.pipeline("r1", "") == b"new"
        assert store.pipeline("r1", hashlib.sha256(b"old").hexdigest()) == b"old"
        with pytest.raises(RerailError):  # rather none than another one
            store.pipeline("r1", hashlib.sha256(b"never frozen").hexdigest())

    def test_a_deleted_run_is_gone(self, store: Store) -> None:
        log = store.create(header(), b"old")
        log.append([started()])
        log.close()
        store.delete("r1")

        assert store.runs() == []
        store.create(header(), b"new").close()
        assert list(store.history("r1")) == []
        assert store.read("r1").state.status == "pending"
        assert store.pipeline("r1", "") == b"new"

    def test_closing_is_giving_up(self, store: Store) -> None:
        log = store.create(header(), b"")
        log.append([started()])
        log.close()
        log.close()

        with pytest.raises(StateUnwritable):
            log.append([RunFinished(at=AT, status="failed")])
        assert len(list(store.history("r1"))) == 1
        assert not store.ownership("r1").alive

    def test_the_directory_of_a_run_is_told_the_same_way_twice(self, store: Store) -> None:
        log = store.create(header(), b"")

        assert log.directory == store.directory("r1")
        assert log.identity == store.identity("r1")
        assert store.identity("absent") == ""
        log.close()

    def test_the_header_is_known_without_the_journal(self, store: Store) -> None:
        store.create(header(), b"").close()

        assert store.header("r1") == header()
        assert store.header("absent") is None

    def test_the_index_tells_nothing_that_is_not_true_now(self, store: Store) -> None:
        log = store.create(header(), b"")
        _fold(log, [started()])
        assert store.index().get("r1") is None, "it is not at rest"
        _fold(log, [StepStarted(at=AT, step="a", attempt=1), RunFinished(at=AT, status="failed")])
        log.close()
        told = store.index().get("r1")
        assert told is None or told == summary_of(header(), store.read("r1").state)

        log = store.own("r1")
        log.append([resumed()])
        told = store.index().get("r1")
        log.close()
        assert told is None or told.status == "running"
        assert store.index().get("absent") is None

    def test_the_stamp_differs_once_the_journal_does(self, store: Store) -> None:
        log = store.create(header(), b"")
        log.append([started()])
        stamps = [store.stamp("r1"), store.stamp("r1")]
        log.append([StepStarted(at=AT, step="a", attempt=1)])
        stamps.append(store.stamp("r1"))
        log.close()

        assert stamps[0] == stamps[1] != stamps[2]

    def test_a_run_is_owned_until_it_is_closed(self, store: Store) -> None:
        log = store.create(header(), b"")
        assert store.is_owned("r1")
        log.close()
        assert not store.is_owned("r1")

    def test_logs_are_appended_to_and_read_from_anywhere(self, store: Store) -> None:
        log = store.create(header(), b"")
        log.append([started()])
        _write_log(log, "a.1.out", b"0123")
        _write_log(log, "b.1.err", b"other")
        _write_log(log, "a.1.out", b"456789")
        logs = store.logs("r1")

        assert logs.read("a.1.out", 0, 100) == b"0123456789"
        assert logs.read("a.1.out", 2, 3) == b"234"
        assert logs.read("a.1.out", 10, 100) == b""
        assert logs.read("absent", 0, 100) == b""
        assert {file.name: file.size for file in logs.files()} == {"a.1.out": 10, "b.1.err": 5}
        assert [file.modified for file in logs.files()] == sorted(file.modified for file in logs.files())
        assert logs.stat("b.1.err") in logs.files()
        assert logs.stat("absent") is None
        assert store.logs("absent").files() == []
        log.close()
        log = store.own("r1")
        _write_log(log, "a.1.out", b"!")
        log.close()
        assert store.logs("r1").read("a.1.out", 8, 100) == b"89!"

    def test_results_are_read_back_and_replaced(self, store: Store) -> None:
        log = store.create(header(), b"")
        log.append([started()])
        log.save_results("m", iter([b"old\n"]))
        where = log.save_results("m", iter([b"1\n", b"2\n"]))
        log.close()

        assert store.results("r1", "m") == b"1\n2\n"
        assert where == store.results_path("r1", "m")
        if where:  # else steps are given no files
            with open(where, "rb") as file:
                assert file.read() == b"1\n2\n"
        with pytest.raises(OSError):  # noqa: PT011 - whichever it is
            store.results("r1", "absent")

    def test_a_message_is_there_until_it_is_cleared(self, store: Store) -> None:
        log = store.create(header(), b"")
        log.append([started()])
        first, second = _message("first"), _message("second")
        store.send("r1", first)

        assert log.inbox.take() == [first]
        assert log.inbox.take() == [], "it was taken"
        store.send("r1", second)
        log.close()
        log = store.own("r1")
        assert sorted(one.step for one in log.inbox.take()) == ["first", "second"], "what was not cleared is not lost"
        log.inbox.clear()
        log.close()
        log = store.own("r1")
        assert log.inbox.take() == []
        log.close()
        with pytest.raises(RunNotFound):
            store.send("absent", first)

    def test_copies_are_published_by_their_digest(self, store: Store) -> None:
        log = store.create(header(), b"")
        log.append([started()])
        with log.staging() as staging:
            assert os.listdir(staging) == []
            sha256 = _publish(store, staging, b"content")
            assert os.listdir(staging) == [], "it was taken in"
        log.close()
        content = store.content

        assert content.has(sha256)
        assert content.defect(sha256) == ""
        assert content.read(sha256) == b"content"
        with open(content.open(sha256), "rb") as file:
            assert file.read() == b"content"
        assert list(content.digests()) == [sha256]
        assert content.has_room(1)

    def test_a_copy_that_is_missing_or_other_content_is_not_used(self, store: Store) -> None:
        absent, claimed = (hashlib.sha256(text).hexdigest() for text in (b"absent", b"claimed"))
        log = store.create(header(), b"")
        log.append([started()])
        with log.staging() as staging:
            path = os.path.join(staging, "1")
            with open(path, "wb") as file:
                file.write(b"something else")
            store.content.publish([(path, claimed)])
        log.close()

        assert not store.content.has(absent)
        for sha256 in (absent, claimed):
            assert store.content.defect(sha256)
            assert store.content.read(sha256) is None
        with pytest.raises(OSError):  # noqa: PT011 - whichever it is
            store.content.open(absent)

    def test_copies_that_no_run_needs_are_collected_and_pinned_ones_are_not(self, store: Store) -> None:
        log = store.create(header(), b"")
        log.append([started()])
        with log.staging() as staging:
            needed, other = _publish(store, staging, b"needed"), _publish(store, staging, b"other")
            with pytest.raises(BlockingIOError):
                store.content.collect(lambda: {needed}, dry_run=False)
        with store.content.pinned(), store.content.pinned(), pytest.raises(BlockingIOError):
            store.content.collect(lambda: {needed}, dry_run=False)
        log.close()

        assert store.content.collect(lambda: {needed}, dry_run=True) == (1, len(b"other"))
        assert store.content.has(other)
        assert store.content.collect(lambda: {needed}, dry_run=False) == (1, len(b"other"))
        assert list(store.content.digests()) == [needed]

    def test_what_is_in_quarantine_is_out_of_the_way_and_not_lost(self, store: Store, tmp_path: Path) -> None:
        log = store.create(header(), b"")
        log.append([started()])
        path = os.path.realpath(tmp_path / "out.txt")
        places = []
        for text in ("first", "second"):
            Path(path).write_text(text)
            places.append(os.path.join(log.directory, log.quarantine(path, "out.txt")))
            assert not os.path.exists(path)
        log.close()

        assert [Path(place).read_text() for place in places] == ["first", "second"]

    def test_claims_are_kept_one_record_a_run(self, store: Store) -> None:
        old, new = (ClaimRecord(run_id="r1", number=number, claims=[Claim(step="a", path="/a")]) for number in (1, 2))
        other = ClaimRecord(run_id="r2", number=3, claims=[], until=3, group="g", waiting=True)
        with store.claims.locked():
            for record in (old, other, new):
                store.claims.write(record)
            assert store.claims.records() == [new, other]
            store.claims.remove("r1")
            store.claims.remove("absent")

        assert store.claims.records() == [other]

    def test_a_run_is_proved_and_one_that_is_whole_is_not_repaired(self, store: Store) -> None:
        log = store.create(header(), b"x")
        _fold(log, [started(), StepStarted(at=AT, step="a", attempt=1)])
        with pytest.raises(RunBusy):
            store.repair("r1")
        log.close()

        assert store.verify("r1").records == 2
        assert store.repair("r1").reason == ""
        assert store.size() >= store.size("r1") > 0
        for call in (store.verify, store.repair, store.stamp, store.size):
            with pytest.raises(RunNotFound):
                call("absent")


def _fold(log: RunWriter, events: list[Event]) -> None:
    """Append events as the engine does: to the state, and to the journal."""
    fold(enumerate(events, log.recording.state.seq + 1), log.recording.state)
    log.append(events)


def _write_log(log: RunWriter, name: str, data: bytes) -> None:
    fd = log.open_log(name)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _message(step: str) -> ApprovalGiven:
    return ApprovalGiven(at=AT, step=step, item=None, approved=True, by="me", reason="", seen=1)


def _publish(store: Store, staging: str, data: bytes) -> str:
    path, sha256 = os.path.join(staging, "copy"), hashlib.sha256(data).hexdigest()
    with open(path, "wb") as file:
        file.write(data)
    store.content.publish([(path, sha256)])
    return sha256
