"""When to try again, and why: laws of the decision, what services say, and gates."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.adapters.clock import LocalZone
from rerail.core.model import RateLimit, Retry, Run, Step
from rerail.core.rate_limits import classify
from rerail.core.retry import MAX_LONG_REFUSALS, MAX_REFUSALS, FailureFacts, RetryFacts, decide
from rerail.core.retry_after import MAX_AHEAD, parse_retry_after
from rerail.engine.throttle import Throttle
from tests.core.services import NOT_SAID, NOW, SAID


@pytest.mark.parametrize(("text", "kind", "seconds"), SAID, ids=[text[:40] for text, _, _ in SAID])
def test_what_services_say_is_understood(text: str, kind: str, seconds: float | None) -> None:
    assert classify(text, "", 1) == kind
    until = parse_retry_after(text, NOW)
    assert (until and (until - NOW).total_seconds()) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("text", NOT_SAID)
def test_what_only_looks_like_it_is_none(text: str) -> None:
    assert classify(text, "ExitCode", 1) is None


def test_an_exit_code_and_an_exception_say_it_too() -> None:
    assert classify("", "", 75) == "rate limit"
    assert classify("", "RateLimitError", None) == "rate limit"


@pytest.mark.parametrize("word", ["again", "retry", "retry-after", "wait", "resets", "until", "hit", "exceed", "http"])
@pytest.mark.parametrize("filler", [" ", "1", "\t", "1m", " a", "reset", "hit", "\n", "429"])
def test_nothing_takes_long_however_long_it_is(word: str, filler: str) -> None:
    """What grows faster than its text does not come to an end here."""
    text = word + filler * 200_000
    assert classify(text, "", 1) in (None, "rate limit")
    until = parse_retry_after(text, NOW)
    assert until is None or until > NOW


@given(st.text(max_size=300), st.timedeltas(timedelta(0), timedelta(days=1)), st.integers(-12, 12))
def test_a_told_time_is_ahead_and_not_too_far(text: str, later: timedelta, zone: int) -> None:
    at = (NOW + later).astimezone(timezone(timedelta(hours=zone)))
    for said in (text, f"try again in {text}", f"resets at {text}", f"retry-after: {text}"):
        until = parse_retry_after(said, at)
        assert until is None or at <= until <= at + MAX_AHEAD


# Where it is, the time there (the first of two, or the second), what is said, and the moment that is meant, in UTC.
# Daylight saving time ends in Berlin on 25 October 2026 at 03:00, and begins in New York on 14 March 2027 at 02:00 and on
# Lord Howe Island, by half an hour, on 4 October 2026 at 02:00.
CHANGES = [
    ("Europe/Berlin", "2026-10-24 20:00", 0, "resets 8am", "2026-10-25 07:00"),
    ("Europe/Berlin", "2026-10-24 20:00", 0, "resets tomorrow at 8am", "2026-10-25 07:00"),
    ("Europe/Berlin", "2026-10-24 20:00", 0, "resets Sunday at 8am", "2026-10-25 07:00"),
    ("Europe/Berlin", "2026-10-24 20:00", 0, "resets Oct 25, 8am", "2026-10-25 07:00"),
    ("Europe/Berlin", "2026-10-24 20:00", 0, "try again in 12 hours", "2026-10-25 06:00"),
    ("Europe/Berlin", "2026-10-24 20:00", 0, "retry-after: 43200", "2026-10-25 06:00"),
    ("UTC", "2026-10-24 18:00", 0, "resets 8am (Europe/Berlin)", "2026-10-25 07:00"),
    ("Europe/Berlin", "2026-10-25 02:50", 0, "resets 2:30am", "2026-10-25 01:30"),  # the second one, in 40 minutes
    ("Europe/Berlin", "2026-10-25 02:10", 1, "resets 2:30am", "2026-10-25 01:30"),
    ("Europe/Berlin", "2026-10-25 02:55", 0, "resets 2:05am", "2026-10-25 01:05"),  # on the wall that is over for long
    ("Europe/Berlin", "2026-10-25 02:05", 1, "resets 2:55am", "2026-10-25 01:55"),
    ("Europe/Berlin", "2026-10-25 02:30", 0, "try again in 45 minutes", "2026-10-25 01:15"),
    ("America/New_York", "2027-03-14 01:45", 0, "try again in 30 minutes", "2027-03-14 07:15"),
    ("America/New_York", "2027-03-14 01:45", 0, "resets 3:15am", "2027-03-14 07:15"),
    ("America/New_York", "2027-03-14 01:45", 0, "resets 2:15am", "2027-03-14 07:15"),  # which no clock shows
    ("America/New_York", "2027-03-13 23:30", 0, "resets 9am", "2027-03-14 13:00"),
    ("Australia/Lord_Howe", "2026-10-03 23:30", 0, "resets 9am", "2026-10-03 22:00"),
    ("UTC", "2026-11-30 23:30", 0, "resets 12:15am", "2026-12-01 00:15"),
    ("UTC", "2026-11-30 23:30", 0, "resets Dec 1, 9am", "2026-12-01 09:00"),
    ("UTC", "2026-12-31 23:30", 0, "resets Jan 1, 9am", "2027-01-01 09:00"),
    ("UTC", "2026-12-01 00:05", 0, "resets 11:58pm", "2026-12-01 00:05"),  # by a clock that is a little behind
    ("UTC", "2026-12-01 00:05", 0, "resets Nov 30, 11:58pm", "2026-12-01 00:05"),
    ("UTC", "2027-01-01 00:05", 0, "resets Dec 31, 11:58pm", "2027-01-01 00:05"),
    ("UTC", "2028-02-28 23:30", 0, "resets Feb 29, 9am", "2028-02-29 09:00"),
]


@pytest.mark.parametrize(("place", "wall", "fold", "said", "meant"), CHANGES)
def test_a_time_of_day_is_the_one_that_clocks_will_show(place: str, wall: str, fold: int, said: str, meant: str) -> None:
    now = datetime.fromisoformat(wall).replace(tzinfo=ZoneInfo(place), fold=fold)
    assert parse_retry_after(f"usage limit reached, {said}", now) == datetime.fromisoformat(meant + "+00:00")


PLACES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kathmandu", "UTC"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where this process is, as far as it knows."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def test_the_zone_of_this_machine_knows_its_changes_of_time(place: str) -> None:
    """Every half hour of two years, there and back: the rules that the C library has are those of the zone's own list."""
    here, there = LocalZone(), ZoneInfo(place)
    for half_hours in range(2 * 365 * 48):
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=30 * half_hours)
        mine, known = at.astimezone(here), at.astimezone(there)
        assert (mine.replace(tzinfo=None), mine.fold, mine.utcoffset(), mine.tzname()) == (
            known.replace(tzinfo=None),
            known.fold,
            known.utcoffset(),
            known.tzname(),
        )
        assert mine.astimezone(UTC) == at
    for half_hours in range(365 * 48):  # also what no clock on the wall shows
        wall = datetime(2026, 1, 1, tzinfo=here) + timedelta(minutes=30 * half_hours)
        for fold in (0, 1):
            shown = wall.replace(fold=fold)
            assert shown.utcoffset() == shown.replace(tzinfo=there).utcoffset(), shown


POLICIES = st.builds(
    Retry,
    attempts=st.integers(1, 12),
    backoff=st.sampled_from(["fixed", "linear", "exponential"]),
    delay=st.floats(0, 1e4),
    max_delay=st.floats(0, 1e4),
    jitter=st.booleans(),
    on=st.sampled_from([(), ("rate_limit",), ("timeout",), (7,)]),
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
    exit_code=st.sampled_from([1, 7, 75, None]),
    stderr=st.sampled_from(["", *(text for text, _, _ in SAID), *NOT_SAID]),
    retryable=st.booleans(),
)


AROUND = st.builds(
    RetryFacts,
    failures=st.integers(1, 20),
    refusals=st.integers(0, 30),
    at=st.just(NOW),
    dice=st.floats(0, 1, exclude_max=True),
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
    around = RetryFacts(failures=1, at=NOW, dice=0.5)
    assert decide(step, refusal, around).why == "attempt 2 of 4 in 7 s: rate limit"
    plain = FailureFacts(message="exited with code 3")
    assert decide(step, plain, around).why == "attempt 2 of 4 in 7 s: exited with code 3"
    assert decide(step, plain, RetryFacts(failures=4, at=NOW, dice=0.5)).why == "all 4 attempts failed"


def test_without_a_policy_refusals_are_waited_for_ever_longer_and_then_no_more() -> None:
    step, refusal = Step(id="a", action=Run(script="")), FailureFacts(stderr="rate limit exceeded")

    def delay(refusals: int) -> float | None:
        return decide(step, refusal, RetryFacts(failures=1, refusals=refusals, at=NOW, dice=0.5)).delay

    waits = [delay(refusals) for refusals in range(MAX_LONG_REFUSALS)]
    assert all(wait is not None for wait in waits[: MAX_LONG_REFUSALS - 1])
    assert [wait for wait in waits[:MAX_REFUSALS] if wait] == sorted(wait for wait in waits[:MAX_REFUSALS] if wait)
    assert (waits[MAX_REFUSALS] or 0) >= 900
    assert delay(MAX_LONG_REFUSALS) is None


def test_a_policy_that_speaks_of_refusals_bounds_them() -> None:
    step = Step(id="a", action=Run(script=""), retry=Retry(attempts=3, on=("rate_limit",)))
    refusal = FailureFacts(stderr="rate limit exceeded")
    decisions = [decide(step, refusal, RetryFacts(failures=1, refusals=n, at=NOW, dice=0.5)) for n in range(3)]
    assert [one.delay is None for one in decisions] == [False, False, True]


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 100), st.floats(0.001, 1000), st.integers(1, 64)), max_size=40))
def test_laws_of_a_gate(happened: list[tuple[bool, float, float, int]]) -> None:
    gate, now = Throttle(), 0.0
    for passes, later, delay, under_way in happened:
        now += later
        closed, opens, width, refusals = gate.is_closed(now), gate.opens, gate.width, gate.refusals
        if passes:
            gap = gate.gap
            gate.let_through(now)
            assert gate.gap <= gap
            assert gate.refusals == (refusals if closed else 0)
            assert gate.width == (width if closed else width + 1)
            assert gate.opens == opens, "who was under way does not open it"
            continue
        gate.refuse(now, delay, NOW, under_way)
        assert gate.opens >= max(opens, now + delay), "it never opens sooner than anybody was told"
        if closed:
            assert (gate.width, gate.refusals) == (width, refusals), "those refused together are one refusal"
        else:
            assert gate.refusals == refusals + 1
            assert gate.width == max(under_way // 2, 1)
            assert 0 < gate.gap <= 60
        gate.start(now, 0.5)
        assert (gate.wait_for_pace(now) or now) >= now
        assert gate.wait_for_pace(now + gate.gap * 1.25 + 1e-6) is None
        assert gate.opens <= gate.turn(0.5) <= gate.opens + 10


def test_a_gate_whose_time_has_come_by_the_clock_on_the_wall_opens() -> None:
    gate = Throttle()
    gate.refuse(100.0, 3600, NOW + timedelta(hours=1), 1)
    assert not gate.put_forward(101.0, NOW + timedelta(minutes=59))
    assert gate.is_closed(101.0)
    assert gate.put_forward(102.0, NOW + timedelta(hours=2))
    assert not gate.is_closed(102.0)
