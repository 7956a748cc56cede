"""Killed after an item of a map failed for good and before it is recorded that the map has failed with it.

The next life must know it all the same: what failed is tried again, as after a failure that is recorded. The ledger tells what
ran; the journal is read, as text, only to prove that the run was killed at that moment and no other.
"""

from __future__ import annotations

import json
from textwrap import indent
from typing import Any

import pytest

from tests.crash.conftest import Lab

SIGKILLED = -9
MAP = """\
- id: m
  map: {parallel: 1, OPTIONS}
  steps:
    - run: |
        echo ${{ item }} >> "$LEDGER"
        test -e "$LEDGER.ok" || test ${{ item }} != bad
        echo ${{ item }} > "made-${{ item }}.txt"
      artifacts: [{path: "made-${{ item }}.txt", keep: false}]
"""
SEVERAL = MAP.replace("  steps:\n", "  steps:\n    - {id: first, run: 'true'}\n")
IN_A_LOOP = "- id: l\n  loop: {max_iterations: 1}\n  steps:\n" + indent(MAP, "    ")
MAPS = {
    "none may fail": MAP.replace("OPTIONS", "over: [a, bad]"),
    "fewer may fail": MAP.replace("OPTIONS", "over: [a, bad], max_failures: 10%%"),
    "the first that fails stops it": MAP.replace("OPTIONS", "over: [a, bad, c], on_item_failure: stop"),
    "items of several steps": SEVERAL.replace("OPTIONS", "over: [a, bad]"),
    "in a loop": IN_A_LOOP.replace("OPTIONS", "over: [a, bad]"),
}
PIPELINE = """\
env: {LEDGER: "%(ledger)s"}
steps:
"""
AFTER = "- {id: after, run: 'echo after >> \"$LEDGER\"'}\n"


def failures(journal: str) -> list[str]:
    """The items that are recorded as failed, and the map itself."""
    records = [json.loads(line) for line in journal.splitlines() if line.startswith("{")]
    failed = [one for one in records if one["event"] in ("step-failed", "item-failed")]
    last = [one.get("item", "").rpartition("::")[2] for one in failed]
    return ["bad" if one == "bad" else "the map" for one in last]


def moments(lab: Lab, **order: Any) -> list[int]:
    """The calls before which a kill leaves the failure of the item recorded, and not that of the map."""
    low, high = 1, lab.ask(mode="off", resumed=False, **order)["lives"][0]["points"]
    while low < high:  # the journal only grows: the first call before which the failure of the map is recorded
        middle = (low + high) // 2
        if "the map" in failures(lab.ask(mode="kill", at=middle, resumed=False, **order)["journal"]):
            high = middle
        else:
            low = middle + 1
    found = []
    for at in range(low - 1, 0, -1):
        if "bad" not in failures(lab.ask(mode="kill", at=at, resumed=False, **order)["journal"]):
            break
        found.append(at)
    return found


@pytest.mark.scenario("A10")
@pytest.mark.parametrize("kind", MAPS)
def test_what_failed_in_a_map_is_tried_again_though_nobody_was_left_to_record_that_the_map_failed(
    lab: Lab, kind: str
) -> None:
    """An item whose file was lost meanwhile runs again too, and must not hide that another one has failed."""
    order = {"kind": "failure", "text": PIPELINE + indent(MAPS[kind] + AFTER, "  ")}
    found = moments(lab, **order)
    assert found
    for at in found:
        for lost in ([], ["made-a.txt"]):
            result = lab.ask(mode="kill", at=at, resumed=True, lost=lost, **order)
            killed, resumed = result["lives"]
            assert killed["code"] == SIGKILLED, result
            assert set(failures(result["journal"])) == {"bad"}, result

            assert resumed["code"] == 0, result
            before, after = result["ledger"][: killed["ledger"]], result["ledger"][killed["ledger"] :]
            assert before == ["a", "bad"], result
            never = ["c"] if "stops" in kind else []
            assert sorted(after) == sorted([*(["a"] if lost else []), "bad", *never, "after"]), result
