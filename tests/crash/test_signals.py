"""A stop signal at any call of a save never tears it: the run is interrupted, whole, and goes on."""

from __future__ import annotations

import signal

import pytest

from tests.crash.conftest import Lab
from tests.crash.test_kill_points import check_invariants


@pytest.mark.scenario("G1", "G3")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_state_call(lab: Lab, number: signal.Signals) -> None:
    at, interrupted = 1 if number == signal.SIGINT else 3, 0
    while True:
        result = lab.ask(mode="signal", at=at, number=int(number))
        met = result["lives"][0]
        # Before the run takes signals over, they end it as they end any program.
        assert met["code"] in (0, 128 + number, -number), result
        check_invariants(result, cuts=1)
        interrupted += int(met["code"] == 128 + number)
        if met["code"] == 0 and (met["points"] or 0) < at:
            break
        at += 9
    assert interrupted > 5
