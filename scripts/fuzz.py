"""The differential fuzzer, by hand: `scripts/fuzz.py --minutes 30`, `--seed 42` for one case, `--mutants` for planted bugs.

Every case is a seed: a random pipeline, and a random script of invocations, edits and deaths. What comes of it is compared
with a model that was written from the documentation. Of a case that violates it the directory is kept, and the command that
repeats it is printed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.fuzz.harness import Outcome, run_case  # noqa: E402 - the checkout is not a package that is installed
from tests.fuzz.mutants import MUTANTS, plant  # noqa: E402

ENOUGH = 8  # planted bugs of ten


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to go on (default: 1)")
    parser.add_argument("--seed", type=int, help="run this case only, and say what happens in it")
    parser.add_argument("--first", type=int, help="begin with this seed (default: a random one)")
    parser.add_argument("--workers", type=int, default=2, help="cases at once (default: 2)")
    parser.add_argument("--mutants", action="store_true", help="plant ten bugs, one by one, and see which are found")
    parser.add_argument("--cases", type=int, default=60, help="with --mutants: give up a bug after so many cases")
    parser.add_argument("--only", default="", help="with --mutants: only bugs whose name holds this text")
    parser.add_argument("--directory", type=Path, help="where cases are run (default: memory, where there is any)")
    chosen = parser.parse_args()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a kill, unlike a power cut, is no matter of disks
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="rerail-fuzz-", dir=memory))
    if chosen.seed is not None:
        outcome = run_case(chosen.seed, directory, keep=True, log=True)
        tell(outcome)
        return bool(outcome.violations)
    if chosen.mutants:
        return find_mutants(directory, chosen.workers, chosen.cases, chosen.only)
    first = chosen.first if chosen.first is not None else random.SystemRandom().randrange(10**8)
    return go_on(directory, chosen.workers, chosen.minutes, first)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def tell(outcome: Outcome) -> None:
    for violation in outcome.violations:
        say(f"  {violation.kind}: {violation.text[:1000]}")
    if outcome.violations:
        say(f"  again: scripts/fuzz.py --seed {outcome.seed}    kept: {outcome.directory}")


def work(seeds: Any, outcomes: Any, directory: Path, env: dict[str, str]) -> None:
    while True:
        seed = seeds.get()
        if seed is None:
            return
        try:
            outcomes.put(run_case(seed, directory, env=env))
        except Exception as error:  # noqa: BLE001 - a case that cannot be judged is a finding about the fuzzer
            outcomes.put((seed, f"{type(error).__name__}: {error}"))


class Crew:
    """Processes that run cases."""

    def __init__(self, directory: Path, workers: int, env: dict[str, str] | None = None) -> None:
        self.seeds: Any = multiprocessing.Queue()
        self.outcomes: Any = multiprocessing.Queue()
        self.workers = [
            multiprocessing.Process(target=work, args=(self.seeds, self.outcomes, directory, env or {}))
            for _ in range(workers)
        ]
        for worker in self.workers:
            worker.start()

    def close(self) -> None:
        while True:
            try:
                self.seeds.get_nowait()
            except queue.Empty:
                break
        for _ in self.workers:
            self.seeds.put(None)
        for worker in self.workers:
            worker.join()


def go_on(directory: Path, workers: int, minutes: float, first: int) -> int:
    began = time.monotonic()
    crew = Crew(directory, workers)
    figures: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    following, under_way = first, 0
    while True:
        while under_way < workers and time.monotonic() - began < minutes * 60:
            crew.seeds.put(following)
            following, under_way = following + 1, under_way + 1
        if not under_way:
            break
        outcome = crew.outcomes.get()
        under_way -= 1
        if isinstance(outcome, tuple):
            say(f"seed {outcome[0]}: the fuzzer itself failed: {outcome[1]}")
            kinds["fuzzer"] += 1
            continue
        figures += outcome.figures
        kinds += Counter({violation.kind for violation in outcome.violations})
        if outcome.violations:
            say(f"seed {outcome.seed}:")
            tell(outcome)
    crew.close()
    took = (time.monotonic() - began) / 60
    say(
        f"{took:.1f} minutes, seeds {first} to {following - 1}: "
        + ", ".join(f"{number} {name}" for name, number in figures.items())
    )
    say("violations by kind: " + (", ".join(f"{kind} {number}" for kind, number in kinds.most_common()) or "none"))
    if not kinds:
        shutil.rmtree(directory, ignore_errors=True)
    return bool(kinds)


def find_mutants(directory: Path, workers: int, most: int, wanted: str) -> int:
    os.environ["FUZZ_PATIENCE"] = "10"  # a planted bug that leaves processes behind is found by waiting for them
    found = 0
    for number, mutant in enumerate(MUTANTS):
        if wanted not in mutant.name:
            continue
        place = directory / f"mutant-{number}"
        place.mkdir(parents=True)
        source = plant(mutant, place)
        crew = Crew(place, workers, {"PYTHONPATH": str(source)})
        seed, cases, killed = 0, 0, None
        for _ in range(workers):
            crew.seeds.put(seed)
            seed += 1
        while cases < most and killed is None:
            outcome = crew.outcomes.get()
            cases += 1
            wrong = isinstance(outcome, Outcome) and outcome.violations
            if wrong and not run_case(outcome.seed, place / "as it is").violations:  # else it is not this bug's doing
                killed = outcome
            elif seed < most:
                crew.seeds.put(seed)
                seed += 1
        crew.close()
        if killed is not None:
            found += 1
            first = killed.violations[0]
            say(f"found     {mutant.name}: seed {killed.seed}, after {cases} cases: {first.kind}: {first.text[:160]}")
        else:
            say(f"SURVIVES  {mutant.name}: {cases} cases")
        shutil.rmtree(place, ignore_errors=True)
    say(f"{found} of {len(MUTANTS)} planted bugs found")
    return found < ENOUGH and not wanted


if __name__ == "__main__":
    sys.exit(main())
