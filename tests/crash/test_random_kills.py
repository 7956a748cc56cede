"""400 items of two steps, eight at once; killed, stopped and terminated at a hundred random moments, twice.

The oracle is the ledger the steps keep, what the outside world was told before each signal, and a census of processes:
after every death nothing of the run is alive, and nobody has to remove a lock.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import Any

import pytest

from tests.crash.conftest import Lab
from tests.crash.figures import figure
from tests.sweeps import SEED, part

ITEMS = part(60, 400)
BLOWS = part(15, 100)  # for each seed
BUSY = 4
KILLED = -signal.SIGKILL
# A run that is just over does not mind signals any more, and is ended by them as any program is.
ENDS = {"kill": (KILLED,), "freeze": (KILLED,), "terminate": (128 + signal.SIGTERM, 0, -signal.SIGTERM)}
DEAD = {str(number) for number in range(ITEMS) if number % 17 == 3}


def acked(told: str) -> set[tuple[str, str]]:
    """The steps of items that the outside world knows to be done."""
    found = set()
    for line in told.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # cut off while it was printed
        if event["event"] == "step-completed" and event.get("item") is not None and "/" in event["step"]:
            found.add((event["step"].removeprefix("m/"), event["item"]))
    return found


@pytest.mark.sweep(1)
@pytest.mark.scenario("A13", "F4", "F16", "H1")
@pytest.mark.parametrize("seed", [str(SEED), str(SEED + 1)])
def test_struck_at_a_hundred_random_moments(lab: Lab, seed: str) -> None:
    result = lab.ask(kind="chaos", seed=seed, items=ITEMS, blows=BLOWS)

    assert result["code"] == 0, result["messages"]
    assert not result["strays"]
    assert len(result["blows"]) >= BLOWS - 20, "it ended before there was much to strike at"
    for blow in result["blows"]:
        assert not blow["left"], f"alive after {blow['blow']}: {blow['left']}"
        over = blow is result["blows"][-1] and blow["refused"] == 0  # there was nothing left to own
        assert blow["refused"] == (BUSY if blow["blow"] == "freeze" and not over else 0), blow
        assert blow["code"] in ENDS[blow["blow"]], blow
    figure("T8", "signals at random moments, nothing lost, nothing alive afterwards", len(result["blows"]))
    check_results(result)
    check_ledger(result)


def check_results(result: dict[str, Any]) -> None:
    """Every item is once in the results or in the dead letter queue."""
    results = [json.loads(line) for line in result["results"].splitlines()]
    dead = {letter["key"]: letter for letter in result["dead"]}
    assert dead.keys() == DEAD
    assert [one["key"] for one in results] == [str(number) for number in range(ITEMS) if str(number) not in DEAD]
    assert all(one["outputs"] == {"n": int(one["key"]), "square": int(one["key"]) ** 2} for one in results)
    # A failure is counted once, however often its item was cut off before.
    assert {len(letter["errors"]) for letter in dead.values()} == {2}


def check_ledger(result: dict[str, Any]) -> None:
    """Nothing that was acknowledged ran again, and attempt numbers are never used twice."""
    # The last line may be half there: whoever wrote it was killed.
    ledger = [line.split() for line in result["ledger"].splitlines(keepends=True) if line.endswith("\n")]
    for blow in result["blows"]:
        known = acked(result["told"][: blow["told"]])
        again = {(step, item) for step, item, _ in ledger[blow["ledger"] :]} & known
        assert not again, f"acknowledged, and ran again: {again}"
    attempts: dict[tuple[str, str], list[int]] = {}
    for step, item, attempt in ledger:
        attempts.setdefault((step, item), []).append(int(attempt))
    for unit, numbers in attempts.items():
        assert numbers == sorted(set(numbers)), f"{unit}: {numbers}"  # never twice, never back
    assert Counter(step for step, _, _ in ledger)["reduce"] >= 1
    assert len(ledger) <= 2 * ITEMS + 1 + len(DEAD) + len(result["blows"]) * 9, "more ran again than was under way"
