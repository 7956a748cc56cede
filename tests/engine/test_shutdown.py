"""Shutdown in process: signals, budgets of the run, --fail-fast, and final hooks whatever happened."""

from __future__ import annotations

import signal

import pytest

from rerail.core import events as ev
from rerail.core.model import RunOptions
from rerail.engine.signals import Signals
from tests.engine.simulation import FAILS, Script, SimulatedExecutor, Simulation

HOOKED = """
steps:
  - {id: a, run: x, on_failure: [{id: clean, run: x}]}
  - {id: b, needs: [], run: x}
  - {id: c, needs: [b], run: x}
finally: [{id: last, run: x}]
"""


def test_a_signal_stops_what_runs_and_starts_nothing_more() -> None:
    run = Simulation(HOOKED, a=Script(seconds=60), b=Script(seconds=90))
    sent: list[bool] = []

    def interrupt(executor: SimulatedExecutor, signals: Signals) -> None:
        if executor.launched and not sent:
            sent.append(True)
            signals.received.append(signal.SIGINT)

    run.on_wait = interrupt

    result = run.run(RunOptions(parallel=2))

    assert (result.status, result.signal) == ("interrupted", signal.SIGINT)
    assert run.launched == ["a", "b"]
    assert {event.step for event in run.events(ev.StepInterrupted)} == {"a", "b"}
    assert run.run(RunOptions(parallel=2)).status == "completed"
    assert run.launched == ["a", "b", "a", "b", "c", "last"]


def test_final_hooks_run_after_a_failure() -> None:
    run = Simulation(HOOKED, a=FAILS)

    result = run.run()

    assert result.status == "failed"
    assert run.launched == ["a", "b", "clean", "c", "last"]


def test_fail_fast_ends_what_runs_and_still_cleans_up() -> None:
    run = Simulation(HOOKED, a=FAILS, b=Script(seconds=60))

    result = run.run(RunOptions(parallel=2, fail_fast=True))

    assert result.status == "failed"
    assert run.launched == ["a", "b", "clean", "last"]
    assert [event.reason for event in run.events(ev.StepInterrupted)] == ["--fail-fast"]


@pytest.mark.parametrize(("on_exceed", "launched"), [("finish", ["a", "b"]), ("stop", ["a", "b"])])
def test_a_spent_budget_drains_the_run(on_exceed: str, launched: list[str]) -> None:
    run = Simulation(
        f"budget: {{cost_usd: 1, on_exceed: {on_exceed}}}\n" + HOOKED,
        a=Script(metrics={"cost_usd": 1.5}),
        b=Script(seconds=30),
    )

    result = run.run(RunOptions(parallel=2))

    assert (result.status, result.cause) == ("paused", "budget")
    assert run.launched == launched
    assert run.unit("b").status == ("completed" if on_exceed == "finish" else "interrupted")


def test_the_time_limit_of_an_invocation_interrupts_what_runs() -> None:
    run = Simulation(HOOKED, a=Script(seconds=1), b=Script(seconds=500))

    result = run.run(RunOptions(parallel=2, max_runtime=100.0))

    assert (result.status, result.cause) == ("paused", "max-runtime")
    assert run.unit("a").status == "completed"
    assert run.unit("b").status == "interrupted"


@pytest.mark.parametrize("allowed", [False, True])
def test_a_clean_up_runs_although_the_budget_is_spent(*, allowed: bool) -> None:
    text = HOOKED.replace("id: a,", "id: a, allow_failure: true,") if allowed else HOOKED
    run = Simulation("budget: {cost_usd: 1}\n" + text, a=Script(exit_code=1, metrics={"cost_usd": 2.0}))

    result = run.run()

    assert result.status == ("paused" if allowed else "failed")
    assert run.launched == (["a", "clean"] if allowed else ["a", "clean", "last"])
