"""Run, verify, resume, damage and repair a run whose journal has a segment of more than 2 GiB.

    .venv/bin/python scripts/large_journal.py [--gib 2.1] [--dir DIR]

A loop whose iterations print 900 kB each fills the journal, and the step after it fails the first time. Then every reader
reads the run, and `resume` goes on with that step alone. In a copy of the failed run a byte near the end of the segment is
flipped: the record with it must be named, `repair` must keep the records before it, and `resume` must finish.
Takes two to three times as much disk space and memory as the segment has bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PRINTED = 900_000  # bytes of one iteration
SEGMENT = Path(".rerail/runs/r/journal-0001.jsonl")
PIPELINE = """\
steps:
  - id: fill
    loop: {{max_iterations: {iterations}}}
    steps:
      - id: line
        outputs: {{text: stdout}}
        run: |
          echo fill >> ledger
          head -c {printed} /dev/zero | tr '\\0' x
  - {{id: last, needs: [fill], run: 'echo last >> ledger; test -e go'}}
"""


def rerail(project: Path, *arguments: str, code: int = 0) -> str:
    """Run a command, print how long it took, and return what it printed; exit if it ends otherwise than expected."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "rerail", *arguments], cwd=project, capture_output=True, text=True, check=False
    )
    print(
        f"{project.name}: rerail {' '.join(arguments)}: exit {done.returncode}, {time.perf_counter() - began:.1f} s",
        flush=True,
    )
    require(done.returncode == code, f"exit {done.returncode} and not {code}: {done.stderr[-2000:]}")
    return done.stdout + done.stderr


def require(holds: bool, message: str) -> None:
    if not holds:
        sys.exit(f"FAILED: {message}")


def ledger(project: Path, step: str) -> int:
    """Count how often a step ran, by its own record."""
    return (project / "ledger").read_text().split().count(step)


def fill(project: Path, size: int) -> None:
    """Make a run that has failed after its journal grew beyond a size."""
    project.mkdir()
    iterations = size // (2 * PRINTED) + 1  # each prints it; the record of the iteration holds it too
    (project / "pipeline.yaml").write_text(PIPELINE.format(iterations=iterations, printed=PRINTED))
    rerail(project, "run", "pipeline.yaml", "--id", "r", "-q", code=1)
    length = (project / SEGMENT).stat().st_size
    print(f"the segment has {length} bytes, {length / 2**30:.2f} GiB; {iterations} iterations")
    require(length > size, "the segment is too small")
    require((ledger(project, "fill"), ledger(project, "last")) == (iterations, 1), "steps ran more than once")


def read_and_resume(project: Path) -> None:
    """Read the run with every reader, then resume it."""
    ran = ledger(project, "fill")
    rerail(project, "verify", "r")
    require(json.loads(rerail(project, "list", "--json"))[0]["status"] == "failed", "it is not listed as failed")
    require("failed" in rerail(project, "show", "r"), "it is not shown as failed")
    (project / "go").touch()
    rerail(project, "resume", "r", "-q")
    require((ledger(project, "fill"), ledger(project, "last")) == (ran, 2), "more than the failed step ran")
    rerail(project, "verify", "r")


def damage_and_repair(project: Path) -> None:
    """Flip a byte near the end of the segment, then repair the run and resume it."""
    path = project / SEGMENT
    at = path.stat().st_size - 3 * PRINTED // 2  # in an iteration before the last one
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    said = rerail(project, "verify", "r", code=6)
    named = re.search(r"journal-0001\.jsonl:\d+: damaged at byte (\d+)", said)
    require(named is not None and at - 2 * PRINTED < int(named[1]) <= at, f"byte {at} is not named: {said}")
    ran = ledger(project, "fill")
    rerail(project, "repair", "r")
    (project / "go").touch()
    rerail(project, "resume", "r", "-q")
    again = ledger(project, "fill") - ran
    require(again <= 2, f"{again} iterations ran again")  # none, where the checkpoint still proves all of them
    print(f"{again} iterations ran again after the repair")
    require(json.loads(rerail(project, "list", "--json"))[0]["status"] == "completed", "it is not listed as completed")
    rerail(project, "verify", "r")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.1, help="how large the segment is to be at least")
    parser.add_argument("--dir", default=None, help="where to work; by default beside this repository")
    options = parser.parse_args()
    beside = options.dir or os.path.dirname(Path(__file__).resolve().parent.parent)
    with tempfile.TemporaryDirectory(prefix="rerail-large-", dir=beside) as scratch:
        whole, damaged = Path(scratch) / "whole", Path(scratch) / "damaged"
        fill(whole, int(options.gib * 2**30))
        shutil.copytree(whole, damaged)
        read_and_resume(whole)
        shutil.rmtree(whole)
        damage_and_repair(damaged)
    print("all of it held")


if __name__ == "__main__":
    main()
