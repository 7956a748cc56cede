"""Whether a failed attempt is repeated, and when: a function of values, the dice included."""

from __future__ import annotations

import msgspec

from rerail.core.model import Retry


class RetryDecision(msgspec.Struct, frozen=True):
    """`delay` seconds until the next attempt, or None: the unit has failed. `why` is for people."""

    delay: float | None
    why: str


def decide(policy: Retry, failures: int, *, retryable: bool, dice: float) -> RetryDecision:
    """Decide after `failures` failed attempts (the latest included); `dice` is uniform in [0, 1)."""
    if not retryable:
        return RetryDecision(None, "not worth repeating")
    if failures >= policy.attempts:
        return RetryDecision(None, f"all {policy.attempts} attempts failed" if policy.attempts > 1 else "no retry")
    return RetryDecision(backoff(policy, failures, dice), f"attempt {failures + 1} of {policy.attempts}")


def backoff(policy: Retry, failures: int, dice: float) -> float:
    """Seconds to wait after that many failures; jitter spreads them over the upper half."""
    match policy.backoff:
        case "fixed":
            delay = policy.delay
        case "linear":
            delay = policy.delay * failures
        case "exponential":
            # 2 ** 1100 overflows a float; long before that max_delay holds.
            delay = policy.delay * 2.0 ** min(failures - 1, 64)
    delay = min(delay, policy.max_delay)
    return delay * (0.5 + dice / 2) if policy.jitter else delay


def remaining(retry_in: float, seconds_until: float) -> float:
    """What is left of a wait that a crash cut through.

    The deadline is wall-clock time, which may have been set back since: never wait longer than was decided.
    """
    return min(max(seconds_until, 0.0), retry_in)
