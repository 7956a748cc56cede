"""What a reader has shown is never lost: `watch` or `show` beside a live run, and then the power goes.

A reader looks between any two operations of the run on its files. What it could tell a person by then is noted like
what the run itself says, and must be there in every state that a power cut can leave from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rerail.core.events import Event, RunFinished, StepCompleted, StepFailed
from rerail.core.model import Pipeline
from rerail.core.state import RunState
from rerail.errors import RerailError
from rerail.stores.directory import DirectoryStore
from tests.crash.figures import states as explored
from tests.crash.reference import SMALL, WHOLE, World, judge_by_reading, live
from tests.crash.test_explorer import explain, fresh
from tests.lab.explorer import Explorer
from tests.lab.faults import Fault, FaultFS

pytestmark = pytest.mark.usefixtures("standing_still")

Reading = Callable[[DirectoryStore], Iterator[str]]


class ReadBeside(FaultFS):
    """A file system between whose operations somebody reads the run."""

    def __init__(self, root: Path, reading: Reading, fault: Fault | None = None) -> None:
        super().__init__(fault)
        self._store = str(root / "state")
        self._reading = reading
        self._is_reading = False
        self.heard: set[str] = set()

    def _meet(self, path: str, **more: Any) -> bool:
        if not self._is_reading and not self.crashed:
            self._is_reading = True
            try:
                self._read()
            finally:
                self._is_reading = False
        return super()._meet(path, **more)

    def _read(self) -> None:
        try:
            found = list(self._reading(DirectoryStore(self._store)))  # a process that has just been started
        except RerailError:
            return  # there is no run yet
        for said in found:
            if said not in self.heard:
                self.heard.add(said)
                self.note(said)


def by_state(store: DirectoryStore) -> Iterator[str]:
    """What `show`, `list` and `watch` tell."""
    state: RunState = store.read("r").state
    for (step, item), unit in state.units.items():
        if unit.status in ("completed", "failed") and unit.retry_at is None and unit.items is None:
            yield f"{'done' if unit.status == 'completed' else 'failed'} {item} {step}"
    if state.status in ("completed", "failed"):
        yield f"finished {state.status}"


def _told(event: Event) -> Iterator[str]:
    if isinstance(event, StepCompleted) or (isinstance(event, StepFailed) and event.retry_at is None):
        yield f"{'done' if isinstance(event, StepCompleted) else 'failed'} {event.item} {event.step}"
    elif isinstance(event, RunFinished):
        yield f"finished {event.status}"


def by_history(store: DirectoryStore) -> Iterator[str]:
    """What `history` tells."""
    for _, event in store.history("r"):
        yield from _told(event)


def by_finding(store: DirectoryStore) -> Iterator[str]:
    """What `dlq show` and the like tell."""
    for step in ("a", "b", "end"):
        for event in store.find("r", ("step-completed",), step):
            yield from _told(event)


@pytest.mark.parametrize("reading", [by_state, by_history, by_finding])
@pytest.mark.parametrize("pipeline", [SMALL, WHOLE], ids=lambda pipeline: pipeline.name)
def test_what_a_reader_has_seen_outlives_a_power_cut(memory: Path, pipeline: Pipeline, reading: Reading) -> None:
    root = fresh(memory)
    with ReadBeside(root, reading) as fs:
        assert live(root, pipeline, World(fs)) == "completed"
    assert any(said.startswith("done ") for said in fs.heard)
    explorer = Explorer(memory / "after", judge_by_reading)
    explorer.explore(root, fs.ops, share=1.0 if pipeline is SMALL else 0.2)
    assert not explorer.violations, explain(explorer)
    explored("states after somebody read and the power went", explorer.seen)


@pytest.mark.parametrize("at", range(28, 48, 2))
def test_what_a_reader_sees_of_a_run_that_was_killed_outlives_a_power_cut(memory: Path, at: int) -> None:
    root = fresh(memory)
    with FaultFS(Fault(at=at, kind="crash")) as fs:
        live(root, SMALL, World(fs))
    with FaultFS() as after:  # nobody but a reader comes by
        for said in by_state(DirectoryStore(str(root / "state"))):
            after.note(said)
    explorer = Explorer(memory / "after", judge_by_reading)
    explorer.explore(root, [*fs.ops, *after.ops], since=len(fs.ops))
    assert not explorer.violations, explain(explorer)
