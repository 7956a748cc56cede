"""A real run is killed before every call that changes its files, and half-way through every write.

Layer 2 of the laboratory. The run has parallel steps, a retry, an allowed failure, maps with and without artifacts, a
dead letter, a loop, a step that reads them all, and a content store. The oracle is two ledgers outside the state
directory: what the steps did, and what the world was told. rerail's own word is asked for the final state only.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import Any

import pytest

from tests.crash.conftest import Lab
from tests.crash.figures import figure
from tests.sweeps import Sample

SIGKILLED = -9


WIDEST = 3  # attempts at once, at most


FEWEST_POINTS = 250


UNITS = {
    *("seed", "left", "right", "flaky", "breaks", "reduce"),
    *(f"pairs/{step}[{item}]" for step in ("one", "two") for item in ("a", "bad")),
    *("plain[x]", "plain[y y]", "polish/check[1]", "polish/check[2]"),
}


FAILS_ONCE = "flaky"


OUTPUTS = {
    "seed": {"n": 7},
    "left": {"side": "left", "list": [1, 2.5, None]},
    "right": {"side": "right"},
    "flaky": {},
    "breaks": {},
    "reduce": {"total": 14},
    "note": {},
}


FILES = {
    "left.txt": "left\n",
    "right.txt": "right\n",
    "tree/leaf": "leaf\n",
    "made-x.txt": "x\n",
    "made-y y.txt": "y y\n",
    "note.txt": "done\n",
}


RESULTS = [
    {"key": "a", "outputs": {"from": "a", "made": "a"}},
    {"key": "x", "outputs": {"length": 3}},
    {"key": "y y", "outputs": {"length": 5}},
]


def starts(lines: list[str]) -> list[tuple[str, str, str]]:
    """Unit, attempt and idempotency key of every start in the ledger."""
    found = []
    for line in lines:
        unit, _, rest = line.partition(" start ")
        attempt, key = rest.split(" ", 1)
        found.append((unit, attempt, key))
    return found


def check_invariants(result: dict[str, Any], *, cuts: int) -> None:
    """What must hold after any death or disturbance, whatever it was."""
    context = {key: result[key] for key in ("order", "lives", "ledger", "messages", "later_messages")}
    assert result["lives"][-1]["code"] == 0, context
    assert result["status"] == "completed", context
    assert {step for step, status in result["statuses"].items() if status != "completed"} == {"breaks"}, context
    assert {step: result["outputs"][step] for step in OUTPUTS} == OUTPUTS, context
    assert result["dead"] == ["pairs[bad]", "pairs/two[bad]"], context
    check_files(result["files"], context)
    assert not result["strays"], context
    told = result["messages"] + result["later_messages"]
    assert "Traceback" not in told, context
    assert "internal error" not in told, context
    check_ledger(result, cuts, context)


def check_files(files: dict[str, str], context: Any) -> None:
    reduced = files.pop("reduced.txt")
    assert files == FILES, context
    assert reduced, context
    left, right, leaf, *results, rest = reduced.splitlines()
    assert (left, right, leaf) == ("left", "right", "leaf"), context
    assert [json.loads(line) for line in results] == RESULTS, context
    assert json.loads(rest.rsplit(" ", 1)[0]) == {"score": 2, "iterations": 2}, context


def check_ledger(result: dict[str, Any], cuts: int, context: Any) -> None:
    began = starts(result["ledger"])
    counted = Counter(unit for unit, _, _ in began)
    assert set(counted) == UNITS, context
    # What was under way when a life was cut off may have run again, and nothing else; one fails once on purpose.
    assert len(began) <= len(UNITS) + 1 + WIDEST * cuts, (counted, context)
    for life in result["lives"]:
        again = {unit for unit, _, _ in starts(result["ledger"][life["ledger"] :])} & set(life["acked"])
        assert not again, f"acknowledged, and ran again: {again} {context}"
    numbers = Counter((unit, attempt) for unit, attempt, _ in began)
    assert max(numbers.values()) == 1, f"an attempt number was used twice: {numbers} {context}"
    keys = {unit: {key for other, _, key in began if other == unit} for unit in counted}
    assert all(len(found) == 1 for found in keys.values()), f"the idempotency key changed: {context}"


def every_point(lab: Lab, first: int, step: int, **order: Any) -> tuple[int, int]:
    """One experiment per point until the run ends without meeting one: points there were, and experiments done."""
    at, done = first, 0
    while True:
        result = lab.ask(at=at, everywhere=True, **order)
        met = result["lives"][1 if order.get("before") else 0]
        if met["code"] != SIGKILLED:
            assert met["code"] == 0, result
            return at - 1, done
        check_invariants(result, cuts=2 if order.get("before") else 1)
        at, done = at + step, done + 1


@pytest.mark.scenario("A1", "A3", "A4", "A5", "A6", "A7", "A10")
@pytest.mark.parametrize("shard", range(4))
def test_killed_before_any_call_then_resumed_equals_never_killed(lab: Lab, shard: int, sample: Sample) -> None:
    points, done = every_point(lab, *sample.points(12, shard=shard, shards=4), mode="kill")
    figure("T1", "calls of the reference run killed before", done)
    assert points >= FEWEST_POINTS


@pytest.mark.scenario("A2", "B11", "C2")
@pytest.mark.parametrize("shard", range(4))
def test_killed_half_way_through_any_write_then_resumed_equals_never_killed(lab: Lab, shard: int, sample: Sample) -> None:
    points, done = every_point(lab, *sample.points(8, shard=shard, shards=4), mode="torn")
    figure("T1", "writes of it torn by a kill", done)
    assert points >= 60


@pytest.mark.scenario("A8")
def test_killed_while_it_recovers_from_a_kill(lab: Lab, sample: Sample) -> None:
    points, done = every_point(lab, *sample.points(8, shards=3), mode="kill", before={"mode": "kill", "at": 150})
    figure("T1", "calls killed while recovering from a kill", done)
    assert points >= 30


def test_undisturbed(lab: Lab) -> None:
    result = lab.ask(mode="off", everywhere=True)

    check_invariants(result, cuts=0)
    assert len(result["ledger"]) == len(UNITS) + 1


@pytest.mark.scenario("A7")
def test_a_deletion_that_is_cut_off_leaves_a_run_or_none(lab: Lab) -> None:
    """Half of a run looked like one that has hardly begun: resume ran its finished steps again."""
    at = 0
    while True:
        at += 1
        result = lab.ask(kind="deletion", mode="kill", at=at)
        before, met, after = result["lives"]
        again = result["ledger"][met["ledger"] : after["ledger"]]
        if result["there"]:
            assert after["code"] == 0, result
            assert [line.split()[0] for line in again] == ["end"], result  # the one that had failed
        else:
            assert again == [], result
        assert [name for name in result["left"] if name.startswith(".")] == [], result
        if met["code"] == 0:
            break
        assert met["code"] == -signal.SIGKILL, result
        assert before["acked"] == ["one", "tree", "two"], result
    figure("T1", "calls killed while a run is deleted", at - 1)
    assert at > 10
