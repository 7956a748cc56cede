"""The retry rule: whether a failed attempt is repeated, when, and why. The random number and the clock are arguments.

There are two reasons to repeat: the step's policy says so, or a service refused for a while. A refusal is not a failure
of the step: the count is how often in a row no attempt of the step got through.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from rerail.core.model import Refusal, Retry, Step

MAX_REFUSALS: Final = 10  # in a row, with ever longer waits; after that each wait is LONG_WAIT
MAX_LONG_REFUSALS: Final = 20  # in a row; after that a refusal is a failure like any other
LONG_WAIT: Final = 900.0  # seconds, where the service did not say how long
PERMANENT: Final = (126, 127)  # exit codes of shells: a command that cannot be executed, and one that is not there
MAX_SPREAD: Final = 10.0  # seconds over which units that wait for the same moment are spread


class RateLimitHit(msgspec.Struct, frozen=True):
    """Refusal by a service, and when it may be asked again, if it said so."""

    name: Refusal
    until: datetime | None = None


class RetryDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Decision after a failed attempt: `delay` seconds until the next one, or None if the unit has failed.

    `why` is for people.
    """

    delay: float | None
    why: str
    limit: RateLimitHit | None = None  # of the service that the unit waits for, or has waited for too often

    @property
    def refused(self) -> str:
        """Kind of refusal, if the service is asked again; else ''."""
        return self.limit.name if self.limit is not None and self.delay is not None else ""


class FailureFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a failed attempt."""

    type: str = ""
    message: str = ""
    exit_code: int | None = None
    stderr: str = ""
    retryable: bool = True
    matching: frozenset[str] = frozenset()  # the step's patterns that match message or stderr

    @property
    def text(self) -> str:
        """Text that patterns are searched for in: message and stderr."""
        return f"{self.message}\n{self.stderr}"


class RetryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a decision depends on besides the attempt itself."""

    failures: int  # failed attempts by now, the latest included, refusals not
    at: datetime  # the present, in the zone of this machine
    random: float  # uniform in [0, 1)
    refusals: int = 0  # in a row before this one, without an attempt of the step that got through
    over_budget: str = ""  # why nothing more may be spent on it, or ''
    attempts: int = 0  # of this very unit, ever


def patterns(step: Step) -> tuple[str, ...]:
    """Return the patterns to search for before a decision; the search takes unbounded time, so it is not done here."""
    conditions = (*step.retry.on, *step.rate_limit.on)
    return tuple(
        condition for condition in conditions if isinstance(condition, str) and condition not in ("timeout", "rate_limit")
    )


def decide(step: Step, failure: FailureFacts, facts: RetryFacts) -> RetryDecision:
    """Decide after a failed attempt whether and when it is repeated."""
    policy = step.retry
    if not failure.retryable:
        return RetryDecision(delay=None, why="not retryable")
    limit = limit_of(step, failure, facts.at)
    if limit is not None and _may_wait(step):
        return _after_refusal(step, limit, facts)
    if failure.exit_code in PERMANENT and not policy.on:
        return RetryDecision(delay=None, why="not a command that can be run")
    if policy.on and not any(_matches(condition, failure, limit) for condition in policy.on):
        return RetryDecision(delay=None, why="not listed in `retry.on`")
    if facts.failures >= policy.attempts:
        why = f"all {policy.attempts} attempts failed" if policy.attempts > 1 else "no retry"
        return RetryDecision(delay=None, why=why)
    delay = backoff(policy, facts.failures, facts.random)
    reason = limit.name if limit else failure.message.partition("\n")[0][:200] or "it failed"
    return RetryDecision(delay=delay, why=_words(facts.failures, policy, delay, reason, facts))


def _after_refusal(step: Step, limit: RateLimitHit, facts: RetryFacts) -> RetryDecision:
    """Decide after a refusal: a policy about refusals bounds them; without one they are waited for, up to a limit."""
    policy, past = step.retry, facts.failures + facts.refusals
    most = policy.attempts if _speaks_of_refusals(policy) else MAX_LONG_REFUSALS
    if past >= most:
        return RetryDecision(delay=None, why=f"refused {past} times in a row: {limit.name}", limit=limit)
    delay = _until(limit, policy, facts)
    return RetryDecision(delay=delay, why=_words(past, policy, delay, limit.name, facts), limit=limit)


def limit_of(step: Step, failure: FailureFacts, at: datetime) -> RateLimitHit | None:
    """Return the refusal by a service, if that is why the attempt failed."""
    if not step.rate_limit.recognised or step.is_controller:  # refusals inside it were handled there
        return None
    from rerail.core.rate_limits import classify  # many patterns, which most runs never need
    from rerail.core.retry_after import parse_retry_after

    text = failure.text
    own = any(_matches(condition, failure, None) for condition in step.rate_limit.on)
    name = classify(text, failure.type, failure.exit_code) or ("rate limit" if own else None)
    return RateLimitHit(name, parse_retry_after(text, at)) if name else None


def _may_wait(step: Step) -> bool:
    """Return whether a refused attempt may be repeated without a policy: only if the step is idempotent."""
    return step.idempotent or _speaks_of_refusals(step.retry)


def _speaks_of_refusals(policy: Retry) -> bool:
    return policy.attempts > 1 and (not policy.on or "rate_limit" in policy.on)


def _until(limit: RateLimitHit, policy: Retry, facts: RetryFacts) -> float:
    """Return the seconds to wait after a refusal: as long as the service said, or longer and longer."""
    if limit.until is not None:
        seconds = (limit.until - facts.at).total_seconds()
        return max(
            seconds + facts.random * min(seconds / 10, MAX_SPREAD), backoff(policy, facts.refusals + 1, facts.random)
        )
    if limit.name == "quota" or facts.refusals >= MAX_REFUSALS:
        return LONG_WAIT * (1 + facts.random / 10)
    return backoff(policy, facts.refusals + 1, facts.random)


def _words(past: int, policy: Retry, delay: float, reason: str, facts: RetryFacts) -> str:
    when = f"in {_seconds(delay)}"
    if facts.over_budget:
        when, reason = "once there is budget", f"{reason}; {facts.over_budget}"
    if past < policy.attempts:
        return f"attempt {past + 1} of {policy.attempts} {when}: {reason}"
    return f"attempt {(facts.attempts or past) + 1} {when}: {reason}"  # beyond the policy only refusals are repeated


def _seconds(delay: float) -> str:
    if delay < 1:
        return f"{delay:.1f} s"
    if delay < 120:
        return f"{delay:.0f} s"
    return f"{delay / 60:.0f} min" if delay < 7200 else f"{delay / 3600:.1f} h"


def _matches(condition: str | int, failure: FailureFacts, limit: RateLimitHit | None) -> bool:
    if isinstance(condition, int):
        return failure.exit_code == condition
    if condition == "timeout":
        return failure.type == "Timeout"
    if condition == "rate_limit":
        return limit is not None
    return condition in failure.matching


def backoff(policy: Retry, failures: int, random: float) -> float:
    """Return the seconds to wait after that many failures; jitter spreads them over the upper half."""
    match policy.backoff:
        case "fixed":
            delay = policy.delay
        case "linear":
            delay = policy.delay * failures
        case "exponential":
            # 2 ** 1100 overflows a float; long before that max_delay holds.
            delay = policy.delay * 2.0 ** min(failures - 1, 64)
    delay = min(delay, policy.max_delay)
    return delay * (0.5 + random / 2) if policy.jitter else delay


def remaining(retry_in: float, seconds_until: float) -> float:
    """Return the rest of a wait that a crash interrupted.

    The deadline is wall-clock time, which may have been set back since: never wait longer than was decided.
    """
    return min(max(seconds_until, 0.0), retry_in)
