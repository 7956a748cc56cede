"""120 items of two steps, eight at once; killed, stopped and terminated at a hundred random moments, twice.

The oracle is the ledger the steps keep, what the outside world was told before each signal, and a census of processes:
after every death nothing of the run is alive, and nobody has to remove a lock.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import RERAIL, Project, eventually
from tests.crash.figures import figure

BUSY = 4

ITEMS = 120
BLOWS = 100  # for each seed
KILLED, TERMINATED, FROZEN = 6, 2, 2  # how often each is dealt
PIPELINE = """
steps:
  - id: m
    map: {over: {lines: list.txt}, parallel: 8, max_failures: 20}
    steps:
      - id: one
        run: |
          sleep 60.0625 &
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


def census(project: Project) -> list[str]:
    """The processes that have our ledger in their environment: everything that any life of this run ever started."""
    wanted = f"LEDGER={project.ledger_file}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                environment = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
                state = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[0]
                command = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                watchdog = (
                    "rerail run" in command
                )  # a fork of what we have waited for, that ends the others and then itself
                if wanted in environment and state != "Z" and not watchdog:
                    found.append(command)
            except OSError:
                continue  # gone meanwhile
    return found


def strike(process: subprocess.Popen[bytes], blow: str, command: list[str], project: Project) -> int:
    """End a life one way or another; its exit code."""
    if blow == "freeze":
        # Whoever is stopped still owns the run: nobody else gets it, and nothing is lost if it never goes on.
        process.send_signal(signal.SIGSTOP)
        other = subprocess.run(command, cwd=project.root, env=project.env, capture_output=True, text=True)
        assert other.returncode == BUSY, other.stderr
        process.kill()
    elif blow == "terminate":
        process.terminate()
    else:
        process.kill()
    return process.wait()


@pytest.mark.scenario("A13", "F16")
@pytest.mark.parametrize("seed", os.environ.get("RERAIL_SEED", "1 2").split())
def test_struck_at_a_hundred_random_moments(project: Project, tmp_path: Path, seed: str) -> None:
    dice = random.Random(seed)
    (project.root / "list.txt").write_text("".join(f"{number}\n" for number in range(ITEMS)))
    project.pipeline(PIPELINE)
    told = tmp_path / "told"
    command = [*RERAIL, "run", "pipeline.yaml", "--id", "r", "--resume", "--json", "-q"]
    blows = 0
    checks: list[tuple[int, set[tuple[str, str]]]] = []
    while True:
        grown = len(lines(project)) + dice.randrange(1, 5) if blows < BLOWS else 10**9
        with told.open("a") as out:
            process = subprocess.Popen(
                command, cwd=project.root, env=project.env, stdout=out, stderr=subprocess.DEVNULL, start_new_session=True
            )
        while process.poll() is None and project.ledger_file.read_bytes().count(b"\n") < grown:
            time.sleep(0.001)
        if process.poll() is not None:
            break
        blow = dice.choices(["kill", "terminate", "freeze"], [KILLED, TERMINATED, FROZEN])[0]
        code = strike(process, blow, command, project)
        assert code in ((143, 0) if blow == "terminate" else (-signal.SIGKILL,)), (blow, code)
        blows += 1
        if code == 0:  # it was at its end when it was told to stop
            break
        checks.append((len(lines(project)), acked(told)))
        eventually(lambda: not census(project), f"everything of the run is gone after {blow}")
    assert process.returncode == 0, project.rerail("show", "r").stdout
    assert blows >= BLOWS - 20, "it ended before there was much to strike at"
    figure("T8", "signals at random moments, nothing lost, nothing alive afterwards", blows)
    assert not list(project.run_dir("r").rglob("*.rerail-tmp"))

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
    assert len(ledger) <= 2 * ITEMS + 1 + len(DEAD) + blows * 9, "more ran again than was under way"
    # A failure is counted once, however often its item was cut off before.
    for key, letter in dead.items():
        assert len(letter["errors"]) == 2, (key, attempts["two", key])
