"""What a store of many runs costs: `list`, `doctor` and `prune`, in CPU seconds and for each run.

    .venv/bin/python bench/runs.py [--runs 20000] [--keep 100] [--dir DIR]

The runs are real ones, started one after the other by `api.start_pipeline`, each with an artifact of its own. After the
prune exactly the newest are left, with their artifacts and the copies of these; if not, the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rerail import api
from rerail.core.model import RunOptions
from rerail.core.unit_id import UnitId
from rerail.stores.directory import DirectoryStore

PIPELINE = """\
params: {n: {type: integer}}
steps:
  - id: a
    write: {path: "out-${{ params.n }}.txt", content: "content of ${{ params.n }}"}
    artifacts: ["out-${{ params.n }}.txt"]
"""


def make(project: Path, count: int) -> DirectoryStore:
    """Make completed runs, and print what each of them costs."""
    (project / "pipeline.yaml").write_text(PIPELINE)
    store = DirectoryStore(str(project / ".rerail"))
    path = str(project / "pipeline.yaml")
    pipeline, text = api.load(path)
    cpu, began = time.process_time(), time.perf_counter()
    for number in range(count):
        request = api.StartRequest(
            pipeline_path=path, params={"n": number}, run_id=f"r-{number:06d}", options=RunOptions(parallel=1)
        )
        outcome = api.start_pipeline(store, pipeline, text, request, base_dir=str(project))
        assert outcome.end.status == "completed", outcome.end
    report("start", time.process_time() - cpu, time.perf_counter() - began, count)
    return store


def measured(project: Path, count: int, *arguments: str) -> str:
    """Run a command in the project, print what it costs, and return its output."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "rerail", *arguments], cwd=project, capture_output=True, text=True, check=False
    )
    after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    assert done.returncode == 0, done.stderr
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    report(" ".join(arguments), cpu, took, count)
    return done.stdout


def report(what: str, cpu: float, took: float, count: int) -> None:
    print(f"{what:<36} {cpu:8.2f} s CPU  {took:8.2f} s  {1e6 * cpu / count:8.0f} us CPU a run", flush=True)


def complaints(store: DirectoryStore, project: Path, expected: list[str]) -> list[str]:
    """Return what is wrong with the runs that are left, their artifacts and the copies of these."""
    left = sorted(store.runs())
    found = [] if left == expected else [f"{len(left)} runs are left, and not the newest {len(expected)}"]
    copies = set(store.content.digests())
    for run_id in left:
        ready = api.prepare(store, run_id, base_dir=str(project))
        if not ready.finished or ready.audit.flaws:
            found.append(f"{run_id} is not intact")
        for record in ready.recording.state.unit(UnitId("a")).artifacts:
            if defect := store.content.defect(record.sha256):
                found.append(f"{run_id}, {record.path}: {defect}")
            copies.discard(record.sha256)
    return found + [f"the copy {sha256} belongs to no run" for sha256 in sorted(copies)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--keep", type=int, default=100)
    parser.add_argument("--dir", default=None, help="where to measure; by default beside this repository")
    options = parser.parse_args()
    beside = options.dir or os.path.dirname(Path(__file__).resolve().parent.parent)
    with tempfile.TemporaryDirectory(prefix="rerail-bench-", dir=beside) as scratch:
        project, count, keep = Path(scratch), options.runs, str(options.keep)
        store = make(project, count)
        listed = json.loads(measured(project, count, "list", "--json"))
        measured(project, count, "doctor")
        planned = json.loads(measured(project, count, "prune", "--keep", keep, "--dry-run", "--json"))
        pruned = json.loads(measured(project, count, "prune", "--keep", keep, "--json"))
        expected = sorted(f"r-{number:06d}" for number in range(max(count - options.keep, 0), count))
        found = complaints(store, project, expected)
        if len(listed) != count:
            found.append(f"{len(listed)} runs are listed")
        if len(planned) != len(pruned) or len(pruned) != count - len(expected):
            found.append(f"{len(planned)} runs were to be deleted, and {len(pruned)} were")
        print(*found or [f"{len(expected)} runs are left, each with its artifact and its copy"], sep="\n")
        return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
