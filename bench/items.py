"""What an item of a map costs, from a thousand to a hundred thousand of them: time, memory, bytes, and resuming.

    .venv/bin/python bench/items.py [--quick] [--dir DIR]

Each size is measured in a process of its own, so that memory is its own too. The floor is the least a durable record
each can cost: the same bytes, appended in batches as wide as the map, one fdatasync each.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WIDTH = 64
SHELL_WIDTH = 8


def store_and_pipeline(place: Path, count: int) -> tuple[Any, Any, Any]:
    from rerail import api
    from rerail.core.model import Call, Map, Pipeline, RunOptions, Source, Step
    from rerail.stores.directory import DirectoryStore

    item = Step(id="m", action=Call(target="f"))
    source = Source(kind="lines", value="items.txt")
    fan = Map(over=source, steps=(item,), single=True, parallel=WIDTH)
    pipeline = Pipeline(name="bench", steps=(Step(id="m", action=fan, dynamic=True),))
    (place / "items.txt").write_text("".join(f"item-{number:06d}\n" for number in range(count)))
    request = api.StartRequest(pipeline_path=str(place / "p.yaml"), run_id="r", options=RunOptions(parallel=1))
    return DirectoryStore(str(place / ".rerail")), pipeline, request


def measure(place: Path, count: int) -> dict[str, float]:
    """One size: a run whose last item fails, then its resume."""
    from rerail import api
    from rerail.app import wiring  # noqa: F401 - imported before the clock starts, as a long-lived process has them

    store, pipeline, request = store_and_pipeline(place, count)
    last = f"item-{count - 1:06d}"
    began_new = [0.0]

    def fails_last(item: str) -> dict[str, Any]:
        if item == last:
            raise ValueError("not yet")
        return {"n": len(item)}

    def notes_when(item: str) -> dict[str, Any]:
        began_new[0] = time.perf_counter()
        return {"n": len(item)}

    gc.enable()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    failed = api.start_pipeline(store, pipeline, b"", request, base_dir=str(place), functions={"f": fails_last})
    took = time.perf_counter() - began
    assert failed.end.status == "failed"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    done = api.resume(
        store,
        "r",
        request=api.ResumeRequest(pipeline=pipeline),
        base_dir=str(place),
        functions={"f": notes_when},
    )
    assert done is not None
    assert done.end.status == "completed"
    resumed = time.perf_counter() - began
    run = place / ".rerail" / "runs" / "r"
    return {
        "took": took,
        "growth": (peak - before) * 1024 / count,
        "rss": peak / 1024,
        "journal": sum(path.stat().st_size for path in run.glob("journal-*")) / count,
        "checkpoint": (run / "checkpoint.json").stat().st_size,
        "to_new_work": began_new[0] - began,
        "resumed": resumed,
    }


def floor(place: Path, count: int, journal: float) -> float:
    """Seconds per item of the least it can cost."""
    fd = os.open(place / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    batch = b"x" * int(journal * WIDTH)
    began = time.perf_counter()
    for _ in range(max(count // WIDTH, 1)):
        os.write(fd, batch)
        os.fdatasync(fd)
    took = time.perf_counter() - began
    os.close(fd)
    return took / count


def shell(place: Path, count: int) -> tuple[float, float]:
    """Seconds per shell item, and per plain process of that width."""
    (place / "pipeline.yaml").write_text(
        f"steps: [{{id: m, map: {{over: {{command: seq {count}}}, parallel: {SHELL_WIDTH}}}, steps: [{{run: ':'}}]}}]\n"
    )
    began = time.perf_counter()
    command = [sys.executable, "-m", "rerail", "run", "pipeline.yaml", "-q"]
    subprocess.run(command, cwd=place, check=True, capture_output=True)
    mine = time.perf_counter() - began
    began = time.perf_counter()
    empty = place / "empty.yaml"
    empty.write_text("steps: [{id: m, map: {over: []}, steps: [{run: ':'}]}]\n")
    subprocess.run([*command[:4], "empty.yaml", "-q"], cwd=place, check=True, capture_output=True)
    mine -= time.perf_counter() - began  # what a run costs once
    began = time.perf_counter()
    running: list[subprocess.Popen[bytes]] = []
    for _ in range(count):
        running.append(subprocess.Popen(["bash", "-eo", "pipefail", "-c", ":"]))
        if len(running) >= SHELL_WIDTH:
            running.pop(0).wait()
    for process in running:
        process.wait()
    return mine / count, (time.perf_counter() - began) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the largest size")
    parser.add_argument("--dir", default=str(Path(__file__).parent.parent), help="where to measure")
    parser.add_argument("--one", type=int, help="measure one size in this process, and print it as JSON")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="rerail-bench-", dir=options.dir))
    try:
        if options.one:
            print(json.dumps(measure(place, options.one)))
            return
        print(f"in-process items of a map, {WIDTH} at once")
        for count in (1_000, 10_000) if options.quick else (1_000, 10_000, 100_000):
            command = [sys.executable, __file__, "--one", str(count), "--dir", options.dir]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            least = floor(place, count, found["journal"])
            per_item = found["took"] / count
            print(
                f"  {count:>7}: {1 / per_item:>7.0f}/s ({per_item * 1e6:5.1f} us, floor {least * 1e6:5.1f} us),"
                f" memory {found['growth']:5.0f} B/item at most (peak {found['rss']:.0f} MB),"
                f" journal {found['journal']:4.0f} B/item, checkpoint {found['checkpoint']:.0f} B,"
                f" resume to new work {found['to_new_work']:.2f} s, to the end {found['resumed']:.2f} s"
            )
        count = 200 if options.quick else 1_000
        mine, plain = shell(place, count)
        print(
            f"shell items, {SHELL_WIDTH} at once: {mine * 1e3:.2f} ms, plain processes {plain * 1e3:.2f} ms: {mine / plain:.2f} x"
        )
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
