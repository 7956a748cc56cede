"""A reference run inside this process, in time that stands still: the same bytes every time, so that states can be told
apart. It has steps that depend on each other, a retry, an allowed failure, a map with a dead letter, and a loop.

What the functions did and what the world was told is noted in the order of the operations on files; nothing here asks
rerail what it believes.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rerail import api, durable
from rerail.core.events import Event, Owner, RunFinished, StepCompleted, StepFailed
from rerail.core.items import COMPLETED, FAILED
from rerail.core.model import Call, Loop, Map, Pipeline, Retry, RunOptions, Source, Step
from rerail.core.state import RunState
from rerail.core.unit_id import UnitId
from rerail.durable import files
from rerail.errors import RerailError, RunNotFound, StateError
from rerail.stores.directory import DirectoryStore
from tests.lab.faults import FaultFS

TEXT = b"what the run was started from"
ITEMS = ("x", "y", "z")
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

SMALL = Pipeline(
    name="small",
    steps=tuple(
        Step(id=one, action=Call(target=one), needs=needs) for one, needs in (("a", ()), ("b", ("a",)), ("end", ("b",)))
    ),
)
WHOLE = Pipeline(
    name="whole",
    steps=(
        Step(id="a", action=Call(target="a")),
        Step(id="flaky", action=Call(target="flaky"), needs=("a",), retry=Retry(attempts=2, delay=0.0, jitter=False)),
        Step(id="refused", action=Call(target="refused"), needs=("flaky",), allow_failure=True),
        Step(
            id="map",
            needs=("refused",),
            action=Map(
                over=Source(kind="list", value=list(ITEMS)),
                steps=(Step(id="map", action=Call(target="item")),),
                single=True,
                parallel=1,
                max_failures=1,
            ),
        ),
        Step(
            id="loop",
            needs=("map",),
            action=Loop(steps=(Step(id="loop/turn", action=Call(target="turn")),), max_iterations=2),
        ),
        Step(id="end", action=Call(target="end"), needs=("loop",)),
    ),
)
OUTPUTS: dict[str, dict[str, Any]] = {"a": {"n": 1}, "b": {"n": 2}, "flaky": {"n": 2}, "end": {"text": "ü\u2028\n"}}
DEAD = ("map", "y")  # the item that fails for good


class World:
    """Everything outside the state directory: what steps did, and who was told what."""

    def __init__(self, fs: FaultFS | None = None, life: int = 1) -> None:
        self.fs = fs
        self.life = life
        self.ran: list[str] = []
        self.told: list[str] = []
        self.struck_dumb_at = 0  # the n-th thing to be told is never heard: the process dies before that

    def note(self, what: str) -> None:
        if self.fs is not None:
            self.fs.note(what)

    def run(self, unit: str) -> None:
        self.ran.append(unit)
        self.note(f"ran {unit}")

    def functions(self, root: Path) -> dict[str, Callable[..., dict[str, Any] | None]]:
        flag = root / "flag"  # not in the state directory, and not under any fault

        def plain(step: str) -> Callable[[], dict[str, Any]]:
            def function() -> dict[str, Any]:
                self.run(step)
                return OUTPUTS[step]

            return function

        def flaky() -> dict[str, Any]:
            self.run("flaky")
            if not flag.exists():
                flag.touch()
                raise ConnectionError("not yet")
            return OUTPUTS["flaky"]

        def refused() -> None:
            self.run("refused")
            raise PermissionError("never")

        def item(value: str) -> dict[str, Any]:
            self.run(f"map[{value}]")
            if value == DEAD[1]:
                raise ValueError("bad item")
            return {"length": len(value)}

        def turn() -> dict[str, Any]:
            self.run("turn")
            return {"turns": 1}

        plains = {step: plain(step) for step in OUTPUTS if step != "flaky"}
        return {**plains, "flaky": flaky, "refused": refused, "item": item, "turn": turn}

    # A reporter: it hears of events once they are durable, so whatever it hears must never be lost.

    def show(self, seq: int, event: Event, state: RunState) -> None:
        if isinstance(event, StepCompleted) or (isinstance(event, StepFailed) and event.retry_at is None):
            text = f"{'done' if isinstance(event, StepCompleted) else 'failed'} {event.item} {event.step}"
        elif isinstance(event, RunFinished):
            text = f"finished {event.status}"
        else:
            return
        if self.fs is not None and len(self.told) + 1 == self.struck_dumb_at:
            self.note(f"never heard: {text}")
            self.fs.crash()
        self.told.append(text)
        self.note(text)

    def warn(self, message: str) -> None:
        pass


def live(root: Path, pipeline: Pipeline, world: World) -> str:
    """Start the run, or go on with it, to the end of this life; how it ended: a status, or an error's name."""
    files._counter = _life["counter"] = itertools.count(1000 * world.life)  # what a process of its own would have
    store = DirectoryStore(str(root / "state"))
    functions = world.functions(root)
    try:
        if store.runs():
            request = api.ResumeRequest(pipeline=pipeline)
            result = api.resume(store, "r", [world], request, functions=functions, base_dir=str(root))
        else:
            start = api.StartRequest(pipeline_path=str(root / "p.yaml"), run_id="r", options=RunOptions(parallel=1))
            result = api.start_pipeline(store, pipeline, TEXT, start, [world], functions=functions, base_dir=str(root))
    except StateError as error:
        return type(error).__name__
    world.note("returned")
    if result is None:
        return "completed"
    return "StateUnwritable" if result.end.lost else str(result.state.status)


def judge_by_reading(place: str, notes: Sequence[str]) -> str:
    """What a new process finds: everything the world was told of, and nothing that did not happen."""
    told = [note for note in notes if note.startswith(("done ", "failed ", "finished ", "returned"))]
    store = DirectoryStore(str(Path(place) / "state"))
    try:
        state = store.read("r").state
        if store.header("r") is None:
            return "run.json is not whole"
        if store.pipeline("r", "") != TEXT:
            return "pipeline.yaml is not whole"
    except RunNotFound:
        return f"there is no run, but it was said: {told}" if told else ""
    except RerailError as error:
        return f"unreadable: {error}"
    for note in told:
        if note.startswith(("done ", "failed ")):
            word, item, step = note.split(" ", 2)
            if not _is_known(state, word, UnitId(step, None if item == "None" else item)):
                return f"forgotten: {note}"
        elif note.startswith("finished ") and state.status != note.split()[1]:
            return f"it was said that the run is {note}, but it is {state.status}"
    return _invented(state, notes)


def _is_known(state: RunState, word: str, unit: UnitId) -> bool:
    wanted = "completed" if word == "done" else "failed"
    if state.unit(unit).status == wanted:
        return True
    step, item = unit
    if item is None:
        return False
    controller = state.unit(UnitId(step.split("/")[0]))
    if controller.items is None:
        return False
    index = ITEMS.index(item) if item in ITEMS else int(item) - 1
    return controller.items.marks[index] == (COMPLETED if word == "done" else FAILED)


def _invented(state: RunState, notes: Sequence[str]) -> str:
    """Nothing counts as done that never ran, or with other results than it gave."""
    ran = Counter(note[4:] for note in notes if note.startswith("ran "))
    for unit, found in state.units.items():
        if found.status != "completed" or unit.step in ("map", "loop") or "/" in unit.step:
            continue
        if not ran[str(unit)]:
            return f"{unit} counts as completed and never ran"
        if unit.step in OUTPUTS and found.outputs != OUTPUTS[unit.step]:
            return f"{unit} handed out {found.outputs}"
    return ""


def judge_by_resuming(pipeline: Pipeline) -> Callable[[str, Sequence[str]], str]:
    """Goes on to the end: nothing that was told runs again, and the end is that of a run nobody disturbed."""

    def judge(place: str, notes: Sequence[str]) -> str:
        wrong = judge_by_reading(place, notes)
        if wrong:
            return wrong
        world = World(life=9)
        if any(note == "ran flaky" for note in notes):
            (Path(place) / "flag").touch()
        ended = live(Path(place), pipeline, world)
        if ended != "completed":
            return f"resumed, it ended {ended}"
        done = {(step, item) for _, item, step in (note.split(" ", 2) for note in notes if note.startswith("done "))}
        names = {step if item == "None" else f"map[{item}]" for step, item in done if "/" not in step}
        again = names & set(world.ran)
        if again:
            return f"acknowledged, and ran again: {sorted(again)}"
        return wrong_end(Path(place), pipeline)

    return judge


def wrong_end(root: Path, pipeline: Pipeline) -> str:
    """How the end differs from that of a run nobody disturbed."""
    state = DirectoryStore(str(root / "state")).read("r").state
    for step in pipeline.steps:
        unit = state.unit(UnitId(step.id))
        if unit.status != ("failed" if step.id == "refused" else "completed"):
            return f"{step.id} is {unit.status}"
        if step.id in OUTPUTS and unit.outputs != OUTPUTS[step.id]:
            return f"{step.id} handed out {unit.outputs}"
        if step.id == "map" and unit.items and (unit.items.completed, unit.items.failed) != (2, 1):
            return f"the map has {unit.items.completed} results and {unit.items.failed} dead letters"
    return "" if state.status == "completed" else f"the run is {state.status}"


_life: dict[str, Any] = {"counter": None}


class _StillClock:
    def now(self) -> datetime:
        return AT

    def monotonic(self) -> float:
        return 1000.0


class _StillDate(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return AT


class _StillTime:
    """Stands in for the `time` module where a duration would make every journal another one."""

    def __getattr__(self, attribute: str) -> Any:
        import time

        return getattr(time, attribute)

    def monotonic(self) -> float:
        return 1000.0


def _append_row(root: str, run_dir: str, segment: int, summary: object) -> None:
    """As a row of the index is written, without the number and the times of a file, which are never the same."""
    durable.append_line(os.path.join(root, "index.jsonl"), f"{os.path.basename(run_dir)} {segment}\n".encode())


@pytest.fixture
def standing_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run gives the same bytes: no time passes, names are not random, there is a snapshot at every boundary."""
    monkeypatch.setattr("rerail.app.wiring.SystemClock", _StillClock)
    monkeypatch.setattr("rerail.app.start.datetime", _StillDate)
    monkeypatch.setattr("rerail.app.resume.datetime", _StillDate)
    monkeypatch.setattr("rerail.stores.directory.datetime", _StillDate)
    monkeypatch.setattr("rerail.executors.threads.time", _StillTime())
    monkeypatch.setitem(_life, "counter", itertools.count(1000))
    monkeypatch.setattr("rerail.stores.directory.os.urandom", lambda size: next(_life["counter"]).to_bytes(size, "big"))
    monkeypatch.setattr("rerail.durable.files._counter", files._counter)  # to be as it was afterwards
    monkeypatch.setattr("rerail.durable.AppendFile.STEP", 4096)  # so that journals grow beyond it
    monkeypatch.setattr("rerail.stores.writer.RESERVE_BYTES", 0)
    monkeypatch.setattr("rerail.engine.recorder.SNAPSHOT_SHARE", 1e9)
    monkeypatch.setattr("rerail.processes.kill_tagged", lambda _mark, **_more: 0)  # nothing here starts a process
    monkeypatch.setattr("rerail.stores.index.append", _append_row)
    here = Owner(pid=1, started="1", boot="b", namespace="n", host="h", since=AT)
    monkeypatch.setattr("rerail.processes.identity", lambda _since: here)  # in every process that explores the same
    monkeypatch.setattr("rerail.processes.is_alive", lambda _owner: False)  # whoever wrote this was another process
