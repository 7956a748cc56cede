"""A real run is killed before every call that changes its state, and half-way through every write.

The oracle is two ledgers outside the state directory: what the steps did, and what the world was told. rerail's own
word is never asked.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.crash.conftest import Lab

PARALLEL = 2
# flaky fails once on purpose; everything else runs once.
EXPECTED_STARTS = {"seed": 1, "left": 1, "right": 1, "flaky": 2, "breaks": 1, "join": 1}
OUTPUTS = {
    "seed": {"n": 7},
    "left": {"side": "left", "list": [1, 2.5, None]},
    "right": {"side": "right"},
    "flaky": {},
    "breaks": {},
    "join": {"total": 14},
    "note": {},
}
STATUSES = dict.fromkeys(OUTPUTS, "completed") | {"breaks": "failed"}
FILES = {"left.txt": "left\n", "right.txt": "right\n", "join.txt": "left\nright\n", "note.txt": "done\n"}
SIGKILLED = -9
FEWEST_POINTS = 100


def check_invariants(result: dict[str, Any], *, kills: int) -> None:
    """What must hold after any death, whatever it was."""
    context = {key: result[key] for key in ("order", "lives", "ledger", "messages", "later_messages")}
    assert result["lives"][-1]["code"] == 0, context
    assert (result["status"], result["statuses"]) == ("completed", STATUSES), context
    assert result["outputs"] == OUTPUTS, context
    assert result["files"] == FILES, context
    starts = Counter(line.split()[0] for line in result["ledger"] if " start " in line)
    for life in result["lives"]:
        later = {line.split()[0] for line in result["ledger"][life["ledger"] :] if " start " in line}
        assert not later & set(life["acked"]), f"acknowledged, and ran again: {context}"
    extra = sum(starts[step] - expected for step, expected in EXPECTED_STARTS.items())
    assert 0 <= extra <= PARALLEL * kills, f"{extra} attempts too many: {context}"
    keys: dict[str, set[str]] = {line.split()[0]: set() for line in result["ledger"]}
    for line in result["ledger"]:
        if " start " in line:
            keys[line.split()[0]].add(line.split()[3])
    assert all(len(found) == 1 for found in keys.values()), f"the idempotency key changed: {context}"
    assert "Traceback" not in result["messages"] + result["later_messages"], context
    assert "internal error" not in result["messages"] + result["later_messages"], context


def every_point(lab: Lab, shard: int, shards: int, **order: Any) -> int:
    """Ask for one experiment per point until the run ends without meeting one; how many points there were."""
    at = 1 + shard
    while True:
        result = lab.ask(at=at, **order)
        met = result["lives"][1 if order.get("before") else 0]
        if met["code"] != SIGKILLED:
            assert met["code"] == 0, result
            return at - 1
        check_invariants(result, kills=2 if order.get("before") else 1)
        at += shards


@pytest.mark.parametrize("shard", [0, 1])
def test_killed_before_any_state_call_then_resumed_equals_never_killed(lab: Lab, shard: int) -> None:
    assert every_point(lab, shard, 2, mode="kill") >= FEWEST_POINTS


def test_killed_half_way_through_any_write_then_resumed_equals_never_killed(lab: Lab) -> None:
    assert every_point(lab, 0, 1, mode="torn") >= FEWEST_POINTS


@pytest.mark.parametrize("before", [30, 40, 50])
def test_killed_while_it_recovers_from_a_kill(lab: Lab, before: int) -> None:
    points = every_point(lab, 0, 1, mode="kill", before={"mode": "kill", "at": before})

    assert points >= 15
