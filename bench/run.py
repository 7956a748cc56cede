"""What a durable step costs, as ratios to floors that are measured in the same run on the same disk.

    .venv/bin/python bench/run.py [--quick] [--dir DIR]

Absolute numbers belong to one machine; a ratio says how far rerail is from what the disk and the system allow.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import rerail
from rerail import api
from rerail.artifacts.audit import Auditor
from rerail.artifacts.paths import ProjectPaths as Files
from rerail.artifacts.seal import SealEnv, seal
from rerail.core.checkpoint import checkpoint_of
from rerail.core.events import ArtifactRecord
from rerail.core.model import Artifact, Call, Pipeline, Run, RunOptions, Step
from rerail.core.state import RunState, UnitState
from rerail.core.unit_id import UnitId
from rerail.stores import snapshots
from rerail.stores.content_store import DirectoryContentStore
from rerail.stores.directory import DirectoryStore

PAIR_BYTES = 360  # one completed and one started record, as they really are


@contextlib.contextmanager
def scratch(base: str | None) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="rerail-bench-", dir=base))
    try:
        with contextlib.chdir(directory):  # where people stand when they run a pipeline
            yield directory
    finally:
        shutil.rmtree(directory)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def floor_append(place: Path, count: int) -> float:
    """Seconds per step of the least a durable step can cost: two records in one append, one fdatasync."""
    fd = os.open(place / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    line = b"x" * PAIR_BYTES

    def work() -> None:
        for _ in range(count):
            os.write(fd, line)
            os.fdatasync(fd)

    result = seconds(work) / count
    os.close(fd)
    os.unlink(place / "floor")
    return result


def floor_spawn(place: Path, count: int) -> float:
    """Seconds per step of spawning the shell that a `run` step gets, and an append with fdatasync."""
    fd = os.open(place / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    shell = shutil.which("bash") or "/bin/sh"
    command = [shell, "-eo", "pipefail", "-c", "true"] if shell.endswith("bash") else [shell, "-e", "-c", "true"]

    def work() -> None:
        for _ in range(count):
            subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
            os.write(fd, b"x" * PAIR_BYTES)
            os.fdatasync(fd)

    result = seconds(work) / count
    os.close(fd)
    os.unlink(place / "floor")
    return result


def chain(count: int, action: Call | Run) -> Pipeline:
    steps = tuple(Step(id=f"s{n}", action=action, needs=(f"s{n - 1}",) if n else ()) for n in range(count))
    return Pipeline(name="bench", steps=steps)


def drive(place: Path, pipeline: Pipeline, run_id: str) -> float:
    """Seconds per step of a whole run, starting and ending included."""
    store = DirectoryStore(str(place / ".rerail"))
    request = api.StartRequest(pipeline_path=str(place / "p.yaml"), run_id=run_id, options=RunOptions(parallel=1))
    functions = {"f": lambda: {"n": 1}}
    spent = seconds(lambda: api.start_pipeline(store, pipeline, b"", request, functions=functions))
    return spent / len(pipeline.steps)


def tree_bytes(path: Path) -> int:
    return sum(entry.stat().st_size for entry in path.rglob("*") if entry.is_file())


def row(what: str, mine: float, floor: float, unit: str = "us", limit: str = "") -> None:
    scale = {"us": 1e6, "ms": 1e3, "s": 1}[unit]
    print(
        f"  {what:<44} {mine * scale:>10.1f} {unit}  floor {floor * scale:>9.1f} {unit}  x {mine / floor:5.2f}  {limit}"
    )


def paired_row(what: str, mine: list[float], floors: list[float]) -> None:
    """The turn in the middle, each against floors just before and after it: a disk is not equally fast for long."""
    _, own, floor = sorted((own / floor, own, floor) for own, floor in zip(mine, floors, strict=True))[len(mine) // 2]
    row(what, own, floor, limit="(at most 1.30)")


def in_process(place: Path, sizes: list[int]) -> None:
    print("in-process steps, in a row (floor: one append of two records + fdatasync)")
    drive(place, chain(50, Call(target="f")), "warm-up")
    whole = statistics.median(drive(place, chain(1, Call(target="f")), f"one-{turn}") for turn in range(9))
    print(
        f"  {'a run of one step, from nothing to closed':<44} {whole * 1e6:>10.1f} us  paid once: not in the rows below"
    )
    for count in sizes:
        floors, mine = [], []
        for turn in range({100: 15, 1000: 7}.get(count, 5)):
            before = floor_append(place, min(count, 1000))
            spent = drive(place, chain(count, Call(target="f")), f"n{count}-{turn}")
            mine.append((spent * count - whole) / (count - 1))
            floors.append((before + floor_append(place, min(count, 1000))) / 2)
        paired_row(f"{count} steps", mine, floors)
        written = tree_bytes(place / ".rerail" / "runs" / f"n{count}-0") / count
        print(f"  {'':<44} {written:>10.0f} bytes kept per step")


def shell(place: Path, count: int) -> None:
    print("shell steps, in a row (floor: spawn of the same shell + append + fdatasync)")
    whole = statistics.median(drive(place, chain(1, Run(script="true")), f"one-sh-{turn}") for turn in range(9))
    print(f"  {'a run of one step, its watchdogs included':<44} {whole * 1e6:>10.1f} us  paid once: not in the row below")
    floors, mine = [], []
    for turn in range(7):  # in short turns, as a machine is not equally fast for long
        before = floor_spawn(place, count)
        spent = drive(place, chain(count, Run(script="true")), f"sh{turn}")
        mine.append((spent * count - whole) / (count - 1))
        floors.append((before + floor_spawn(place, count)) / 2)
    paired_row(f"{count} steps", mine, floors)


def start_up(place: Path) -> None:
    print("start-up CPU, with 20 runs to list (floor: a bare interpreter)")

    def cpu(command: list[str]) -> float:
        used = []
        for _ in range(10):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return statistics.median(used)

    compileall.compile_dir(os.path.dirname(rerail.__file__), quiet=1)  # as in an installed package
    bare = cpu([sys.executable, "-c", "pass"])
    for arguments in (["--version"], ["list"], ["--help"]):
        spent = cpu([sys.executable, "-m", "rerail", *arguments])
        over = (spent - bare) * 1e3
        row(f"rerail {arguments[0]}", spent, bare, "ms", f"{over:+.0f} ms (at most +100)")


def listing(place: Path, count: int) -> None:
    print(f"listing {count} runs (floor: a bare interpreter, and a stat of each)")
    for number in range(count):
        drive(place, chain(1, Call(target="f")), f"run-{number}")
    runs = place / ".rerail" / "runs"

    def command(*arguments: str) -> float:
        return min(
            seconds(lambda: subprocess.run(arguments, cwd=place, stdout=subprocess.DEVNULL, check=True)) for _ in range(5)
        )

    floor = command(sys.executable, "-c", "pass")
    floor += seconds(lambda: [os.stat(runs / entry / "run.json") for entry in os.listdir(runs)])
    row("rerail list", command(sys.executable, "-m", "rerail", "list"), floor, "s", "(at most 0.5 s for 10 000)")
    row("rerail list --json", command(sys.executable, "-m", "rerail", "list", "--json"), floor, "s")
    os.unlink(place / ".rerail" / "index.jsonl")
    row("rerail list, without its index", command(sys.executable, "-m", "rerail", "list"), floor, "s")


def resume(place: Path, count: int) -> None:
    print(f"resume after {count} done steps, until the next step starts (floor: reading the journal's bytes)")
    steps = (
        *chain(count, Call(target="f")).steps,
        Step(id="end", action=Call(target="fail"), needs=(f"s{count - 1}",)),
    )
    pipeline = Pipeline(name="bench", steps=steps)
    store = DirectoryStore(str(place / ".rerail"))
    request = api.StartRequest(pipeline_path=str(place / "p.yaml"), run_id="big", options=RunOptions(parallel=1))
    started: list[float] = []

    def fail() -> dict[str, object]:
        started.append(time.perf_counter())
        raise RuntimeError("stop here")

    functions = {"f": lambda: None, "fail": fail}
    api.start_pipeline(store, pipeline, b"", request, functions=functions)
    journal = place / ".rerail/runs/big/journal-0001.jsonl"
    reading = seconds(journal.read_bytes)
    for name in ("with checkpoint.json", "from the journal alone"):
        if name != "with checkpoint.json":
            (place / ".rerail/runs/big/checkpoint.json").unlink()
        began = time.perf_counter()
        api.resume(store, "big", request=api.ResumeRequest(pipeline=pipeline), functions=functions)
        row(name, started[-1] - began, reading, "ms")


def checkpoint(place: Path) -> None:
    print("checkpoint.json of a 20-step run (floor: write + fsync + rename + fsync of the directory)")
    drive(place, chain(20, Call(target="f")), "twenty")
    store = DirectoryStore(str(place / ".rerail"))
    log = store.own("twenty")
    recording = log.recording
    pipeline = chain(20, Call(target="f"))
    from datetime import UTC, datetime

    from rerail.core.events import RunResumed

    owner = store.ownership("twenty").owner
    assert owner is not None
    log.append([RunResumed(at=datetime.now(UTC), owner=owner, pipeline_sha256="", options=RunOptions(), steps=20)])

    def save() -> None:
        log.save_snapshot(checkpoint_of(recording.header, pipeline, recording.state), keep=20)

    saves = [seconds(save) for _ in range(50)]
    path = place / ".rerail/runs/twenty/checkpoint.json"
    data = path.read_bytes()

    def plain() -> None:
        fd = os.open(place / "plain.tmp", os.O_WRONLY | os.O_CREAT)
        os.write(fd, data)
        os.fsync(fd)
        os.close(fd)
        os.rename(place / "plain.tmp", place / "plain")
        directory = os.open(place, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    floor = statistics.median(seconds(plain) for _ in range(50))
    row("save", statistics.median(saves), floor, "ms", "(at most 5 ms)")
    loads = [seconds(lambda: snapshots.decode(path.read_bytes())) for _ in range(50)]
    row(
        "load",
        statistics.median(loads),
        statistics.median(seconds(path.read_bytes) for _ in range(50)),
        "ms",
        "(at most 3 ms)",
    )
    log.close()


def overhead(place: Path, count: int) -> None:
    print(f"a pipeline of {count} steps of one second (floor: the seconds themselves)")
    spent = drive(place, chain(count, Run(script="sleep 1")), "slow") * count
    row("whole run", spent, float(count), "s", f"{(spent / count - 1) * 100:.2f} % on one-second steps")


def files_to_seal(place: Path, count: int, size: int) -> Path:
    """That many files of that size, none like another."""
    directory = place / f"made-{count}"
    directory.mkdir()
    block = os.urandom(min(size, 1 << 20))
    for number in range(count):
        with open(directory / f"{number:06d}", "wb") as file:
            file.write(number.to_bytes(8, "big"))
            for _ in range(max(size // len(block), 1)):
                file.write(block)
    return directory


def artifacts(place: Path, count: int, size: int, what: str) -> None:
    """Sealing (without and with a copy) and auditing, against sha256sum and a plain read of the same files."""
    directory = files_to_seal(place, count, size)
    paths = sorted(str(path) for path in directory.iterdir())
    os.sync()

    def read_all() -> None:
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass

    reading = min(seconds(read_all) for _ in range(2))
    lists = [paths[at : at + 1000] for at in range(0, len(paths), 1000)]
    command = ["sha256sum", "--"]
    hashing = min(
        seconds(lambda: [subprocess.run([*command, *some], stdout=subprocess.DEVNULL, check=True) for some in lists])
        for _ in range(2)
    )
    home = Files(work_dir=str(place), root=str(place))
    objects = DirectoryContentStore(str(place / ".rerail" / f"objects-{count}"))
    objects.prepare()
    staging = place / f"staging-{count}"
    staging.mkdir()
    means = SealEnv(place=home, content=objects, staging=str(staging))
    path = directory.name
    plain = seconds(lambda: seal([Artifact(path=path, keep=False)], means))
    sealed: list[ArtifactRecord] = []
    copied = seconds(lambda: sealed.extend(seal([Artifact(path=path, keep=True)], means).records))
    step = Step(id="a", action=Call(target="f"), artifacts=(Artifact(path=path),))
    state = RunState(units={UnitId("a"): UnitState(status="completed", artifacts=tuple(sealed))})
    pipeline = Pipeline(name="p", steps=(step,))
    audits = {
        depth: min(seconds(lambda depth=depth: Auditor(home, objects, depth).audit(pipeline, state)) for _ in range(2))  # type: ignore[misc]
        for depth in ("full", "fast")
    }
    print(f"artifacts: {what} (floors: sha256sum, and a plain read, of the same files)")
    for name, spent in (
        ("seal", plain),
        ("seal and copy", copied),
        ("audit", audits["full"]),
        ("audit, fast", audits["fast"]),
    ):
        row(name, spent, hashing, "ms", f"x {spent / reading:5.2f} of the read")
    shutil.rmtree(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, for a first look")
    parser.add_argument("--dir", default=None, help="where to measure; by default beside this repository")
    options = parser.parse_args()
    base = options.dir or str(Path(__file__).parent.parent)
    with scratch(base) as place:
        in_process(place, [100, 1000] if options.quick else [100, 1000, 10_000])
        shell(place, 50 if options.quick else 200)
        with scratch(base) as ordinary:
            for number in range(20):
                drive(ordinary, chain(5, Call(target="f")), f"run-{number}")
            start_up(ordinary)
        with scratch(base) as crowded:
            listing(crowded, 1000 if options.quick else 10_000)
        resume(place, 1000 if options.quick else 10_000)
        checkpoint(place)
        artifacts(place, 1, (1 << 26) if options.quick else (1 << 30), "one large file, 64 MiB or 1 GiB")
        artifacts(place, 500 if options.quick else 10_000, 4096, "many files of 4 KiB, 500 or 10 000")
        overhead(place, 2 if options.quick else 5)


if __name__ == "__main__":
    main()
