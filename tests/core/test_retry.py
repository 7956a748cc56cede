"""Whether a failed attempt is repeated, and when: laws of the decision."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.core.model import RateLimit, Retry, Run, Step
from rerail.core.retry import MAX_LONG_REFUSALS, MAX_REFUSALS, FailureFacts, RetryFacts, backoff, decide, remaining
from rerail.core.retry_after import parse_retry_after
from tests.core.services import NOT_SAID, NOW, SAID

AT = datetime(2026, 1, 1, tzinfo=UTC)


@given(
    st.builds(
        Retry,
        attempts=st.integers(1, 100),
        backoff=st.sampled_from(["fixed", "linear", "exponential"]),
        delay=st.floats(0, 1e6),
        max_delay=st.floats(0, 1e6),
        jitter=st.booleans(),
    ),
    st.integers(1, 2000),
    st.floats(0, 1, exclude_max=True),
    st.booleans(),
)
def test_a_retry_is_bounded_and_ends(policy: Retry, failures: int, random: float, retryable: bool) -> None:
    step = Step(id="a", action=Run(script=""), retry=policy)
    decision = decide(step, FailureFacts(retryable=retryable), RetryFacts(failures=failures, at=AT, random=random))
    if decision.delay is None:
        assert not retryable or failures >= policy.attempts
    else:
        assert retryable
        assert failures < policy.attempts
        assert 0 <= decision.delay <= policy.max_delay


def test_backoff_grows_as_it_says() -> None:
    def delays(kind: Any) -> list[float]:
        return [backoff(Retry(backoff=kind, delay=2, max_delay=9, jitter=False), n, 0.5) for n in (1, 2, 3, 4)]

    assert delays("fixed") == [2, 2, 2, 2]
    assert delays("linear") == [2, 4, 6, 8]
    assert delays("exponential") == [2, 4, 8, 9]
    assert backoff(Retry(delay=8, max_delay=8), 1, 0.0) == 4


@pytest.mark.scenario("K1")
@given(st.floats(0, 1e6), st.floats(-1e9, 1e9))
def test_a_clock_that_jumps_never_makes_a_wait_longer_than_was_decided(retry_in: float, until: float) -> None:
    assert 0 <= remaining(retry_in, until) <= retry_in


POLICIES = st.builds(
    Retry,
    attempts=st.integers(1, 12),
    backoff=st.sampled_from(["fixed", "linear", "exponential"]),
    delay=st.floats(0, 1e4),
    max_delay=st.floats(0, 1e4),
    jitter=st.booleans(),
    on=st.sampled_from([(), ("rate_limit",), ("timeout",), (7,), (127,)]),
)


STEPS = st.builds(
    Step,
    id=st.just("a"),
    action=st.just(Run(script="x")),
    retry=POLICIES,
    idempotent=st.booleans(),
    rate_limit=st.builds(RateLimit, recognised=st.booleans()),
)


SYMPTOMS = st.builds(
    FailureFacts,
    message=st.sampled_from(["exited with code 1", "timed out"]),
    type=st.sampled_from(["ExitCode", "Timeout"]),
    exit_code=st.sampled_from([1, 7, 75, 126, 127, None]),
    stderr=st.sampled_from(["", *(text for text, _, _ in SAID), *NOT_SAID]),
    retryable=st.booleans(),
)


AROUND = st.builds(
    RetryFacts,
    failures=st.integers(1, 20),
    refusals=st.integers(0, 30),
    at=st.just(NOW),
    random=st.floats(0, 1, exclude_max=True),
    over_budget=st.sampled_from(["", "the budget of a is spent"]),
)


@given(STEPS, SYMPTOMS, AROUND)
def test_laws_of_the_decision(step: Step, symptoms: FailureFacts, around: RetryFacts) -> None:
    decision = decide(step, symptoms, around)

    assert decision == decide(step, symptoms, around), "the same question has one answer"
    assert decision.why
    if decision.delay is None:
        assert not decision.refused
        return
    assert symptoms.retryable, "what is not worth repeating is not repeated"
    assert math.isfinite(decision.delay)
    assert decision.delay >= 0
    assert decision.why.startswith("attempt ")
    assert ("once there is budget" in decision.why) == bool(around.over_budget)
    if decision.limit is None:
        assert around.failures < step.retry.attempts, "a policy ends"
        assert decision.delay <= step.retry.max_delay
        assert symptoms.exit_code not in (126, 127) or step.retry.on, "a command that is not there will not come"
        return
    assert step.rate_limit.recognised
    named = step.retry.attempts > 1 and (not step.retry.on or "rate_limit" in step.retry.on)
    assert step.idempotent or named, "nobody said that it may be repeated"
    assert around.refusals < MAX_LONG_REFUSALS, "nobody is asked for ever"
    told = parse_retry_after(symptoms.text, NOW)
    if told is not None:
        assert decision.delay >= (told - NOW).total_seconds(), "not before it may be asked"


def test_a_refusal_in_words() -> None:
    step = Step(id="a", action=Run(script=""), retry=Retry(attempts=4, delay=7, jitter=False))
    refusal = FailureFacts(message="exited with code 1", stderr="429 Too Many Requests")
    around = RetryFacts(failures=1, at=NOW, random=0.5)
    assert decide(step, refusal, around).why == "attempt 2 of 4 in 7 s: rate limit"
    plain = FailureFacts(message="exited with code 3")
    assert decide(step, plain, around).why == "attempt 2 of 4 in 7 s: exited with code 3"
    assert decide(step, plain, RetryFacts(failures=4, at=NOW, random=0.5)).why == "all 4 attempts failed"


def test_without_a_policy_refusals_are_waited_for_ever_longer_and_then_no_more() -> None:
    step, refusal = Step(id="a", action=Run(script="")), FailureFacts(stderr="rate limit exceeded")

    def delay(refusals: int) -> float | None:
        return decide(step, refusal, RetryFacts(failures=1, refusals=refusals, at=NOW, random=0.5)).delay

    waits = [delay(refusals) for refusals in range(MAX_LONG_REFUSALS)]
    assert all(wait is not None for wait in waits[: MAX_LONG_REFUSALS - 1])
    assert [wait for wait in waits[:MAX_REFUSALS] if wait] == sorted(wait for wait in waits[:MAX_REFUSALS] if wait)
    assert (waits[MAX_REFUSALS] or 0) >= 900
    assert delay(MAX_LONG_REFUSALS) is None


def test_a_policy_that_speaks_of_refusals_bounds_them() -> None:
    step = Step(id="a", action=Run(script=""), retry=Retry(attempts=3, on=("rate_limit",)))
    refusal = FailureFacts(stderr="rate limit exceeded")
    decisions = [decide(step, refusal, RetryFacts(failures=1, refusals=n, at=NOW, random=0.5)) for n in range(3)]
    assert [one.delay is None for one in decisions] == [False, False, True]


@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_cannot_be_run_is_not_retried_unless_the_policy_names_it(code: int) -> None:
    def delay(*on: str | int, matching: frozenset[str] = frozenset()) -> float | None:
        step = Step(id="a", action=Run(script=""), retry=Retry(attempts=3, on=on))
        failure = FailureFacts(type="ExitCode", message="exited", exit_code=code, matching=matching)
        return decide(step, failure, RetryFacts(failures=1, at=NOW, random=0.5)).delay

    assert delay() is None
    assert delay("timeout") is None
    assert delay("not found", code) is not None
    assert delay("not found", matching=frozenset({"not found"})) is not None
