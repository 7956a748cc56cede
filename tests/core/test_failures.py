"""Root causes, by states that real sequences of events lead to."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any

from rerail.core import events as ev
from rerail.core.failures import FailureLog, root_cause
from rerail.core.model import RunOptions
from rerail.core.state import RunState, apply
from rerail.core.unit_id import UnitId

AT = datetime(2026, 11, 20, tzinfo=UTC)
OWNER = ev.Owner(pid=1, started="", boot="", namespace="", host="", since=AT)


def state_after(*events: ev.Event) -> RunState:
    state = RunState()
    opening = ev.RunStarted(at=AT, owner=OWNER, pipeline_sha256="", options=RunOptions(), steps=1)
    for seq, event in enumerate((opening, *events), 1):
        apply(state, seq, event)
    return state


def started(step: str, item: str | None = None, index: int | None = None) -> ev.StepStarted:
    return ev.StepStarted(at=AT, step=step, item=item, attempt=1, index=index)


def failed(step: str, item: str | None, second: int, *, allowed: bool = False, again: bool = False) -> ev.StepFailed:
    at = AT + timedelta(seconds=second)
    error = ev.Failure(type="ExitCode", message=f"{step} {item}", step=step, item=item, at=at)
    return ev.StepFailed(
        at=at, step=step, item=item, attempt=1, duration=0, error=error, allowed=allowed, retry_at=at if again else None
    )


def listed(step: str, *keys: str) -> ev.ItemsListed:
    return ev.ItemsListed(at=AT, step=step, total=len(keys), keys=keys, digest="d")


def test_a_plain_step_is_its_own_cause() -> None:
    state = state_after(started("a"), failed("a", None, 1))
    cause = root_cause(state, UnitId("a"))

    assert cause is not None
    assert (cause.unit, cause.item, cause.more_items) == (("a", None), None, 0)
    assert root_cause(state, UnitId("b")) is None


def test_the_item_that_failed_first_is_the_cause_and_allowed_ones_and_retries_are_not() -> None:
    state = state_after(
        started("m"),
        listed("m", "a", "b", "c", "d"),
        *(started("m", key, at) for at, key in enumerate("abcd")),
        failed("m", "a", 1, allowed=True),
        failed("m", "d", 2, again=True),
        failed("m", "c", 4),
        failed("m", "b", 3),
        failed("m", None, 5),
    )
    cause = root_cause(state, UnitId("m"))

    assert cause is not None
    assert (cause.unit, cause.item, cause.more_items) == (("m", "b"), ("m", "b"), 1)


def test_of_an_item_of_several_steps_the_step_is_the_cause_and_the_item_is_in_the_queue() -> None:
    state = state_after(
        started("m"),
        listed("m", "a"),
        started("m", "a", 0),
        started("m/x", "a"),
        failed("m/x", "a", 1),
        failed("m", "a", 2),
        failed("m", None, 3),
    )
    cause = root_cause(state, UnitId("m"))

    assert cause is not None
    assert (cause.unit, cause.item) == (("m/x", "a"), ("m", "a"))


def map_of_failures(count: int) -> list[ev.Event]:
    """Return the events of a map of which all items fail, each in a step of its own."""
    keys = [f"i{number}" for number in range(count)]
    events: list[ev.Event] = [started("m"), listed("m", *keys)]
    for at, key in enumerate(keys):
        events += [started("m", key, at), started("m/x", key), failed("m/x", key, at), failed("m", key, at)]
    return [*events, failed("m", None, count)]


def causes(events: list[ev.Event], log: FailureLog) -> list[bool]:
    """Return for each failure whether the log says the same of it as the whole state."""
    state = state_after()
    same = []
    for seq, event in enumerate(events, 2):
        apply(state, seq, event)
        log.note(event)
        if isinstance(event, ev.StepFailed):
            same.append(log.cause(state, event) == root_cause(state, event.unit))
    return same


def test_the_log_of_failures_finds_the_root_cause_of_the_whole_state() -> None:
    assert causes(map_of_failures(4), FailureLog()) == [True] * 9


def test_the_log_of_failures_knows_those_of_earlier_invocations() -> None:
    events = map_of_failures(3)
    *before, last = events
    state = state_after(*before)
    apply(state, len(events) + 1, last)
    log = FailureLog()
    log.note(last)

    assert isinstance(last, ev.StepFailed)
    assert log.cause(state, last) == root_cause(state, UnitId("m"))
    assert log.cause(state, last).unit == ("m/x", "i0")


def test_many_failures_of_items_are_looked_at_a_few_times_each() -> None:
    events = map_of_failures(200)
    state, log, looked = state_after(), FailureLog(), 0

    def count(frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal looked
        looked += event == "call" and frame.f_code.co_name in ("is_within", "is_dead_letter")

    for seq, event in enumerate(events, 2):
        apply(state, seq, event)
        if not isinstance(event, ev.StepFailed):
            continue
        sys.setprofile(count)
        try:
            log.note(event)
            log.cause(state, event)
        finally:
            sys.setprofile(None)

    assert 400 <= looked < 20 * 200
