"""The state of a run: the fold of its events. The tables below are the only place that says what may follow what.

An event that is not in a table raises IllegalEvent and changes nothing. State is changed in place, one unit
per event: a copy per event would make a long run quadratic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from rerail.core import compaction
from rerail.core import events as ev
from rerail.core.changes import BY_PEOPLE, CHANGES
from rerail.core.events import Event, UnitEvent
from rerail.core.run_state import RunState, RunStatus, Unit, UnitState, UnitStatus, name
from rerail.errors import IllegalEvent

_STARTABLE: Final = ("pending", "failed", "interrupted")

TRANSITIONS: Final[Mapping[tuple[str, type], UnitStatus]] = {
    **{(before, ev.StepStarted): "running" for before in _STARTABLE},
    ("running", ev.StepCompleted): "completed",
    ("running", ev.StepFailed): "failed",
    ("running", ev.StepInterrupted): "interrupted",
    ("running", ev.StepProgressed): "running",
    **{(before, ev.StepJudged): "pending" for before in _STARTABLE},
    ("pending", ev.StepSkipped): "skipped",
    ("pending", ev.StepAdopted): "completed",  # or skipped: the event says so
    ("completed", ev.ArtifactsRestored): "completed",
    ("running", ev.ItemsListed): "running",
    ("failed", ev.ItemDropped): "skipped",
    ("failed", ev.ItemEdited): "pending",
    # From running only when the attempt was announced and then never launched.
    **{
        (before, ev.StepInvalidated): "pending"
        for before in ("pending", "running", "completed", "failed", "interrupted", "skipped")
    },
    # A person may overrule anything but a live attempt; the status is the event's own.
    **{(before, ev.StepMarked): "pending" for before in ("pending", "completed", "failed", "interrupted", "skipped")},
}

RUN_TRANSITIONS: Final[Mapping[tuple[str, type], RunStatus]] = {
    ("pending", ev.RunStarted): "running",
    # A life that ended without a word leaves "running" behind.
    **{(before, ev.RunResumed): "running" for before in ("running", "failed", "interrupted", "paused", "completed")},
    **{
        (before, ev.RunRepaired): "interrupted"
        for before in ("pending", "running", "failed", "interrupted", "paused", "completed")
    },
    ("running", ev.RunInterrupted): "interrupted",
    ("running", ev.RunPaused): "paused",
    ("running", ev.RunFinished): "completed",  # or failed: the event's own status
}


_TAGS: Final[Mapping[type, str]] = {kind: str(kind.__struct_config__.tag) for kind in CHANGES}  # type: ignore[attr-defined]


def apply(state: RunState, seq: int, event: Event) -> None:
    """Change `state` by one event, in place; raise IllegalEvent and change nothing if it cannot follow."""
    if seq != state.seq + 1:
        raise IllegalEvent(f"record {seq} cannot follow record {state.seq}")
    if type(event) in CHANGES:
        _apply_unit(state, seq, event)  # type: ignore[arg-type]
    else:
        _apply_run(state, event)  # type: ignore[arg-type]
    state.seq = seq
    state.updated_at = event.at


def fold(records: Iterable[tuple[int, Event]], state: RunState | None = None) -> RunState:
    """Apply records in order, to an empty state or to the given one (which is changed)."""
    result = RunState() if state is None else state
    for seq, event in records:
        apply(result, seq, event)
    return result


def _apply_run(state: RunState, event: ev.RunEvent) -> None:
    try:
        status = RUN_TRANSITIONS[state.status, type(event)]
    except KeyError:
        raise IllegalEvent(f"{type(event).__name__} cannot happen to a run that is {state.status}") from None
    match event:
        case ev.RunStarted():
            state.started_at = event.at
            _begin_life(state, event)
        case ev.RunResumed():
            _begin_life(state, event)
            state.finished_at = None
            state.saved_usd = event.saved_usd
            state.reason = state.cause = ""
            state.until = None
            state.error = None
        case ev.RunRepaired():
            if state.status == "running":
                _end_life(state, state.updated_at)
            state.reason = event.reason
            _suspect(state, event.suspects)
        case ev.RunInterrupted():
            _end_life(state, event.at, event.driven)
            state.reason = event.reason
        case ev.RunPaused():
            _end_life(state, event.at, event.driven)
            state.reason, state.cause, state.until = event.reason, event.cause, event.until
        case ev.RunFinished():
            _end_life(state, event.at, event.driven)
            status = event.status
            state.finished_at = event.at
            state.finished_seq = state.seq + 1
    state.status = status


def _suspect(state: RunState, steps: Iterable[str]) -> None:
    """Steps that something happened to that can no longer be proved: as if they had been cut off.

    What is known to run the next life finds cut off, with all that is known of what it cost.
    """
    for step in steps:
        unit = state.units.setdefault((step, None), UnitState())
        if unit.status not in ("completed", "running") and unit.items is None:  # else it is something inside it
            unit.status = "interrupted"
            unit.attempts = max(unit.attempts, 1)
            unit.reason = "its record was lost"


def _begin_life(state: RunState, event: ev.RunStarted | ev.RunResumed) -> None:
    state.lives += 1
    if state.status == "running":  # the one before was cut off
        died_at, lasted = (event.died_at, event.died_after) if isinstance(event, ev.RunResumed) else (None, None)
        if died_at is None or state.life_at is None or died_at < state.life_at:
            lasted = None  # of an invocation before that one, which left nothing
        _end_life(state, max(filter(None, (state.updated_at, died_at)), default=None), lasted)
    state.life_at = event.at
    state.pipeline_sha256 = event.pipeline_sha256
    state.options = event.options
    state.steps = event.steps
    state.hooks = event.hooks


def _end_life(state: RunState, at: datetime | None, lasted: float | None = None) -> None:
    """Time during which nobody drives a run is not its own. What the wall clock says counts only if nothing better is."""
    if lasted is not None:
        state.driven += lasted
    elif state.life_at is not None and at is not None:
        state.driven += max((at - state.life_at).total_seconds(), 0.0)


def _apply_unit(state: RunState, seq: int, event: UnitEvent) -> None:
    kind = type(event)
    left_running = kind is ev.StepInterrupted and state.status == "interrupted"  # by a life that was cut off
    if state.status != "running" and kind not in BY_PEOPLE and not left_running:
        raise IllegalEvent(f"{type(event).__name__} cannot happen in a run that is {state.status}")
    key = (event.step, event.item)
    unit = state.units.get(key)
    before = "pending" if unit is None else unit.status
    if unit is None and event.item is not None and getattr(event, "index", None) is not None:
        before = compaction.status_by_mark(state, event)  # type: ignore[arg-type,assignment]
    try:
        status = TRANSITIONS[before, kind]
    except KeyError:
        raise IllegalEvent(f"{type(event).__name__} cannot happen to {name(key)}, which is {before}") from None
    if unit is None:
        unit = UnitState()
    CHANGES[kind](state, unit, seq, event)
    if key not in state.units:
        state.units[key] = unit
        if event.item is not None:
            state.inner.setdefault(event.item, set()).add(event.step)
    unit.status = status
    if kind is ev.StepAdopted or kind in BY_PEOPLE:
        _overrule(state, unit, event)
    if unit.index is not None and kind is not ev.StepStarted:
        compaction.account(state, key, unit)
    state.last_event = _TAGS[kind]
    state.last_unit = key


def _overrule(state: RunState, unit: UnitState, event: UnitEvent) -> None:
    """Events that say themselves what is true."""
    kind = type(event)
    if isinstance(event, ev.StepAdopted):
        unit.status = "skipped" if event.skipped else "failed" if event.failed else "completed"
    if isinstance(event, ev.StepMarked):
        unit.status = event.status
    reopened = event.item is not None and kind is not ev.StepAdopted
    if (reopened or unit.status not in ("completed", "skipped")) and state.status == "completed":
        state.status = "interrupted"
        state.reason = f"{name(event.unit)} was {unit.reason}"


def shown_status(state: RunState, *, owner_alive: bool) -> str:
    """The status people see: recorded as running with its owner dead is crashed."""
    return "crashed" if state.status == "running" and not owner_alive else state.status


__all__ = [
    "RUN_TRANSITIONS",
    "TRANSITIONS",
    "RunState",
    "RunStatus",
    "Unit",
    "UnitState",
    "UnitStatus",
    "apply",
    "fold",
    "name",
    "shown_status",
]
