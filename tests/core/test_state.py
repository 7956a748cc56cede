"""The state machine: laws that hold for any history."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail import testing
from rerail.core import events as ev
from rerail.core.checkpoint import checkpoint_of, state_of
from rerail.core.model import Call, Pipeline, Step
from rerail.core.state import RUN_TRANSITIONS, TRANSITIONS, RunState, apply, fold
from rerail.core.unit_id import UnitId
from rerail.errors import IllegalEvent

AT = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = ("a", "b", "c")
PIPELINE = Pipeline(name="p", steps=tuple(Step(id=step, action=Call(target="f")) for step in STEPS))


def failure(step: str) -> ev.Failure:
    return ev.Failure(type="ExitCode", message="exited with code 1", step=step, at=AT, exit_code=1)


def make(kind: type, step: str, flag: bool, number: int) -> Any:
    """Some event of a kind; `flag` and `number` vary its details."""
    common: dict[str, Any] = {"at": AT, "step": step, "item": "x" if number == 3 else None}
    match kind:
        case ev.StepStarted:
            return ev.StepStarted(**common, attempt=number)
        case ev.StepCompleted:
            outputs = {"n": number} if flag else {}
            return ev.StepCompleted(**common, attempt=number, duration=1.0, outputs=outputs, metrics={"cost_usd": 0.5})
        case ev.StepFailed:
            return ev.StepFailed(
                **common,
                attempt=number,
                duration=1.0,
                error=failure(step),
                retry_at=AT if flag else None,
                retry_in=1.0 if flag else None,
                allowed=not flag and number == 2,
            )
        case ev.StepInterrupted:
            return ev.StepInterrupted(**common, attempt=number, reason="crash")
        case ev.StepMarked:
            return ev.StepMarked(**common, status="completed" if flag else "pending", by="me")
        case ev.StepSkipped | ev.StepInvalidated:
            return kind(**common, reason="because")
        case ev.RunStarted:
            return testing.started()
        case ev.RunResumed:
            return testing.resumed()
        case ev.RunRepaired:
            return ev.RunRepaired(at=AT, owner=testing.started().owner, reason="r", evidence="e")
        case ev.RunInterrupted | ev.RunPaused:
            return kind(at=AT, reason="because")
        case _:
            return ev.RunFinished(at=AT, status="completed" if flag else "failed")


KINDS = sorted({kind for _, kind in TRANSITIONS} | {kind for _, kind in RUN_TRANSITIONS}, key=lambda kind: kind.__name__)
EVENTS = st.builds(make, st.sampled_from(KINDS), st.sampled_from(STEPS), st.booleans(), st.integers(1, 3))


def legal_history(candidates: list[Any]) -> list[tuple[int, Any]]:
    """A history as long as the candidates allow: whatever cannot follow is left out."""
    state, history = RunState(), []
    for event in [testing.started(), *candidates]:
        try:
            apply(state, state.seq + 1, event)
        except IllegalEvent:
            continue
        history.append((state.seq, event))
    return history


HISTORIES = st.lists(EVENTS, max_size=40).map(legal_history)


@given(HISTORIES, st.integers(0, 40))
def test_folding_in_two_parts_is_folding_at_once(history: list[tuple[int, Any]], cut: int) -> None:
    assert fold(history[cut:], fold(history[:cut])) == fold(history)


@pytest.mark.scenario("E10")
@given(HISTORIES, EVENTS)
def test_an_event_is_in_the_table_or_raises_and_changes_nothing(history: list[tuple[int, Any]], event: Any) -> None:
    state = fold(history)
    before = copy.deepcopy(state)
    if isinstance(event, ev.UnitEvent):
        known = (before.unit(event.unit).status, type(event)) in TRANSITIONS
        known = known and (before.status == "running" or isinstance(event, ev.StepMarked))
    else:
        known = (before.status, type(event)) in RUN_TRANSITIONS
    if known:
        apply(state, state.seq + 1, event)
        assert state.seq == before.seq + 1
    else:
        with pytest.raises(IllegalEvent):
            apply(state, state.seq + 1, event)
        assert state == before


@given(HISTORIES)
def test_a_checkpoint_holds_the_whole_state(history: list[tuple[int, Any]]) -> None:
    state = fold(history)
    checkpoint = checkpoint_of(testing.header(), PIPELINE, state)
    saved = msgspec.json.decode(msgspec.json.encode(checkpoint), type=type(checkpoint))

    assert state_of(saved) == state


@given(HISTORIES)
def test_money_is_counted_once(history: list[tuple[int, Any]]) -> None:
    spent = sum(event.metrics.get("cost_usd", 0) for _, event in history if isinstance(event, ev.StepCompleted))

    assert checkpoint_of(testing.header(), PIPELINE, fold(history)).total_cost_usd == spent


@given(HISTORIES)
def test_attempts_never_go_back_unless_the_journal_says_so(history: list[tuple[int, Any]]) -> None:
    state = RunState()
    for seq, event in history:
        apply(state, seq, event)
        if isinstance(event, ev.StepStarted):
            assert state.unit(event.unit).attempts == event.attempt


@pytest.mark.scenario("E10")
def test_records_are_applied_in_order_only() -> None:
    with pytest.raises(IllegalEvent, match="record 2 cannot follow record 0"):
        apply(RunState(), 2, testing.started())


@pytest.mark.parametrize(("outputs", "changed"), [({"n": 1}, False), ({"n": 2}, True), ({}, True)])
def test_a_unit_has_changed_unless_it_produced_the_same_again(outputs: dict[str, int], changed: bool) -> None:
    history: list[Any] = [
        testing.started(),
        ev.StepStarted(at=AT, step="a", attempt=1),
        ev.StepCompleted(at=AT, step="a", attempt=1, duration=1, outputs={"n": 1}),
        ev.StepInvalidated(at=AT, step="a", reason="r"),
        ev.StepStarted(at=AT, step="a", attempt=2),
        ev.StepCompleted(at=AT, step="a", attempt=2, duration=1, outputs=outputs),
    ]
    state = fold(enumerate(history, 1))

    assert state.unit(UnitId("a")).changed_seq == (6 if changed else 3)
