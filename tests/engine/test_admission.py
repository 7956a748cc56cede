"""Admission in process: throttles, budgets of steps, and what a run waits for when nothing else is left."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rerail.core import events as ev
from rerail.core.model import RunOptions
from tests.engine.simulation import OK, Script, Simulation

LIMITED = Script(exit_code=1, message="429 Too Many Requests", stderr="429 Too Many Requests\nRetry-After: 30\n")
MANY = """
steps:
  - id: m
    map:
      over: [1, 2, 3, 4, 5, 6, 7, 8]
      parallel: 4
    steps: [{id: s, run: x}]
"""


def test_one_refusal_closes_the_step_for_all_of_its_items() -> None:
    run = Simulation(MANY, **{"m[1]": [LIMITED, OK]})

    result = run.run(RunOptions(parallel=4))

    assert result.status == "completed"
    refused = next(event for event in run.events(ev.StepFailed) if event.refused)
    closed = (refused.at, refused.at + timedelta(seconds=29))
    assert not [event for event in run.events(ev.StepStarted) if event.item and closed[0] < event.at < closed[1]]
    assert sorted(set(run.launched)) == [f"m[{number}]" for number in range(1, 9)]
    assert len(run.launched) == 9  # only the refused one twice


def test_after_a_refusal_one_attempt_tries_before_others_follow() -> None:
    run = Simulation(MANY, m=[*[LIMITED] * 4, Script(seconds=20)])

    assert run.run(RunOptions(parallel=4)).status == "completed"

    later = [at for _, at in run.executor.started_at][4:]
    assert later[1] - later[0] >= 20  # the first had to get through
    assert run.executor.most_in_flight == 4


def test_a_long_quota_pauses_the_run_until_then_and_the_next_invocation_knows_it() -> None:
    run = Simulation("steps: [{id: a, run: x, rate_limit: {pause_after: 10s}}]", a=[LIMITED, OK])

    result = run.run()

    assert (result.status, result.cause) == ("paused", "quota")
    assert result.until is not None
    assert run.launched == ["a"]

    again = run.run()  # at once: the quota is still used up
    assert (again.status, again.until, run.launched) == ("paused", result.until, ["a"])

    run.clock.advance(31)
    assert run.run().status == "completed"
    assert run.launched == ["a", "a"]


def test_a_machine_that_slept_does_not_wait_for_what_is_over() -> None:
    run = Simulation("steps: [{id: a, run: x, rate_limit: {pause_after: 1h}}]", a=[LIMITED, OK])
    slept: list[float] = []

    def sleep(*_: object) -> None:
        if len(run.executor.launched) == 1 and run.events(ev.StepFailed) and not slept:
            slept.append(run.clock.monotonic())
            run.clock.set_wall_clock(run.clock.now() + timedelta(hours=1))

    run.on_wait = sleep
    assert run.run().status == "completed"
    (began, again) = [at for _, at in run.executor.started_at]
    assert again - slept[0] < 30
    assert began < slept[0]


def test_a_spent_budget_of_a_step_blocks_that_step_alone() -> None:
    run = Simulation(
        """
steps:
  - id: m
    budget: {cost_usd: 2}
    map: {over: [1, 2, 3, 4], parallel: 1}
    steps: [{id: s, run: x}]
  - {id: beside, needs: [], run: x}
""",
        m=Script(metrics={"cost_usd": 1.0}),
    )

    result = run.run()

    assert (result.status, result.cause) == ("paused", "budget")
    assert run.launched.count("beside") == 1
    assert [unit for unit in run.launched if unit != "beside"] == ["m[1]", "m[2]"]
    again = run.run()
    assert again.status == "paused"  # what was spent is not forgotten
    assert len(run.launched) == 3


def test_the_budget_of_an_item_holds_no_other_item_back() -> None:
    run = Simulation(
        """
steps:
  - id: m
    map:
      over: [1, 2]
      item_budget: {cost_usd: 1}
    steps: [{id: s, run: x}, {id: t, needs: [s], run: x}]
""",
        **{"m/s[1]": Script(metrics={"cost_usd": 5.0})},
    )

    result = run.run()

    assert (result.status, result.cause) == ("paused", "budget")
    assert "m/t[2]" in run.launched
    assert "m/t[1]" not in run.launched


@pytest.mark.parametrize("width", [1, 2, 3])
def test_no_more_attempts_run_at_once_than_the_run_allows(width: int) -> None:
    steps = ", ".join(f"{{id: s{number}, needs: [], run: x}}" for number in range(6))
    run = Simulation(f"steps: [{steps}]")

    assert run.run(RunOptions(parallel=width)).status == "completed"

    assert run.executor.most_in_flight == width
