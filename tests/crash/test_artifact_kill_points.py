"""Killed before every call that seals, stores, moves aside or restores an artifact: no claim without data, nothing lost.

The oracle is the ledger, the files themselves, and what a person had written into one of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.crash.conftest import Lab
from tests.crash.figures import figure
from tests.crash.lab import EDITED
from tests.sweeps import Sample

SIGKILLED = -9
FILES = {
    "a/one.txt": "first\n",
    "t/x": "x\n",
    "t/y/z": "z\n",
    "t/link": "x\n",
    "two.txt": "first\nx\n",
    "end.txt": "first\nx\nz\n",
}
KEPT = FILES | {"a/one.txt": EDITED, "two.txt": EDITED + "x\n", "end.txt": EDITED + "x\nz\n"}
ORDER = {"pipeline": "artifacts", "everywhere": True}


def starts(result: dict[str, Any]) -> Counter[str]:
    return Counter(line.split()[0] for line in result["ledger"] if " start " in line)


def check(result: dict[str, Any]) -> None:
    context = {key: result[key] for key in ("order", "lives", "ledger", "messages", "later_messages")}
    assert result["lives"][-1]["code"] == 0, context
    assert set(result["statuses"].values()) == {"completed"}, context
    assert result["files"] == FILES, context
    assert not result["strays"], context
    assert "Traceback" not in result["messages"] + result["later_messages"], context
    assert "internal error" not in result["messages"] + result["later_messages"], context


def every_point(lab: Lab, first: int, step: int, mode: str, **order: Any) -> tuple[int, list[dict[str, Any]]]:
    at = first
    found: list[dict[str, Any]] = []
    while True:
        result = lab.ask(mode=mode, at=at, **ORDER, **order)
        met = result["lives"][1 if order.get("damage") else 0]
        if met["code"] != SIGKILLED:
            assert met["code"] == 0, result
            return at - 1, found
        check(result)
        found.append(result)
        at += step


@pytest.mark.scenario("A3")
@pytest.mark.parametrize("mode", ["kill", "torn"])
def test_killed_anywhere_while_artifacts_are_moved_aside_and_restored(lab: Lab, mode: str, sample: Sample) -> None:
    points, results = every_point(lab, *sample.points(8), mode, damage=True)
    figure("T1", "calls killed while artifacts are restored", len(results))

    assert points >= (60 if mode == "kill" else 12)
    for result in results:
        assert EDITED in result["aside"], f"what a person wrote is lost: {result}"
        counted = starts(result)
        assert (counted["one"], counted["tree"]) == (1, 1), result  # restored, not run again
        assert 2 <= counted["two"] <= 3, result  # no copy was kept: run again, once more at most


@pytest.mark.scenario("A3")
@pytest.mark.parametrize("mode", ["kill", "torn"])
def test_killed_anywhere_while_an_edited_artifact_is_accepted(lab: Lab, mode: str, sample: Sample) -> None:
    """Accepted or not, never half: the edit stands, what depends on it was made of it, and nothing of it is lost."""
    at, step = sample.points(8)
    while True:
        result = lab.ask(mode=mode, at=at, damage=True, keep=True, **ORDER)
        met = result["lives"][1]
        context = {key: result[key] for key in ("lives", "ledger", "messages", "later_messages")}
        assert result["lives"][-1]["code"] == 0, context
        assert set(result["statuses"].values()) == {"completed"}, context
        assert result["files"] == KEPT, context
        assert not result["strays"], context
        assert starts(result)["one"] == 1, context
        if met["code"] != SIGKILLED:
            break
        at += step


@pytest.mark.scenario("C1", "D11")
@pytest.mark.parametrize("mode", ["errno", "errno-forever"])
def test_a_disk_that_fails_while_artifacts_are_sealed_claims_nothing(lab: Lab, mode: str, sample: Sample) -> None:
    """Every third call fails with EIO or ENOSPC; whatever comes of it, the run can be finished with the right files."""
    at, step = sample.points(6, shard=1, shards=3)
    while True:
        number = 5 if at % 2 else 28
        result = lab.ask(mode=mode, at=at, number=number, **ORDER)
        check(result)
        if result["lives"][0]["points"] is not None and result["lives"][0]["points"] < at:
            break
        at += step
    assert at > 90
