"""How an attempt that ended is described: by facts in the state, not by words of its reason."""

from __future__ import annotations

from datetime import UTC, datetime

from rerail.core import events as ev
from rerail.core.checkpoint import checkpoint_of, state_of
from rerail.core.inflight import failure_reason
from rerail.core.model import Pipeline
from rerail.core.state import RunState, apply
from rerail.core.unit_id import UnitId
from rerail.testing import header, started

AT = datetime(2026, 1, 1, tzinfo=UTC)
FAILURE = ev.Failure(type="Exit", message="exit code 1", step="a", at=AT)
START = ev.StepStarted(at=AT, step="a", attempt=1)
FAIL = ev.StepFailed(at=AT, step="a", attempt=1, duration=1.0, error=FAILURE)


def described(*events: ev.Event, by_way_of_a_checkpoint: bool = False) -> str:
    state = RunState()
    for event in (started(), *events):
        apply(state, state.seq + 1, event)
    if by_way_of_a_checkpoint:
        state = state_of(checkpoint_of(header(), Pipeline(name="p", steps=()), state))
    return failure_reason(state.unit(UnitId("a"))).text


def marked(status: str) -> ev.StepMarked:
    return ev.StepMarked(at=AT, step="a", status=status, by="ada")  # type: ignore[arg-type]


def test_a_step_that_a_person_marked_failed_says_so() -> None:
    assert described(START, FAIL) == "failed: exit code 1"
    for through in (False, True):
        assert described(START, FAIL, marked("failed"), by_way_of_a_checkpoint=through) == "marked failed by ada"


def test_a_failure_after_the_mark_is_what_counts() -> None:
    assert described(marked("pending"), START, FAIL) == "failed: exit code 1"
    assert described(marked("failed"), START, FAIL, by_way_of_a_checkpoint=True) == "failed: exit code 1"


def test_a_controller_with_a_step_that_was_marked_failed_says_so() -> None:
    state = RunState()
    begun = (ev.StepStarted(at=AT, step=step, attempt=1) for step in ("p", "p/a"))
    ended = (ev.StepCompleted(at=AT, step=step, attempt=1, duration=1.0) for step in ("p/a", "p"))
    events: list[ev.Event] = [started(), *begun, *ended, ev.StepMarked(at=AT, step="p/a", status="failed", by="ada")]
    for event in events:
        apply(state, state.seq + 1, event)
    assert state.unit(UnitId("p")).status == "failed"
    assert failure_reason(state.unit(UnitId("p"))).text == "marked failed by ada"


def test_a_refusal_in_such_words_is_no_mark() -> None:
    refused = ev.StepFailed(at=AT, step="a", attempt=1, duration=1.0, error=FAILURE, refused="marked as busy", refusals=1)
    assert described(START, refused) == "failed: exit code 1"
