"""Killed before every call that changes state while maps and loops are under way.

Every item is once in the results or in the dead letter queue, what was acknowledged never runs again, and whoever comes
after sees all of it. The ledger is kept by the steps.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.crash.conftest import Lab

SIGKILLED = -9
ORDER = {"pipeline": "items"}
REDUCED = [
    {"key": "a", "outputs": {"from": "a", "made": "a"}},
    {"key": "c", "outputs": {"from": "c", "made": "c"}},
    {"key": "x", "outputs": {"length": 3}},
    {"key": "y y", "outputs": {"length": 5}},
]
UNITS = {
    *(f"pairs/{step}[{item}]" for step in ("one", "two") for item in ("a", "bad", "c")),
    "plain[x]",
    "plain[y y]",
    *(f"polish/{step}[{iteration}]" for step in ("edit", "check") for iteration in (1, 2)),
    "reduce",
}


def starts(lines: list[str]) -> list[str]:
    return [line.split(" start ")[0] for line in lines if " start " in line]


def check(result: dict[str, Any]) -> None:
    context = {key: result[key] for key in ("order", "lives", "ledger", "messages", "later_messages")}
    assert result["lives"][-1]["code"] == 0, context
    assert set(result["statuses"].values()) == {"completed"}, (result["statuses"], context)
    assert "pairs[bad]" in result["dead"], context
    assert result["files"]["made-x.txt"] == "x\n", context
    assert result["files"]["made-y y.txt"] == "y y\n", context
    *results, rest = result["files"]["reduced.txt"].splitlines()
    assert [json.loads(line) for line in results] == REDUCED, context
    assert json.loads(rest.rsplit(" ", 1)[0]) == {"before": 1, "score": 2, "iterations": 2}, context
    assert "internal error" not in result["messages"] + result["later_messages"], context
    counted = Counter(starts(result["ledger"]))
    assert set(counted) == UNITS, context
    # One life was cut off: what ran in it then may have run again, and nothing else.
    assert sum(counted.values()) <= len(UNITS) + 3, (counted, context)
    for life in result["lives"]:
        again = set(starts(result["ledger"][life["ledger"] :])) & set(life["acked"])
        assert not again, f"acknowledged, and ran again: {again} {context}"
    attempts = [(line.split(" start ")[0], line.split(" start ")[1].split()[0]) for line in result["ledger"]]
    numbers = Counter(attempts)
    assert max(numbers.values()) == 1, ("an attempt number was used twice", numbers, context)


def every_point(lab: Lab, first: int, step: int, mode: str) -> int:
    at = first
    while True:
        result = lab.ask(mode=mode, at=at, **ORDER)
        if result["lives"][0]["code"] != SIGKILLED:
            assert result["lives"][0]["code"] == 0, result
            return at - 1
        check(result)
        at += step


@pytest.mark.parametrize("shard", range(4))
def test_killed_anywhere(lab: Lab, shard: int) -> None:
    assert every_point(lab, 1 + shard, 4, "kill") >= 100


def test_killed_in_the_middle_of_a_write(lab: Lab) -> None:
    assert every_point(lab, 1, 5, "torn") >= 100


def test_undisturbed(lab: Lab) -> None:
    result = lab.ask(mode="off", **ORDER)

    check(result)
    assert len(starts(result["ledger"])) == len(UNITS)
