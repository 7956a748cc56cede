"""200 items of two steps, eight at once, killed with SIGKILL at thirty random moments.

The oracle is the ledger the steps keep, and what the outside world was told before each kill.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import RERAIL, Project

ITEMS = 200
KILLS = 30
PIPELINE = """
steps:
  - id: m
    map: {over: {lines: list.txt}, parallel: 8, max_failures: 20}
    steps:
      - id: one
        run: |
          echo "one ${{ item }} $RERAIL_ATTEMPT" >> "$LEDGER"
          echo "n=${{ item }}" >> "$RERAIL_OUTPUT"
      - id: two
        retry: {attempts: 2, delay: 0.01}
        run: |
          echo "two ${{ item }} $RERAIL_ATTEMPT" >> "$LEDGER"
          test $(( ${{ item }} % 17 )) != 3
          echo "square=$(( ${{ item }} * ${{ item }} ))" >> "$RERAIL_OUTPUT"
  - id: reduce
    run: |
      echo "reduce 0 $RERAIL_ATTEMPT" >> "$LEDGER"
      cp ${{ steps.m.outputs.results_file }} results.jsonl
"""
DEAD = {str(number) for number in range(ITEMS) if number % 17 == 3}


def acked(told: Path) -> set[tuple[str, str]]:
    """The steps of items that the outside world knows to be done."""
    found = set()
    for line in told.read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # cut off while it was printed
        if event["event"] == "step-completed" and event.get("item") is not None and "/" in event["step"]:
            found.add((event["step"].removeprefix("m/"), event["item"]))
    return found


def lines(project: Project) -> list[list[str]]:
    # The last line may be half there: whoever wrote it was killed.
    return [line.split() for line in project.ledger_file.read_text().splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.parametrize("seed", [os.environ.get("RERAIL_SEED", "1")])
def test_killed_at_thirty_random_moments(project: Project, tmp_path: Path, seed: str) -> None:
    dice = random.Random(seed)
    (project.root / "list.txt").write_text("".join(f"{number}\n" for number in range(ITEMS)))
    project.pipeline(PIPELINE)
    told = tmp_path / "told"
    command = [*RERAIL, "run", "pipeline.yaml", "--id", "r", "--resume", "--json", "-q"]
    kills = 0
    checks: list[tuple[int, set[tuple[str, str]]]] = []
    while True:
        grown = len(lines(project)) + dice.randrange(1, 28) if kills < KILLS else 10**9
        with told.open("a") as out:
            process = subprocess.Popen(
                command, cwd=project.root, env=project.env, stdout=out, stderr=subprocess.DEVNULL, start_new_session=True
            )
        while process.poll() is None and project.ledger_file.read_bytes().count(b"\n") < grown:
            pass
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            checks.append((len(lines(project)), acked(told)))
            continue
        break
    assert process.returncode == 0, project.rerail("show", "r").stdout
    assert kills == KILLS

    results = [json.loads(line) for line in (project.root / "results.jsonl").read_text().splitlines()]
    dead = {letter["key"]: letter for letter in project.json("dlq", "list", "r")}
    assert dead.keys() == DEAD
    assert [one["key"] for one in results] == [str(number) for number in range(ITEMS) if str(number) not in DEAD]
    assert all(one["outputs"] == {"n": int(one["key"]), "square": int(one["key"]) ** 2} for one in results)

    ledger = lines(project)
    for length, known in checks:
        again = {(step, item) for step, item, _ in ledger[length:]} & known
        assert not again, f"acknowledged, and ran again: {again}"
    attempts: dict[tuple[str, str], list[int]] = {}
    for step, item, attempt in ledger:
        attempts.setdefault((step, item), []).append(int(attempt))
    for unit, numbers in attempts.items():
        assert numbers == sorted(set(numbers)), f"{unit}: {numbers}"  # never twice, never back
    counted = Counter(step for step, _, _ in ledger)
    assert counted["reduce"] >= 1
    assert len(ledger) <= 2 * ITEMS + 1 + len(DEAD) + KILLS * 9, "more ran again than was under way"
    # A failure is counted once, however often its item was cut off before.
    for key, letter in dead.items():
        assert len(letter["errors"]) == 2, (key, attempts["two", key])
