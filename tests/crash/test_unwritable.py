"""Every call that changes state fails, once or from then on: nothing is claimed that is not recorded, nothing is lost.

The reference run goes on or stops with exit code 6; it never reports what it could not record, and once the disk is
well again a resume completes it.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from tests.crash.conftest import Lab
from tests.crash.figures import figure
from tests.crash.test_kill_points import check_invariants, starts
from tests.sweeps import Sample

STATE_ERROR = 6


def check_honest(result: dict[str, Any]) -> None:
    met, *later = result["lives"]
    # A signal-free fault never kills: it is either survived or answered with the exit code for state.
    assert met["code"] in (0, STATE_ERROR), result
    if met["code"] == 0:
        started = result["ledger"][met["ledger"] :]
        assert not started, f"reported complete, and ran on: {result}"
        assert later[0]["code"] == 0, result
    else:
        assert "next:" in result["messages"], result
    check_invariants(result, cuts=1)


def every_point(lab: Lab, first: int, step: int, numbers: Sequence[int], **order: Any) -> tuple[int, int]:
    """One experiment per point, the errors taking turns: how many there were, and after how many the run stopped."""
    at, done, stopped = first, 0, 0
    while True:
        result = lab.ask(at=at, number=numbers[at % len(numbers)], **order)
        check_honest(result)
        stopped += int(result["lives"][0]["code"] == STATE_ERROR)
        points = result["lives"][0]["points"]
        if points is None or points < at:
            return done, stopped
        at, done = at + step, done + 1


@pytest.mark.scenario("C1", "C3", "C5", "C6", "D1", "D3", "D4", "D8", "D9", "D11", "D12")
@pytest.mark.parametrize("shard", range(4))
@pytest.mark.parametrize("mode", ["errno", "errno-forever"])
def test_any_state_call_fails(lab: Lab, mode: str, shard: int, sample: Sample) -> None:
    """Shards and errors have no common divisor, so that neighbouring calls meet different ones."""
    numbers = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EMFILE, errno.EDQUOT, errno.ESTALE)
    done, stopped = every_point(lab, *sample.points(12, shard=shard, shards=4), numbers, mode=mode)
    figure("T2", f"calls of a real process failed {'once' if mode == 'errno' else 'for good'}", done)

    assert stopped > 0 or not sample.whole


@pytest.mark.scenario("D7")
def test_interrupted_calls_are_made_again(lab: Lab, sample: Sample) -> None:
    done, stopped = every_point(lab, *sample.points(6, shards=5), (errno.EINTR,), mode="errno")
    figure("T2", "calls of a real process interrupted", done)

    assert stopped == 0


@pytest.mark.scenario("D1")
@pytest.mark.parametrize("at", [60, 65, 70])
def test_on_error_warn_goes_on_without_a_record_and_still_fails(lab: Lab, at: int) -> None:
    order = {"pipeline": "chain", "top": "checkpoint: {on_error: warn}\n"}
    result = lab.ask(mode="errno-forever", number=errno.EIO, at=at, **order)
    met = result["lives"][0]
    began = {unit for unit, _, _ in starts(result["ledger"][: met["ledger"]])}

    assert met["code"] == STATE_ERROR
    assert began == {"a", "b", "c", "d"}, "it did not go on"
    assert "continuing without a record" in result["messages"]
    # What was not recorded was not acknowledged either, and runs again.
    assert len(met["acked"]) < len(began)
    assert result["lives"][-1]["code"] == 0


@pytest.mark.scenario("C2")
@pytest.mark.parametrize("shard", range(2))
def test_every_write_is_short(lab: Lab, shard: int, sample: Sample) -> None:
    done, stopped = every_point(lab, *sample.points(8, shard=shard, shards=2), (0,), mode="short")
    figure("T2", "short writes of a real process", done)

    assert stopped == 0


@pytest.mark.scenario("D10", "G2")
@pytest.mark.parametrize("at", [40, 55])
def test_a_disk_that_does_not_answer_is_named_and_can_be_left(lab: Lab, at: int) -> None:
    result = lab.ask(kind="hanging", mode="hang", at=at)
    met, after = result["lives"]

    assert met["code"] == 128 + signal.SIGINT, result
    assert "a write to the state has taken" in result["messages"]
    assert "exiting during a write to the state" in result["messages"]
    assert after["code"] == 0, result
