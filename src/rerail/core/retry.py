"""Whether a failed attempt is repeated, and when: a function of values, the dice included."""

from __future__ import annotations

import re

import msgspec

from rerail.core.model import Retry

# What services say when they are asked too often.
_RATE_LIMIT = re.compile(r"rate.?limit|too many requests|\b429\b|\b529\b|overloaded|quota exceeded", re.IGNORECASE)


class RetryDecision(msgspec.Struct, frozen=True):
    """`delay` seconds until the next attempt, or None: the unit has failed. `why` is for people."""

    delay: float | None
    why: str


class Symptoms(msgspec.Struct, frozen=True, kw_only=True):
    """What a retry policy can look at."""

    type: str = ""
    message: str = ""
    exit_code: int | None = None
    stderr: str = ""
    retryable: bool = True
    matching: frozenset[str] = frozenset()  # the patterns of the policy that were found in message and stderr

    @property
    def text(self) -> str:
        """What patterns are looked for in."""
        return f"{self.message}\n{self.stderr}"


def patterns(policy: Retry) -> tuple[str, ...]:
    """What has to be looked for before a decision; that takes time nobody knows, so it is not done here."""
    return tuple(wanted for wanted in policy.on if isinstance(wanted, str) and wanted not in ("timeout", "rate_limit"))


def decide(policy: Retry, failures: int, symptoms: Symptoms, dice: float) -> RetryDecision:
    """Decide after `failures` failed attempts (the latest included); `dice` is uniform in [0, 1)."""
    if not symptoms.retryable:
        return RetryDecision(None, "not worth repeating")
    if policy.on and not any(_matches(wanted, symptoms) for wanted in policy.on):
        return RetryDecision(None, "not what `retry.on` names")
    if failures >= policy.attempts:
        return RetryDecision(None, f"all {policy.attempts} attempts failed" if policy.attempts > 1 else "no retry")
    return RetryDecision(backoff(policy, failures, dice), f"attempt {failures + 1} of {policy.attempts}")


def _matches(wanted: str | int, symptoms: Symptoms) -> bool:
    if isinstance(wanted, int):
        return symptoms.exit_code == wanted
    if wanted == "timeout":
        return symptoms.type == "Timeout"
    if wanted == "rate_limit":
        return _RATE_LIMIT.search(symptoms.text) is not None
    return wanted in symptoms.matching


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
