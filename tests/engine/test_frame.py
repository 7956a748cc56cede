"""Frames in process: dependencies, early cutoff, maps, loops and nested steps, killed at every attempt."""

from __future__ import annotations

import pytest

from rerail.core.model import RunOptions
from tests.engine.simulation import FAILS, OK, Script, Simulation

NESTED = """
steps:
  - {id: first, run: x}
  - id: m
    needs: [first]
    map:
      over: [1, 2]
      parallel: 2
    steps:
      - {id: s, run: x}
      - id: l
        needs: [s]
        loop: {max_iterations: 2}
        steps: [{id: t, run: x}, {id: u, needs: [t], run: x}]
  - {id: last, needs: [m], run: x}
"""
ALL = {"first", "m/s[1]", "m/s[2]", "last"} | {
    f"m/l/{step}[{item}::{turn}]" for step in "tu" for item in (1, 2) for turn in (1, 2)
}


def test_every_unit_runs_once_in_the_order_of_its_dependencies() -> None:
    run = Simulation(NESTED)

    assert run.run(RunOptions(parallel=2)).status == "completed"

    assert len(run.launched) == len(ALL)
    assert set(run.launched) == ALL
    assert run.launched[0] == "first"
    assert run.launched[-1] == "last"


@pytest.mark.parametrize("unit", sorted(ALL))
def test_a_kill_at_any_unit_repeats_only_what_was_in_flight(unit: str) -> None:
    run = Simulation(NESTED, **{unit.replace("/", "__"): [Script(killed=True), OK]})
    run.kill(options=RunOptions(parallel=2))
    completed = {
        f"{event.step}[{event.item}]" if event.item else event.step
        for event in run.events()
        if type(event).__name__ == "StepCompleted"
    }
    before = len(run.launched)

    assert run.run(RunOptions(parallel=2)).status == "completed"

    assert not completed & set(run.launched[before:])
    assert set(run.launched) == ALL


def test_a_dependency_that_comes_out_the_same_does_not_rerun_its_dependants() -> None:
    text = "steps: [{id: a, run: x}, {id: b, needs: [a], run: x}]"
    run = Simulation(text, a=Script(outputs={"v": 1}))
    run.run()
    run.pipeline = Simulation(text.replace("{id: a, run: x}", "{id: a, run: y}")).pipeline

    assert run.run().status == "completed"

    assert run.launched == ["a", "b", "a"]


def test_a_failed_item_is_retried_by_the_next_invocation_and_the_others_are_not() -> None:
    run = Simulation(
        "steps: [{id: m, map: {over: [1, 2, 3]}, steps: [{id: s, run: x}]}]",
        **{"m[2]": [FAILS, OK]},
    )

    assert run.run().status == "failed"
    assert run.run().status == "completed"

    assert run.launched == ["m[1]", "m[2]", "m[3]", "m[2]"]
