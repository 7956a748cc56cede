"""What every store does, as plain pytest; for authors of stores.

class TestMyStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path): return MyStore(tmp_path)
"""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime

import pytest

from rerail import processes
from rerail.core.checkpoint import checkpoint_of
from rerail.core.events import Event, RunFinished, RunResumed, RunStarted, StepCompleted, StepStarted
from rerail.core.formats import HEADER
from rerail.core.model import Call, Pipeline, RunHeader, RunOptions, Step
from rerail.errors import RerailError, RunBusy, RunExists, RunNotFound, StateUnwritable
from rerail.ports import Store

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def header(run_id: str = "r1") -> RunHeader:
    """A header for tests of stores."""
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
    """The opening event of a new run."""
    return RunStarted(at=AT, owner=processes.identity(AT), pipeline_sha256="", options=RunOptions(parallel=3), steps=2)


def resumed() -> RunResumed:
    """The opening event of a later life."""
    return RunResumed(at=AT, owner=processes.identity(AT), pipeline_sha256="", options=RunOptions(), steps=2)


class StoreContract:
    """What the engine relies on. Every store does all of it."""

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
        assert store.read("r1").state.unit(("a", None)).outputs == outputs

    def test_a_later_life_goes_on_where_the_last_one_ended(self, store: Store) -> None:
        log = store.create(header(), b"")
        log.append([started(), StepStarted(at=AT, step="a", attempt=1)])
        log.close()
        log = store.own("r1")

        assert log.recording.state.unit(("a", None)).status == "running"
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
        assert store.read("r1").state.unit(("a", None)).status == "completed"
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

    def test_results_and_logs_have_a_place(self, store: Store) -> None:
        log = store.create(header(), b"")
        where = log.save_results("m", iter([b"1\n", b"2\n"]))
        fd = log.open_log("a.1.out")
        try:
            os.write(fd, b"said")
        finally:
            os.close(fd)

        assert log.directory == store.directory("r1")
        if where:  # else it keeps no files
            with open(where, "rb") as file:
                assert file.read() == b"1\n2\n"
            assert os.path.commonpath([where, log.directory]) == log.directory
        log.close()
