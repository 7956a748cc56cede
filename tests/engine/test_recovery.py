"""Recovery in process: what an invocation does with what the one before left."""

from __future__ import annotations

import pytest

from rerail.core import events as ev
from rerail.core.model import RunOptions
from tests.engine.simulation import FAILS, OK, Script, Simulation

CHAIN = """
steps:
  - {id: a, run: x}
  - {id: b, needs: [a], run: x}
  - {id: c, needs: [b], run: x}
"""
KILL = Script(killed=True)


@pytest.mark.parametrize("step", ["a", "b", "c"])
def test_a_killed_run_goes_on_with_the_step_that_was_in_flight(step: str) -> None:
    run = Simulation(CHAIN, **{step: [KILL, OK]})

    run.kill()
    before = list(run.launched)
    result = run.run()

    assert result.status == "completed"
    assert before + run.launched[len(before) :] == [*"abc"[: "abc".index(step) + 1], *"abc"["abc".index(step) :]]
    assert run.unit(step).attempts == 2
    interrupted = run.events(ev.StepInterrupted)
    assert [event.step for event in interrupted] == [step]


def test_a_completed_run_runs_nothing_again() -> None:
    run = Simulation(CHAIN)

    assert run.run().status == "completed"
    assert run.run().status == "completed"

    assert run.launched == ["a", "b", "c"]


def test_a_step_in_doubt_pauses_the_run_and_what_does_not_need_it_goes_on() -> None:
    run = Simulation(
        """
steps:
  - {id: pay, idempotent: false, run: x}
  - {id: after, needs: [pay], run: x}
  - {id: beside, needs: [], run: x}
""",
        pay=[KILL, OK],
    )

    run.kill()
    result = run.run()

    assert result.status == "paused"
    assert result.waiting_for == ("pay",)
    assert run.launched == ["pay", "beside"]


def test_the_wait_before_a_retry_goes_on_where_it_was() -> None:
    run = Simulation(
        """
steps:
  - {id: a, run: x, retry: {attempts: 3, delay: 100s, max_delay: 10m, backoff: fixed, jitter: false}}
  - {id: b, needs: [], run: x}
""",
        a=[FAILS, OK],
        b=Script(seconds=40, killed=True),
    )
    run.kill()
    run.scripts["b"] = [OK]
    began = run.clock.monotonic()

    result = run.run()

    assert result.status == "completed"
    starts = dict(run.executor.started_at)
    assert starts["a"] - began == pytest.approx(61, abs=1.5)  # 100 s less the time that passed before the kill


def test_a_clean_up_that_was_interrupted_comes_before_the_next_attempt() -> None:
    run = Simulation(
        """
steps:
  - id: a
    run: x
    on_failure: [{id: first, run: x}, {id: second, run: x}]
""",
        a=[FAILS, OK],
        second=[KILL, Script(seconds=10)],
    )

    run.kill()
    result = run.run(RunOptions(parallel=2))

    assert result.status == "completed"
    assert run.launched == ["a", "first", "second", "second", "a"]
    (_, cleaned), (_, again) = run.executor.started_at
    assert again - cleaned >= 10


def test_only_the_rest_of_the_final_hooks_runs_after_a_kill_among_them() -> None:
    run = Simulation(
        """
steps: [{id: a, run: x}]
finally: [{id: f1, run: x}, {id: f2, run: x}, {id: f3, run: x}]
""",
        f2=[KILL, OK],
    )

    run.kill()
    result = run.run()

    assert result.status == "completed"
    assert run.launched == ["a", "f1", "f2", "f2", "f3"]
