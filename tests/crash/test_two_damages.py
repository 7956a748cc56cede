"""Two damages in a row, of any file and in any order, with or without a repair or an invocation between them.

What was acknowledged never happens again and is never forgotten without a word: the run is refused (exit 6), or a repair says
how far it goes back. The oracle is what the functions did and what the world was told, never what rerail believes.
`RERAIL_DAMAGES=all` explores more places of each file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rerail import api
from rerail.core.events import Event, StepCompleted
from rerail.core.model import Call, CheckpointPolicy, Pipeline, RunOptions, Step
from rerail.core.state import RunState
from rerail.errors import RerailError, StateDamaged
from rerail.stores.directory import DirectoryStore
from rerail.stores.repair import repair
from rerail.stores.verify import verify
from tests.crash.figures import figure
from tests.lab.faults import FaultFS
from tests.sweeps import Sample, part

pytestmark = pytest.mark.usefixtures("standing_still")

ALL = os.environ.get("RERAIL_DAMAGES") == "all"
STEPS = (
    Step(id="a", action=Call(target="a"), idempotent=False),
    Step(id="b", action=Call(target="b"), needs=("a",)),
    Step(id="c", action=Call(target="c"), needs=("b",)),
)
BETWEEN = ("nothing", "an invocation", "a repair", "a repair and an invocation")


class World:
    """What happened outside the state directory."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.told: dict[str, int] = {}  # acknowledged as completed, and the newest record that says so
        self.newest = 0  # record that was acknowledged
        self.given_up = False  # a repair or a notice has said that records are lost
        self.fs: FaultFS | None = None  # ends the process once b is acknowledged

    def copy(self) -> World:
        other = World()
        other.ran, other.told, other.newest, other.given_up = list(self.ran), dict(self.told), self.newest, self.given_up
        return other

    def show(self, seq: int, event: Event, state: RunState) -> None:
        self.newest = seq
        if isinstance(event, StepCompleted):
            self.told[event.step] = seq
            if self.fs is not None and event.step == "b":
                self.fs.crash()

    def warn(self, message: str) -> None:
        pass

    def functions(self) -> dict[str, Callable[[], dict[str, Any] | None]]:
        def works(step: str) -> Callable[[], None]:
            return lambda: self.ran.append(step)

        def fails() -> None:
            self.ran.append("c")
            raise ValueError("not yet")

        return {"a": works("a"), "b": works("b"), "c": fails}


def invoke(root: Path, history: int, world: World) -> str:
    """Start the run or go on with it; how that ended, or what it was refused with."""
    store = DirectoryStore(str(root / "state"))
    pipeline = Pipeline(name="two", steps=STEPS, checkpoint=CheckpointPolicy(history=history))
    functions = world.functions()
    if not store.runs():
        start = api.StartRequest(pipeline_path=str(root / "p.yaml"), run_id="r", options=RunOptions(parallel=1))
        api.start_pipeline(store, pipeline, b"text", start, [world], functions=functions, base_dir=str(root))
        return "started"
    if any("incomplete" in notice for notice in notices(store)):
        world.given_up = True
    request = api.ResumeRequest(pipeline=pipeline)
    try:
        result = api.resume(store, "r", [world], request, functions=functions, base_dir=str(root))
    except RerailError as error:
        assert error.exit_code == 6, error
        return "refused"
    assert result is not None
    return str(result.state.status)


def notices(store: DirectoryStore) -> tuple[str, ...]:
    with contextlib.suppress(RerailError):
        return store.read("r").notices
    return ()


def mend(root: Path, world: World) -> bool:
    """Repair the run; whether it can go on."""
    try:
        done = repair(DirectoryStore(str(root / "state")), "r")
    except StateDamaged as error:
        assert "nothing changed" in str(error)
        return False
    if done.reason and done.seq < world.newest:
        world.given_up = True
    return True


# What can become of a file. Each takes the bytes that there were.

DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "is gone": lambda _: None,
    "is empty": lambda _: b"",
    "is zeros": lambda data: bytes(len(data)),
    "has a flip at its start": lambda data: flip(data, min(60, len(data) - 1)),
    "has a flip in its first line": lambda data: flip(data, len(data.split(b"\n")[0]) // 2),
    "has a flip in the middle": lambda data: flip(data, len(data.rstrip()) // 2),
    "has a flip near its end": lambda data: flip(data, max(len(data.rstrip()) - 9, 0)),
    "is cut after a line": lambda data: b"".join(data.rstrip().splitlines(keepends=True)[:-2]),
    "is cut after its first line": lambda data: b"".join(data.splitlines(keepends=True)[:1]),
    "is cut in the middle": lambda data: data[: len(data.rstrip()) // 2],
}
EVERY = tuple(DAMAGES)
FEW = ("is gone", "is zeros", "has a flip in the middle")
FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    "the journal": (
        "journal-*.jsonl",
        tuple(one for one in EVERY if ALL or one not in ("is empty", "has a flip at its start")),
    ),
    "checkpoint.json": ("checkpoint.json", EVERY if ALL else FEW),
    "the history": ("history/*.json", EVERY if ALL else FEW[:2]),
    "run.json": ("run.json", EVERY if ALL else FEW[:2]),
    "pipeline.yaml": ("pipeline.yaml", FEW if ALL else FEW[:1]),
    "the lock": ("lock", FEW if ALL else FEW[:1]),
    "the witness": ("begun", FEW[:1]),
    "the evidence": ("evidence-*/*", FEW if ALL else FEW[:1]),
}


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if data else data


def damages() -> Iterator[tuple[str, str]]:
    for what, (_, hows) in FILES.items():
        yield from ((what, how) for how in hows)


def damage(root: Path, what: str, how: str) -> bool:
    """Damage all files of a kind; whether there were any. Of the journal it is the newest segment."""
    pattern = FILES[what][0]
    paths = sorted((root / "state/runs/r").glob(pattern))
    for path in paths[-1:] if what == "the journal" else paths:
        bad = DAMAGES[how](path.read_bytes())
        if bad is None:
            path.unlink()
        else:
            path.write_bytes(bad)
    return bool(paths)


def judge(root: Path, history: int, world: World) -> str:
    """What is wrong with how the run goes on from here; '' if nothing is."""
    store = DirectoryStore(str(root / "state"))
    acknowledged = dict(world.told)
    try:
        proof = verify(store, "r")
    except RerailError as error:
        if error.exit_code != 6:
            return f"verify: exit {error.exit_code}: {error}"
    else:
        if not proof.records:
            return "verify calls a run intact that has lost all of its records"
        said = world.given_up or any("incomplete" in notice for notice in proof.notices)
        if proof.records < world.newest and not said:
            return f"verify calls a run intact that has lost {world.newest - proof.records} records"
    for _ in range(3):
        if invoke(root, history, world) != "refused":
            break
        if not mend(root, world):
            break
    else:
        return "a repaired run is refused again"
    again = [step for step in acknowledged if world.ran.count(step) > 1]
    return f"acknowledged, and ran again without a word: {again}" if again and not world.given_up else ""


def copy(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


@pytest.mark.parametrize(("history", "cut_off"), [(0, False), (1, False), (20, False), (0, True)])
@pytest.mark.scenario("B9", "E1", "E2", "E3")
def test_two_damages_in_a_row_are_refused_or_told(memory: Path, history: int, cut_off: bool, sample: Sample) -> None:
    origin = memory / "origin"
    origin.mkdir()
    begun = World()
    if cut_off:
        with FaultFS() as begun.fs:
            invoke(origin, history, begun)
        begun.fs = None
    else:
        invoke(origin, history, begun)
        invoke(origin, history, begun)
    assert begun.ran == (["a", "b"] if cut_off else ["a", "b", "c", "c"])
    wrong: list[str] = []
    count = 0
    for first in sample.of(list(damages()), 2):
        for between in BETWEEN:
            once, world = copy(origin, memory / "once"), begun.copy()
            if not damage(once, *first):
                continue
            if "a repair" in between:
                mend(once, world)
            if "an invocation" in between:
                invoke(once, history, world)
            for second in damages():
                twice = copy(once, memory / "twice")
                if not damage(twice, *second):
                    continue
                found = judge(twice, history, world.copy())
                count += 1
                if found:
                    wrong.append(f"{' '.join(first)}; {between}; {' '.join(second)}: {found}")
    figure("T5", "pairs of damages in a row, each refused, told or without effect", count)
    assert not wrong, "\n".join([f"{len(wrong)} of {count}:", *wrong[:40]])
    assert count > part(10, 500)


@pytest.mark.scenario("B9", "E2")
def test_what_a_repair_goes_on_from_is_proved_twice(memory: Path) -> None:
    world = World()
    invoke(memory, 0, world)
    damage(memory, "checkpoint.json", "is gone")
    damage(memory, "the journal", "has a flip in the middle")
    first = repair(DirectoryStore(str(memory / "state")), "r")
    damage(memory, "the journal", "is zeros")
    second = repair(DirectoryStore(str(memory / "state")), "r")

    assert first.seq > 1
    assert second.source == "checkpoint.json"
    assert second.seq == first.seq + 1  # the record of the repair itself
