"""Every state a crash or a power cut can leave of a run, put on a disk and read by the real code.

Layer 1 of the laboratory: over a hundred thousand different states, from one seed. What is acknowledged is never lost,
nothing is invented, nothing is unreadable. A violation is saved as a fixture, which is a regression test from then on.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rerail import durable
from rerail.core.model import Pipeline
from rerail.errors import StateDamaged
from rerail.stores.directory import DirectoryStore
from rerail.stores.repair import repair
from tests.crash.figures import figure
from tests.crash.figures import states as explored
from tests.crash.reference import SMALL, WHOLE, World, judge_by_reading, judge_by_resuming, live, wrong_end
from tests.lab.disk import CrashState
from tests.lab.explorer import Explorer, Judge, put, replay
from tests.lab.faults import Fault, FaultFS, Op, SimulatedCrash, crash_at, crash_points, fault_points
from tests.sweeps import SEED, Sample, part

pytestmark = pytest.mark.usefixtures("standing_still")

SHARDS = 4
FIXTURES = Path(__file__).parent / "fixtures"
ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EMFILE)


def fresh(memory: Path) -> Path:
    root = memory / "disk"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    return root


def undisturbed(root: Path, pipeline: Pipeline) -> Sequence[Op]:
    with FaultFS() as fs:
        assert live(root, pipeline, World(fs)) == "completed"
    return fs.ops


def explain(explorer: Explorer) -> str:
    """For a failing test: what is wrong, and where the state was saved to look at it again."""
    if "RERAIL_MUTANT" in os.environ:
        return "as it should be"  # nobody wants to see again what a planted bug does
    return "\n".join(f"{violation}\n  saved as {violation.save(FIXTURES)}" for violation in explorer.violations)


def on_a_copy(memory: Path, judge: Judge) -> Judge:
    """For a judge that changes what it judges."""

    def judged(place: str, notes: Sequence[str]) -> str:
        copy = memory / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(place, copy)
        return judge(str(copy), notes)

    return judged


@pytest.mark.scenario("A14", "B2", "B3", "B4", "B5", "B11")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_kill_a_resume_and_then_a_power_cut_lose_nothing(memory: Path, shard: int, sample: Sample) -> None:
    """What only the page cache held when its writer died must not be built on before it is synced."""
    start, step = sample.points(12, shard=shard, shards=SHARDS)
    points = crash_points(start=start, step=step, torn=shard % 2 == 1)
    explorer = killed_resumed_and_cut(memory, WHOLE, points, seed=SEED + shard, share=0.11)
    explored("states after a kill, a resume and a power cut", explorer.seen)
    assert explorer.states > part(500, 11_000)  # of four shards; with those of the other tests a hundred thousand


def test_the_same_for_every_state_of_a_small_run(memory: Path, sample: Sample) -> None:
    start, step = sample.points(24)
    explorer = killed_resumed_and_cut(memory, SMALL, crash_points(start=start, step=step), seed=SEED, share=0.45)
    explored("states after a kill, a resume and a power cut", explorer.seen)
    assert explorer.states > part(300, 15_000)


def killed_resumed_and_cut(
    memory: Path, pipeline: Pipeline, points: Iterator[FaultFS], *, seed: int, share: float
) -> Explorer:
    """Two lives, the first one killed; then the power fails at any operation of the second."""
    explorer = Explorer(memory / "after", judge_by_reading, seed=seed)
    for fs in points:
        root = fresh(memory)
        with fs:
            live(root, pipeline, World(fs))
        if fs.crashed:
            with FaultFS() as second:
                assert live(root, pipeline, World(second, life=2)) == "completed"
            assert wrong_end(root, pipeline) == ""
            explorer.explore(root, [*fs.ops, *second.ops], since=len(fs.ops), share=share)
            assert not explorer.violations, explain(explorer)
    return explorer


@pytest.mark.scenario("B1", "B2", "B3", "B4", "B5", "B6", "B7", "B11")
def test_every_power_cut_of_a_run_is_resumed_to_the_same_end(memory: Path) -> None:
    root = fresh(memory)
    ops = undisturbed(root, WHOLE)
    explorer = Explorer(memory / "after", on_a_copy(memory, judge_by_resuming(WHOLE)), seed=SEED)
    explorer.explore(root, ops, share=part(0.015, 0.12))

    assert not explorer.violations, explain(explorer)
    explored("states after a power cut, resumed to the end", explorer.seen)
    assert explorer.states > part(10, 350)


@pytest.mark.scenario("A8")
@pytest.mark.parametrize("shard", range(2))
def test_a_crash_during_recovery_is_recovered_from(memory: Path, shard: int) -> None:
    """Power cut, and another one while the first is being recovered from."""
    root = fresh(memory)
    first = Explorer(memory / "after", judge_by_reading, seed=SEED)
    states: list[CrashState] = []
    first.explore(root, undisturbed(root, WHOLE), found=states)
    second = Explorer(memory / "after", judge_by_reading, seed=SEED + shard)
    for state in random.Random(SEED + shard).sample(states, part(5, 105)):
        put(state, root)
        if "ran flaky" in state.notes:
            (root / "flag").touch()
        with FaultFS() as fs:
            assert live(root, WHOLE, World(fs, life=2)) == "completed", state.label
        second.explore(root, fs.ops, start=state, share=0.06)
        assert not second.violations, explain(second)
    explored("states after a crash during recovery", second.seen)
    assert second.states > part(100, 5_000)


@pytest.mark.scenario("A13")
def test_three_crashes_in_a_row_at_any_operations(memory: Path) -> None:
    """Each life is killed a little later than the last; the disk is that of the page cache, then it is cut."""
    dice = random.Random(SEED)
    explorer = Explorer(memory / "after", judge_by_reading, seed=SEED)
    for _ in range(part(3, 40)):
        root = fresh(memory)
        ops: list[Op] = []
        for life in (1, 2, 3):
            with crash_at(dice.randrange(20, 120), torn=dice.random() < 0.5) as fs:
                live(root, WHOLE, World(fs, life=life))
            ops += fs.ops
        with FaultFS() as last:
            assert live(root, WHOLE, World(last, life=4)) == "completed"
        explorer.explore(root, [*ops, *last.ops], since=len(ops), share=0.1)
        assert not explorer.violations, explain(explorer)
    explored("states after several kills", explorer.seen)


@pytest.mark.scenario("A4")
def test_dying_between_the_sync_and_the_word_costs_no_step(memory: Path) -> None:
    """What is durable is done, though nobody has heard of it yet."""
    struck = 0
    while True:
        struck += 1
        root = fresh(memory)
        with FaultFS() as fs:
            world = World(fs)
            world.struck_dumb_at = struck
            live(root, WHOLE, world)
        if not fs.crashed:
            break
        (unheard,) = [op.path for op in fs.ops if op.path.startswith("never heard: ")]
        after = World(life=2)
        assert live(root, WHOLE, after) == "completed"
        if unheard.startswith("never heard: done None "):
            assert unheard.removeprefix("never heard: done None ") not in after.ran
        assert wrong_end(root, WHOLE) == ""
    assert struck > 8


@pytest.mark.scenario("A8", "B9")
def test_a_repair_that_is_cut_off_is_repaired_again(memory: Path) -> None:
    """Killed at any operation, or the power cut at any: what can be read then is what the repair would have found."""
    root = fresh(memory)
    with crash_at(70) as fs:  # in the middle, so that there is something left to do
        live(root, SMALL, World(fs))
    (segment,) = (root / "state/runs/r").glob("journal-*.jsonl")
    (root / "state/runs/r/checkpoint.json").unlink()
    shutil.rmtree(root / "state/runs/r/history")
    data = bytearray(segment.read_bytes())
    data[data.index(b'"step-completed"') + 3] ^= 1
    segment.write_bytes(data)
    damaged = CrashState(0, "damaged", files_of(root), ())

    def judge(place: str, notes: Sequence[str]) -> str:
        store = DirectoryStore(str(Path(place) / "state"))
        with contextlib.suppress(StateDamaged):
            return "" if store.read("r").state.seq >= 1 else "something is read, and too little"
        return ""  # damaged as before: to be repaired

    explorer = Explorer(memory / "after", judge, seed=SEED)
    for fs in crash_points():
        put(damaged, root)
        with fs:
            repair(DirectoryStore(str(root / "state")), "r")
        repair(DirectoryStore(str(root / "state")), "r")
        after = World(life=2)
        assert live(root, SMALL, after) == "completed"
        assert wrong_end(root, SMALL) == ""
        if not fs.crashed:
            explorer.explore(root, fs.ops, start=damaged)
    assert not explorer.violations, explain(explorer)
    assert explorer.states >= 15


def files_of(root: Path) -> dict[str, bytes | None]:
    """A directory as the explorer knows it."""
    return {str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in root.rglob("*")}


@pytest.mark.scenario("B10", "C1", "D1", "D4", "D8", "D11")
@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("number", ERRORS, ids=lambda number: errno.errorcode[number])
def test_every_operation_fails(memory: Path, number: int, forever: bool, sample: Sample) -> None:
    """Nothing is claimed that is not durable, also if the power fails on top; once the disk is well the run completes."""
    explorer = Explorer(memory / "after", judge_by_reading, seed=SEED)
    met = 0
    start, step = sample.points(8)
    for fs in fault_points(Fault(at=start, kind="error", number=number, forever=forever), step=step, reads=True):
        root = fresh(memory)
        world = World(fs)
        with fs:
            ended = live(root, SMALL, world)
        met += fs.hit
        explorer.explore(root, fs.ops, share=0.05)
        assert not explorer.violations, explain(explorer)
        after = World(life=2)
        assert live(root, SMALL, after) == "completed", fs.ops[-5:]
        check_honest(ended, world, after)
        assert wrong_end(root, SMALL) == ""
    figure("T2", f"calls failed {'for good' if forever else 'once'} in this process", met)
    explored("states after an error and a power cut", explorer.seen)
    assert met > part(5, 70)


def check_honest(ended: str, world: World, after: World) -> None:
    """Completed means completed; what was told is not done again."""
    done = {note.split(" ", 2)[2] for note in world.told if note.startswith("done ")}
    assert not done & set(after.ran), (ended, world.told, after.ran)
    if ended == "completed":
        assert after.ran == []
    else:
        assert ended in ("StateUnwritable", "StateUnreadable", "RunNotFound"), ended


@pytest.mark.scenario("C2")
def test_every_write_is_short(memory: Path) -> None:
    """A write of half is gone on with: nobody notices."""
    met = 0
    every = FaultFS(Fault(at=1, kind="short", forever=True))  # all of them at once, then one after the other
    for fs in itertools.chain([every], fault_points(Fault(at=1, kind="short"))):
        root = fresh(memory)
        with fs:
            assert live(root, SMALL, World(fs)) == "completed"
        met += fs.hit
        assert wrong_end(root, SMALL) == ""
        assert judge_by_reading(str(root), [op.path for op in fs.ops if op.kind == "note"]) == ""
    figure("T2", "short writes in this process", met)
    assert met > 10


@pytest.mark.scenario("D5", "D11")
def test_an_error_of_every_kind_while_resuming(memory: Path, sample: Sample) -> None:
    """A resume that cannot read or write its state refuses or stops; it never starts over."""
    met = 0
    for number in ERRORS:
        start, step = sample.points(16)
        for fs in fault_points(Fault(at=start, kind="error", number=number, forever=True), step=step, reads=True):
            root = fresh(memory)
            with crash_at(60) as before:
                world = World(before)
                live(root, SMALL, world)
            assert before.crashed
            with fs:
                ended = live(root, SMALL, World(fs, life=2))
            met += fs.hit
            after = World(life=3)
            assert live(root, SMALL, after) == "completed", (ended, fs.ops[-5:])
            done = {note.split(" ", 2)[2] for note in world.told if note.startswith("done ")}
            assert done
            assert not done & set(after.ran), (ended, world.told, after.ran)
            assert wrong_end(root, SMALL) == ""
    figure("T2", "calls failed for good while resuming", met)


def test_what_was_once_wrong_is_right(memory: Path) -> None:
    for fixture in sorted(FIXTURES.glob("*.json")):
        assert replay(fixture, memory / "place", judge_by_reading) == "", fixture.name


def test_a_violation_can_be_replayed(memory: Path) -> None:
    """The explorer finds what a missing sync costs, and what it saved says the same again."""
    root = fresh(memory)
    ops = [op for op in undisturbed(root, SMALL) if not (op.kind == "sync" and "journal" in op.path)]
    explorer = Explorer(memory / "after", judge_by_reading, most_violations=1)
    explorer.explore(root, ops)
    (violation,) = explorer.violations

    saved = violation.save(memory / "saved")

    assert replay(saved, memory / "again", judge_by_reading) == violation.complaint


def test_a_crash_is_the_last_thing_that_happens(tmp_path: Path) -> None:
    """Nobody who cleans up after a crash can change anything: no `finally`, no handler of exceptions."""
    from rerail import durable

    path = tmp_path / "file"
    with crash_at(2) as fs:
        try:
            durable.replace_file(str(path), b"content")
        except SimulatedCrash:
            with pytest.raises(SimulatedCrash):
                durable.write_new(str(tmp_path / "other"), b"")
            with pytest.raises(SimulatedCrash):
                durable.new_dir(str(tmp_path / "directory"))
            with pytest.raises(SimulatedCrash):
                durable.remove_file(str(path))
            with pytest.raises(SimulatedCrash):
                durable.remove_tree(str(tmp_path))
    assert fs.crashed
    assert [entry.name for entry in tmp_path.iterdir()] == [f"file.{os.getpid()}-{_last_number(tmp_path)}.rerail-tmp"]


def _last_number(directory: Path) -> str:
    (left,) = directory.iterdir()
    return left.name.split("-")[1].split(".")[0]


def test_a_judge_that_cannot_bear_a_state_has_found_one(memory: Path) -> None:
    """Garbage that a reader does not survive is the very thing to be found, and to be seen again."""

    def judge(place: str, _notes: Sequence[str]) -> str:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    root = fresh(memory)
    explorer = Explorer(memory / "after", judge, seed=SEED)
    explorer.explore(root, undisturbed(root, SMALL))

    assert "UnicodeDecodeError" in str(explorer.violations[0])
    assert replay(explorer.violations[0].save(memory), memory / "again", judge_by_reading) == ""


def test_after_a_crash_not_even_a_whole_tree_can_be_removed(tmp_path: Path) -> None:
    """Whoever took the function by its name before the crash, for a `finally` of its own."""
    from rerail.durable import remove_tree

    place = tmp_path / "tree"
    (place / "below").mkdir(parents=True)
    with FaultFS() as fs:
        with contextlib.suppress(SimulatedCrash):
            fs.crash()
        with contextlib.suppress(SimulatedCrash):
            remove_tree(str(place))
    assert (place / "below").is_dir()
    remove_tree(str(place))
    assert not place.exists()


def test_what_happened_elsewhere_is_not_taken_for_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    explorer = Explorer(tmp_path / "after", judge_by_reading)
    with FaultFS() as fs:
        durable.replace_file(str(tmp_path / "note"), b"text")
    with pytest.raises(ValueError, match="it must be the same path"):
        explorer.explore(".", fs.ops)


def test_a_file_that_is_emptied_and_a_way_that_is_made_are_followed(tmp_path: Path) -> None:
    top = tmp_path / "disk"
    top.mkdir()
    (top / "note").write_bytes(b"long long")
    before = files_of(top)
    with FaultFS() as fs:
        fs.makedirs(str(top / "a" / "b"))
        fd = fs.open(str(top / "note"), os.O_WRONLY | os.O_TRUNC)
        fs.pwrite(fd, b"x", 0)
        fs.fsync(fd)
        fs.close(fd)
    seen: set[bytes] = set()

    def judge(place: str, _notes: Sequence[str]) -> str:
        seen.add(Path(place, "note").read_bytes())
        return ""

    explorer = Explorer(tmp_path / "after", judge)
    explorer.explore(top, fs.ops, start=CrashState(0, "", before, ()))

    assert {b"long long", b"", b"x"} <= seen
    assert not explorer.violations
