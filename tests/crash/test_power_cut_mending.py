"""A power cut while files are put back, a changed pipeline is taken, an answer is given or a run is deleted.

Neither what stood there nor what was claimed is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rerail import api
from rerail.core.events import ApprovalGiven, ArtifactsRestored, Event, RunPaused
from rerail.core.model import Artifact, Call, Pipeline, RunOptions, Step
from rerail.core.state import RunState
from rerail.errors import RunNotFound
from rerail.stores import inbox
from rerail.stores.directory import DirectoryStore
from rerail.testing import header
from tests.crash.figures import states as explored
from tests.crash.reference import TEXT
from tests.crash.test_explorer import fresh
from tests.lab.explorer import Explorer
from tests.lab.faults import FaultFS, Op

pytestmark = pytest.mark.usefixtures("standing_still")

MADE, BY_HAND = b"what the step made", b"what somebody wrote instead"
FILES = Pipeline(
    name="files",
    steps=(
        Step(id="one", action=Call(target="one"), artifacts=(Artifact(path="one.txt"),)),
        Step(id="two", action=Call(target="two"), needs=("one",), artifacts=(Artifact(path="two.txt"),)),
        Step(id="last", action=Call(target="last"), needs=("two",)),
    ),
)


class Hearing:
    """Notes what a person was told, among the operations on files."""

    def __init__(self, fs: FaultFS) -> None:
        self._fs = fs

    def show(self, seq: int, event: Event, state: RunState) -> None:
        if isinstance(event, ArtifactsRestored):
            self._fs.note(f"restored {event.step}")
        if isinstance(event, RunPaused):
            self._fs.note("paused")

    def warn(self, message: str) -> None:
        pass


def write(fs: FaultFS, path: Path, data: bytes) -> None:
    fd = fs.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    fs.pwrite(fd, data, 0)
    fs.fsync(fd)
    fs.close(fd)


def functions(root: Path, fs: FaultFS) -> dict[str, Callable[[], dict[str, Any]]]:
    def program(name: str) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            write(fs, root / f"{name}.txt", MADE)
            return {}

        return run

    def last() -> dict[str, Any]:
        raise ConnectionError("not today")

    return {"one": program("one"), "two": program("two"), "last": last}


def is_found(place: Path, data: bytes) -> bool:
    return any(path.is_file() and path.read_bytes() == data for path in place.rglob("*"))


def judge_mended(place: str, notes: Sequence[str]) -> str:
    """What somebody wrote by hand is there or aside; what was said to be put back is back."""
    if "edited" in notes and not is_found(Path(place), BY_HAND):
        return "what was written by hand is gone"
    for step in ("one", "two"):
        path = Path(place) / f"{step}.txt"
        if f"restored {step}" in notes and not (path.is_file() and path.read_bytes() == MADE):
            return f"{path.name} was said to be put back, and is not"
    return ""


def needed(explorer: Callable[[], Explorer], root: Path, ops: Sequence[Op], sites: set[str], since: int) -> None:
    """Break it on purpose: without any one of these syncs something is lost."""
    for site in sorted(sites):
        broken = explorer()
        broken.explore(root, [op for op in ops if op.site != site], since=since)
        assert broken.violations, site


@pytest.mark.scenario("B4", "B12")
def test_a_power_cut_while_files_are_put_back(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fresh(memory)
    monkeypatch.setattr("rerail.durable.copies.clone", lambda *_: False)
    store = DirectoryStore(str(root / "state"))
    start = api.StartRequest(pipeline_path=str(root / "p.yaml"), run_id="r", options=RunOptions(parallel=1))
    with FaultFS() as fs:
        api.start_pipeline(store, FILES, TEXT, start, [Hearing(fs)], functions=functions(root, fs), base_dir=str(root))
        since = len(fs.ops)
        write(fs, root / "one.txt", BY_HAND)
        fs.unlink(str(root / "two.txt"))
        fs.note("edited")
        request = api.ResumeRequest(pipeline=FILES)
        api.resume(store, "r", [Hearing(fs)], request, functions=functions(root, fs), base_dir=str(root))
    said = [op.path for op in fs.ops if op.kind == "note"]
    assert said == ["edited", "restored one", "restored two"]
    explorer = Explorer(memory / "after", judge_mended)
    explorer.explore(root, fs.ops, since=since)

    assert not explorer.violations, "\n".join(map(str, explorer.violations))
    explored("states while files are put back", explorer.seen)
    syncs = {op.site for op in fs.ops[since:] if op.kind == "sync" and "rerail" in op.site}
    mending = {site for site in syncs if "restore" in site or "quarantine" in site}
    assert len(mending) >= 2
    needed(lambda: Explorer(memory / "after", judge_mended, most_violations=1), root, fs.ops, mending, since)


def judge_frozen(place: str, notes: Sequence[str]) -> str:
    store = DirectoryStore(os.path.join(place, "state"))
    try:
        state = store.read("r").state
    except RunNotFound:
        return "there is no run" if "paused" in notes else ""
    store.pipeline("r", state.pipeline_sha256)  # raises if there is none
    return ""


@pytest.mark.scenario("B4")
def test_a_power_cut_while_a_changed_pipeline_is_taken(memory: Path) -> None:
    root = fresh(memory)
    path = root / "p.yaml"
    store = DirectoryStore(str(root / "state"))
    with FaultFS() as fs:
        for number, text in enumerate(("steps: [{id: a, approve: sure?}]", "steps: [{id: a, approve: really?}]")):
            path.write_text(text)
            if number:
                since = len(fs.ops)
                api.resume(store, "r", [Hearing(fs)], base_dir=str(root))
            else:
                start = api.StartRequest(pipeline_path=str(path), run_id="r", options=RunOptions(parallel=1))
                api.start(store, start, [Hearing(fs)], base_dir=str(root))
    assert [op.path for op in fs.ops if op.kind == "note"] == ["paused", "paused"]
    explorer = Explorer(memory / "after", judge_frozen)
    explorer.explore(root, fs.ops, since=since)

    assert not explorer.violations, "\n".join(map(str, explorer.violations))
    explored("states while a changed pipeline is taken", explorer.seen)
    frozen = {op.site for op in fs.ops[since:] if op.kind == "sync" and "freeze" in op.site}
    assert frozen
    needed(lambda: Explorer(memory / "after", judge_frozen, most_violations=1), root, fs.ops, frozen, since)


SAID = ApprovalGiven(at=datetime(2026, 1, 2, tzinfo=UTC), step="ok", approved=True, by="me")


@pytest.mark.scenario("B4")
def test_a_power_cut_loses_no_letter_that_was_put(memory: Path) -> None:
    root = fresh(memory)
    with FaultFS() as fs:
        inbox.put(str(root), SAID)
        fs.note("put")
    explorer = Explorer(
        memory / "after",
        lambda place, notes: (
            "the answer is lost" if "put" in notes and inbox.DirectoryInbox(place).take() != [SAID] else ""
        ),
    )
    explorer.explore(root, fs.ops)

    assert not explorer.violations, "\n".join(map(str, explorer.violations))
    explored("states while a letter is put", explorer.seen)


@pytest.mark.scenario("B4")
def test_a_power_cut_after_a_run_was_deleted_does_not_bring_it_back(memory: Path) -> None:
    root = fresh(memory)
    store = DirectoryStore(str(root / "state"))
    with FaultFS() as fs:
        store.create(header("r"), TEXT).close()
        since = len(fs.ops)
        store.delete("r")
        fs.note("deleted")
    explorer = Explorer(
        memory / "after",
        lambda place, notes: "it is back" * ("deleted" in notes and bool(DirectoryStore(f"{place}/state").runs())),
    )
    explorer.explore(root, fs.ops, since=since)

    assert not explorer.violations, "\n".join(map(str, explorer.violations))
    explored("states while a run is deleted", explorer.seen)
