"""The state of a run: the fold of its events. Only the tables below say which event may follow which status.

An event that is not in a table raises IllegalEvent and changes nothing. State is changed in place, one unit
per event: a copy per event would make a long run quadratic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from rerail.core import compaction
from rerail.core import events as ev
from rerail.core.durations import LastSeen, open_seconds
from rerail.core.events import Approval, AttemptProgress, Event, Failure, UnitEvent
from rerail.core.items import Items
from rerail.core.money import added
from rerail.core.run_state import RunState, RunStatus, UnitState, UnitStatus
from rerail.core.unit_id import UnitId
from rerail.errors import IllegalEvent

_STARTABLE: Final = ("pending", "failed", "interrupted")

TRANSITIONS: Final[Mapping[tuple[str, type], UnitStatus]] = {
    **{(before, ev.StepStarted): "running" for before in _STARTABLE},
    ("running", ev.StepCompleted): "completed",
    ("running", ev.StepFailed): "failed",
    ("running", ev.StepInterrupted): "interrupted",
    ("running", ev.StepProgressed): "running",
    **{(before, ev.ApprovalGiven): "pending" for before in _STARTABLE},
    ("pending", ev.StepSkipped): "skipped",
    ("pending", ev.StepInherited): "completed",  # or skipped: the event says so
    ("completed", ev.ArtifactsRestored): "completed",
    ("completed", ev.ArtifactsAccepted): "completed",
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
    # An invocation that was killed leaves "running" behind.
    **{(before, ev.RunResumed): "running" for before in ("running", "failed", "interrupted", "paused", "completed")},
    **{
        (before, ev.RunRepaired): "interrupted"
        for before in ("pending", "running", "failed", "interrupted", "paused", "completed")
    },
    ("running", ev.RunInterrupted): "interrupted",
    ("running", ev.RunPaused): "paused",
    ("running", ev.RunFinished): "completed",  # or failed: the event's own status
}


def apply(state: RunState, seq: int, event: Event) -> None:
    """Apply one event to `state` in place; raise IllegalEvent and change nothing if it cannot follow."""
    if seq != state.seq + 1:
        raise IllegalEvent(f"record {seq} cannot follow record {state.seq}")
    if type(event) in REDUCERS:
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
            _begin_invocation(state, event)
        case ev.RunResumed():
            _begin_invocation(state, event)
            state.finished_at = None
            state.saved_usd = event.saved_usd
            state.reason = state.cause = state.budget_kind = ""
            state.until = None
            state.waiting_for = ()
            state.error = None
        case ev.RunRepaired():
            state.active_seconds += open_seconds(state)
            state.reason = event.reason
            _suspect(state, event.suspects)
        case ev.RunInterrupted():
            _end_invocation(state, event.at, event.active_seconds)
            state.reason = event.reason
        case ev.RunPaused():
            _end_invocation(state, event.at, event.active_seconds)
            state.reason, state.cause, state.until = event.reason, event.cause, event.until
            state.waiting_for, state.budget_kind = event.waiting_for, event.budget_kind
        case ev.RunFinished():
            _end_invocation(state, event.at, event.active_seconds)
            status = event.status
            state.finished_at = event.at
            state.finished_seq = state.seq + 1
    state.status = status


def _suspect(state: RunState, steps: Iterable[str]) -> None:
    """Treat steps whose records were lost in a repair as interrupted.

    Steps recorded as running stay so: the next invocation finds them interrupted, with all that is known of their cost.
    """
    for step in steps:
        unit = state.units.setdefault(UnitId(step), UnitState())
        if unit.status not in ("completed", "running") and unit.items is None:  # else a unit inside it is in doubt
            unit.status = "interrupted"
            unit.attempts = max(unit.attempts, 1)
            unit.reason = "its record was lost"
            unit.because = ev.Cause(kind="record-lost")


def _begin_invocation(state: RunState, event: ev.RunStarted | ev.RunResumed) -> None:
    state.invocations += 1
    if isinstance(event, ev.RunResumed):  # if the invocation before was killed
        state.active_seconds += open_seconds(state, LastSeen(at=event.died_at, after=event.died_after))
    state.invoked_at = event.at
    state.pipeline_sha256 = event.pipeline_sha256
    state.options = event.options
    state.steps = event.steps
    state.hooks = event.hooks
    state.removed = event.removed if isinstance(event, ev.RunResumed) else ()


def _end_invocation(state: RunState, at: datetime | None, lasted: float | None = None) -> None:
    """Add the duration of an invocation to the run's active time; idle time does not count.

    The wall clock is used only if `lasted`, the measured duration, is unknown.
    """
    if lasted is not None:
        state.active_seconds += lasted
    elif state.invoked_at is not None and at is not None:
        state.active_seconds += max((at - state.invoked_at).total_seconds(), 0.0)


def _apply_unit(state: RunState, seq: int, event: UnitEvent) -> None:
    kind = type(event)
    left_running = kind is ev.StepInterrupted and state.status == "interrupted"  # by an invocation that was killed
    if state.status != "running" and kind not in BY_PEOPLE and not left_running:
        raise IllegalEvent(f"{type(event).__name__} cannot happen in a run that is {state.status}")
    key = event.unit
    unit = state.units.get(key)
    before = "pending" if unit is None else unit.status
    if unit is None and event.item is not None and getattr(event, "index", None) is not None:
        before = compaction.item_status(state, event)  # type: ignore[arg-type,assignment]
    try:
        status = TRANSITIONS[before, kind]
    except KeyError:
        raise IllegalEvent(f"{type(event).__name__} cannot happen to {key}, which is {before}") from None
    if unit is None:
        unit = UnitState()
    REDUCERS[kind](state, unit, seq, event)
    if key not in state.units:
        state.units[key] = unit
        if event.item is not None:
            state.inner.setdefault(event.item, set()).add(event.step)
    unit.status = status
    if kind is ev.StepInherited or kind in BY_PEOPLE:
        _overrule(state, unit, event)
    if unit.index is not None and kind is not ev.StepStarted:
        compaction.update_item(state, key, unit)
    state.last_event = _TAGS[kind]
    state.last_unit = key


def _overrule(state: RunState, unit: UnitState, event: UnitEvent) -> None:
    """Set the status that the event itself states, and reopen a completed run where needed."""
    kind = type(event)
    if isinstance(event, ev.StepInherited):
        unit.status = "skipped" if event.skipped else "failed" if event.failed else "completed"
    if isinstance(event, ev.StepMarked):
        unit.status = event.status
    reopened = event.item is not None and kind not in (ev.StepInherited, ev.ArtifactsAccepted)
    if (reopened or unit.status not in ("completed", "skipped")) and state.status == "completed":
        state.status = "interrupted"
        state.reason = f"{event.unit} was {unit.reason}"


def shown_status(state: RunState, *, owner_alive: bool) -> str:
    """Return the status that people see: a run recorded as running whose owner is dead has crashed."""
    return "crashed" if state.status == "running" and not owner_alive else state.status


__all__ = [
    "RUN_TRANSITIONS",
    "TRANSITIONS",
    "RunState",
    "RunStatus",
    "UnitState",
    "UnitStatus",
    "apply",
    "fold",
    "shown_status",
]


MAX_TAIL: Final = 300  # characters of stderr that the state keeps of a failed item


def _started(state: RunState, unit: UnitState, seq: int, event: ev.StepStarted) -> None:
    unit.attempts = event.attempt
    if unit.index is None and event.index is not None:
        compaction.begin_item(state, event, unit)
    unit.index = event.index
    if unit.items is None:  # a controller that continues depends on the products at its first start
        unit.started_seq = seq
    unit.started_at = event.at
    unit.finished_at = None
    unit.duration = None
    unit.retry_at = None
    unit.retry_in = None
    if unit.fingerprint != event.fingerprint:
        unit.crashes = 0
    unit.fingerprint = event.fingerprint
    unit.inputs = event.inputs
    unit.head = unit.head or event.head
    unit.progress = None


def _completed(state: RunState, unit: UnitState, seq: int, event: ev.StepCompleted) -> None:
    if unit.items is not None and unit.items.is_loop:
        compaction.end_loop(state, event.unit, unit)
    comparable = bool(event.outputs or event.artifacts)
    if not (comparable and unit.changed_seq and same_product(unit, event)):
        unit.changed_seq = seq
    unit.completed_seq = seq
    unit.settled_seq = unit.settled_seq or seq
    unit.completions += 1
    unit.outputs = event.outputs
    unit.artifacts = event.artifacts
    unit.error = None
    unit.allowed = False
    unit.reason = ""
    unit.because = None
    unit.head = ""
    unit.refusals = 0
    unit.crashes = 0
    unit.approval = None
    _ended(state, unit, event)
    if event.step not in state.hooks:
        state.last_completed = event.unit


def same_product(unit: UnitState, event: ev.StepCompleted) -> bool:
    """Return whether a completion produced exactly the same as the unit's previous completion."""
    if event.outputs != unit.outputs or len(event.artifacts) != len(unit.artifacts):
        return False
    return all(new.product == old.product for new, old in zip(event.artifacts, unit.artifacts, strict=True))


def _failed(state: RunState, unit: UnitState, seq: int, event: ev.StepFailed) -> None:
    if event.refused:
        unit.refusals = event.refusals or unit.refusals + 1
        unit.reason = event.refused
    else:
        unit.failures += 1
        unit.refusals = 0
    unit.approval = None
    unit.crashes = 0
    unit.error = event.error if event.item is None else _brief(event.error)
    if event.allowed:
        # Dependants see it now, without outputs: that is a product too, and a different one.
        unit.changed_seq = seq
        unit.settled_seq = unit.settled_seq or seq
        unit.outputs = event.outputs
        unit.artifacts = ()
    elif event.outputs:
        unit.outputs = event.outputs
    unit.because = None
    unit.retry_at = event.retry_at
    unit.retry_in = event.retry_in
    unit.allowed = event.allowed
    _ended(state, unit, event)
    # A failure inside is reported by its controller.
    if event.unit.is_top_level and event.retry_at is None and not event.allowed and state.error is None:
        state.error = event.error  # the first one: later failures are often its consequences


def _brief(error: Failure) -> Failure:
    """Shorten the failure of an item for the state: there may be many, and the journal has it whole."""
    tail = error.stderr_tail[-MAX_TAIL:]
    return msgspec.structs.replace(error, stderr_tail=tail, traceback="", variables={}, command="")


def _ended(state: RunState, unit: UnitState, event: ev.StepCompleted | ev.StepFailed) -> None:
    unit.finished_at = event.at
    unit.duration = event.duration
    unit.output = event.output
    unit.progress = None
    if not compaction.is_aggregate(state, event.unit, unit):
        unit.worked += event.duration
    if event.metrics:
        unit.metrics = added(unit.metrics, event.metrics)
        state.spent = added(state.spent, event.metrics)


def _progressed(_state: RunState, unit: UnitState, _seq: int, event: ev.StepProgressed) -> None:
    unit.progress = AttemptProgress(
        at=event.at,
        elapsed=event.elapsed,
        metrics=event.metrics,
        models=event.models,
        done=event.done,
        total=event.total,
    )


def _answered(state: RunState, unit: UnitState, seq: int, event: ev.ApprovalGiven) -> None:
    unit.approval = Approval(approved=event.approved, by=event.by, at=event.at, reason=event.reason, seq=seq)
    unit.failures = 0
    unit.reason = f"{'approved' if event.approved else 'rejected'} by {event.by}"
    unit.because = None
    if event.approved and state.error is not None and (state.error.step, state.error.item) == event.unit:
        state.error = None  # it is no longer why the run failed
    if not event.unit.is_top_level:
        compaction.reopen_ancestors(state, event.unit, unit.reason)


def _interrupted(state: RunState, unit: UnitState, _seq: int, event: ev.StepInterrupted) -> None:
    unit.finished_at = event.at
    unit.reason = event.reason
    unit.because = None
    unit.crashes += event.crash
    unit.worked += event.elapsed
    if event.metrics:
        unit.metrics = added(unit.metrics, event.metrics)
        state.spent = added(state.spent, event.metrics)


def _skipped(_state: RunState, unit: UnitState, seq: int, event: ev.StepSkipped) -> None:
    unit.outputs = {}  # dependants see no product of it now: any later product is different
    unit.artifacts = ()
    unit.started_seq = seq
    if unit.completions or unit.error or not unit.changed_seq:  # else it was skipped before: no change
        unit.changed_seq = seq
    unit.settled_seq = unit.settled_seq or seq
    unit.fingerprint = event.fingerprint
    unit.reason = event.reason
    unit.because = None
    unit.crashes = 0
    unit.finished_at = event.at
    unit.index = event.index


def _invalidated(state: RunState, unit: UnitState, _seq: int, event: ev.StepInvalidated) -> None:
    if unit.items is not None and not event.reopened:
        compaction.discard(state, event.unit, unit)
    if not event.reopened or unit.items is None:
        unit.void = unit.worked
    if event.index is not None:
        unit.index = event.index
    unit.failures = 0
    unit.refusals = 0
    unit.crashes = 0
    unit.approval = None
    unit.reason = event.reason
    unit.because = event.because or ev.Cause(kind="invalidated")
    unit.retry_at = None
    unit.retry_in = None
    unit.allowed = False


def _marked(state: RunState, unit: UnitState, seq: int, event: ev.StepMarked) -> None:
    unit.failures = 0
    unit.refusals = 0
    unit.crashes = 0
    unit.approval = None
    unit.retry_at = None
    unit.retry_in = None
    unit.allowed = False
    unit.reason = f"marked {event.status} by {event.by}"
    unit.because = ev.Cause(kind="marked")
    unit.error = None
    unit.finished_at = event.at
    if not event.unit.is_top_level:
        # The controllers around a failed unit have failed with it: a resume retries them.
        status: UnitStatus = "failed" if event.status == "failed" else "pending"
        compaction.reopen_ancestors(state, event.unit, unit.reason, status, unit.because)
    if event.status != "completed":
        compaction.discard_inside(state, event.unit, unit)  # else it would continue with nothing left to do
        unit.void = unit.worked
    if event.status == "skipped":  # as by `when`: dependants run, and see no product of it
        unit.outputs, unit.artifacts = {}, ()
        unit.started_seq = unit.changed_seq = seq
        unit.fingerprint = ""
    if event.status == "completed":
        # A person vouches for it as it is now, whatever its inputs were and whatever changed before. Its product is
        # unknown, so it counts as different from any earlier one.
        unit.changed_seq = seq
        unit.started_seq = seq
        unit.completed_seq = seq
        unit.settled_seq = unit.settled_seq or seq
        unit.artifacts = event.artifacts
        unit.inputs = event.inputs
        unit.fingerprint = ""
        unit.completions += 1
        state.last_completed = event.unit


def _listed(state: RunState, unit: UnitState, _seq: int, event: ev.ItemsListed) -> None:
    compaction.listed(state, event.unit, unit, event)


def _dropped(state: RunState, unit: UnitState, _seq: int, event: ev.ItemDropped) -> None:
    compaction.discard_inside(state, event.unit, unit)  # nothing of it runs again, so none of its files is checked
    unit.artifacts, unit.inputs = (), ()
    unit.reason = f"dropped from the dead letter queue by {event.by}"
    compaction.reopen_ancestors(state, event.unit, unit.reason)
    unit.finished_at = event.at


def _edited(state: RunState, unit: UnitState, _seq: int, event: ev.ItemEdited) -> None:
    compaction.discard_inside(state, event.unit, unit)
    unit.failures = 0
    unit.reason = f"edited by {event.by}"
    compaction.new_generation(state, event.unit, unit)  # another item: its work is new
    compaction.reopen_ancestors(state, event.unit, unit.reason)


def _restored(_state: RunState, unit: UnitState, _seq: int, event: ev.ArtifactsRestored) -> None:
    unit.artifacts = event.artifacts


def _accepted(state: RunState, unit: UnitState, seq: int, event: ev.ArtifactsAccepted) -> None:
    # A different product, and its last producer: as if the step had completed with it.
    unit.artifacts = event.artifacts
    unit.changed_seq = unit.completed_seq = seq
    unit.completions += 1
    for outer in event.unit.ancestors():
        if outer != event.unit and outer in state.units:
            state.units[outer].changed_seq = seq


def _inherited(state: RunState, unit: UnitState, seq: int, event: ev.StepInherited) -> None:
    unit.started_seq = seq
    unit.changed_seq = seq
    unit.settled_seq = seq
    unit.fingerprint = event.fingerprint
    unit.duration = event.duration
    unit.inputs = event.inputs
    unit.finished_at = event.at
    unit.reason = event.skipped
    if event.controls:
        unit.items = Items(marks=bytearray())  # its items are unknown here
    if event.failed is not None:
        unit.error = event.failed
        unit.allowed = True
        unit.outputs = event.outputs
    elif not event.skipped:
        unit.completed_seq = event.rank or seq
        unit.completions = 1
        unit.outputs = event.outputs
        unit.artifacts = event.artifacts
        state.last_completed = event.unit


REDUCERS: Final[Mapping[type, Any]] = {
    ev.StepInherited: _inherited,
    ev.ArtifactsRestored: _restored,
    ev.ArtifactsAccepted: _accepted,
    ev.StepStarted: _started,
    ev.StepCompleted: _completed,
    ev.StepFailed: _failed,
    ev.StepProgressed: _progressed,
    ev.StepInterrupted: _interrupted,
    ev.StepSkipped: _skipped,
    ev.StepInvalidated: _invalidated,
    ev.StepMarked: _marked,
    ev.ApprovalGiven: _answered,
    ev.ItemsListed: _listed,
    ev.ItemDropped: _dropped,
    ev.ItemEdited: _edited,
}
BY_PEOPLE: Final = frozenset(
    (ev.StepMarked, ev.ApprovalGiven, ev.ArtifactsAccepted, ev.ItemDropped, ev.ItemEdited)
)  # also while the run has no owner

_TAGS: Final[Mapping[type, str]] = {kind: str(kind.__struct_config__.tag) for kind in REDUCERS}  # type: ignore[attr-defined]
