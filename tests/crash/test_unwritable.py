"""Every call that changes state fails, once or from then on: nothing is claimed that is not recorded, nothing is lost.

The reference run goes on or stops with exit code 6; it never reports what it could not record, and once the disk is
well again a resume completes it.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.crash.conftest import Lab
from tests.crash.test_kill_points import EXPECTED_STARTS, check_invariants

STATE_ERROR = 6


def check_honest(result: dict[str, Any]) -> None:
    met, *later = result["lives"]
    # A signal-free fault never kills: it is either survived or answered with the exit code for state.
    assert met["code"] in (0, STATE_ERROR), result
    if met["code"] == 0:
        started = [line for line in result["ledger"][met["ledger"] :] if " start " in line]
        assert not started, f"reported complete, and ran on: {result}"
        assert later[0]["code"] == 0, result
    else:
        assert "next:" in result["messages"], result
    check_invariants(result, kills=1)


def every_point(lab: Lab, shard: int, shards: int, **order: Any) -> int:
    at = 1 + shard
    stopped = 0
    while True:
        result = lab.ask(at=at, **order)
        check_honest(result)
        stopped += int(result["lives"][0]["code"] == STATE_ERROR)
        points = result["lives"][0]["points"]
        if points is None or points < at:
            return stopped
        at += shards


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("mode", ["errno", "errno-forever"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_any_state_call_fails(lab: Lab, mode: str, number: int, shard: int) -> None:
    stopped = every_point(lab, shard, 2, mode=mode, number=number)

    assert stopped > 0


@pytest.mark.parametrize("number", [errno.EROFS, errno.EMFILE, errno.EACCES, errno.EDQUOT])
def test_state_becomes_unwritable_for_other_reasons(lab: Lab, number: int) -> None:
    stopped = every_point(lab, 0, 7, mode="errno-forever", number=number)

    assert stopped > 0


@pytest.mark.parametrize("at", [30, 38, 46])
def test_on_error_warn_goes_on_without_a_record_and_still_fails(lab: Lab, at: int) -> None:
    result = lab.ask(mode="errno-forever", number=errno.EIO, at=at, top="checkpoint: {on_error: warn}\n")
    met = result["lives"][0]
    starts = {line.split()[0] for line in result["ledger"][: met["ledger"]] if " start " in line}

    assert met["code"] == STATE_ERROR
    assert starts == set(EXPECTED_STARTS), "it did not go on"
    assert "going on without a record" in result["messages"]
    # What was not recorded was not acknowledged either, and runs again.
    assert len(met["acked"]) < len(EXPECTED_STARTS)
    assert result["lives"][-1]["code"] == 0


def test_every_write_is_short(lab: Lab) -> None:
    stopped = every_point(lab, 0, 1, mode="short")

    assert stopped == 0
