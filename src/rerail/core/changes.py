"""What each event changes about the unit it happened to, and about the run around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rerail.core import compaction
from rerail.core import events as ev
from rerail.core.events import Failure, SoFar, Verdict
from rerail.core.items import Items
from rerail.core.money import added
from rerail.core.run_state import RunState, UnitState

MOST_TAIL: Final = 300  # characters of stderr that the state keeps of a failed item


def _started(state: RunState, unit: UnitState, seq: int, event: ev.StepStarted) -> None:
    unit.attempts = event.attempt
    if unit.index is None and event.index is not None:
        compaction.begin_item(state, event, unit)
    unit.index = event.index
    if unit.items is None:  # a controller that goes on stands on what there was when it began
        unit.started_seq = seq
    unit.started_at = event.at
    unit.finished_at = None
    unit.duration = None
    unit.retry_at = None
    unit.retry_in = None
    unit.fingerprint = event.fingerprint
    unit.inputs = event.inputs
    unit.head = unit.head or event.head
    unit.so_far = None


def _completed(state: RunState, unit: UnitState, seq: int, event: ev.StepCompleted) -> None:
    if unit.items is not None and unit.items.carries:
        compaction.end_loop(state, (event.step, event.item), unit)
    comparable = bool(event.outputs or event.artifacts)
    if not (comparable and unit.changed_seq and same_product(unit, event)):
        unit.changed_seq = seq
    unit.completed_seq = seq
    unit.completions += 1
    unit.outputs = event.outputs
    unit.artifacts = event.artifacts
    unit.error = None
    unit.allowed = False
    unit.reason = ""
    unit.head = ""
    unit.refusals = 0
    unit.verdict = None
    _ended(state, unit, event)
    if event.step not in state.hooks:
        state.last_completed = (event.step, event.item)


def same_product(unit: UnitState, event: ev.StepCompleted) -> bool:
    """Whether a completion produced exactly what the unit's previous completion did."""
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
    unit.verdict = None
    unit.error = event.error if event.item is None else _brief(event.error)
    if event.allowed:
        # Dependants see it now, with nothing handed out: that is a product too, and a different one.
        unit.changed_seq = seq
        unit.outputs = {}
        unit.artifacts = ()
    unit.retry_at = event.retry_at
    unit.retry_in = event.retry_in
    unit.allowed = event.allowed
    _ended(state, unit, event)
    outermost = event.item is None and "/" not in event.step  # what fails inside is told by what it is inside of
    if outermost and event.retry_at is None and not event.allowed and state.error is None:
        state.error = event.error  # the first one: what fails after it is often its consequence


def _brief(error: Failure) -> Failure:
    """What the state keeps of the failure of an item: there may be many, and the journal has it whole."""
    tail = error.stderr_tail[-MOST_TAIL:]
    return msgspec.structs.replace(error, stderr_tail=tail, traceback="", variables={}, command="")


def _ended(state: RunState, unit: UnitState, event: ev.StepCompleted | ev.StepFailed) -> None:
    unit.finished_at = event.at
    unit.duration = event.duration
    unit.output = event.output
    unit.so_far = None
    if not compaction.has_inside(state, event.unit, unit):
        unit.worked += event.duration
    if event.metrics:
        unit.metrics = added(unit.metrics, event.metrics)
        state.spent = added(state.spent, event.metrics)


def _progressed(_state: RunState, unit: UnitState, _seq: int, event: ev.StepProgressed) -> None:
    unit.so_far = SoFar(
        at=event.at,
        elapsed=event.elapsed,
        metrics=event.metrics,
        models=event.models,
        done=event.done,
        total=event.total,
    )


def _judged(state: RunState, unit: UnitState, seq: int, event: ev.StepJudged) -> None:
    unit.verdict = Verdict(approved=event.approved, by=event.by, at=event.at, reason=event.reason, seq=seq)
    unit.failures = 0
    unit.reason = f"{'approved' if event.approved else 'rejected'} by {event.by}"
    if event.approved and state.error is not None and (state.error.step, state.error.item) == event.unit:
        state.error = None  # it is no longer what the run failed by
    if event.item is not None or "/" in event.step:
        compaction.reopen_around(state, (event.step, event.item), unit.reason)


def _interrupted(state: RunState, unit: UnitState, _seq: int, event: ev.StepInterrupted) -> None:
    unit.finished_at = event.at
    unit.reason = event.reason
    unit.worked += event.elapsed
    if event.metrics:
        unit.metrics = added(unit.metrics, event.metrics)
        state.spent = added(state.spent, event.metrics)


def _skipped(_state: RunState, unit: UnitState, seq: int, event: ev.StepSkipped) -> None:
    unit.outputs = {}  # dependants see nothing of it now: whatever it makes later is something different
    unit.artifacts = ()
    unit.started_seq = seq
    if unit.completions or unit.error or not unit.changed_seq:  # else it was skipped before, which is no change
        unit.changed_seq = seq
    unit.fingerprint = event.fingerprint
    unit.reason = event.reason
    unit.finished_at = event.at
    unit.index = event.index


def _invalidated(state: RunState, unit: UnitState, _seq: int, event: ev.StepInvalidated) -> None:
    if unit.items is not None and not event.reopened:
        compaction.give_up(state, (event.step, event.item), unit)
    if event.index is not None:
        unit.index = event.index
    unit.failures = 0
    unit.refusals = 0
    unit.verdict = None
    unit.reason = event.reason
    unit.retry_at = None
    unit.retry_in = None
    unit.allowed = False


def _marked(state: RunState, unit: UnitState, seq: int, event: ev.StepMarked) -> None:
    unit.failures = 0
    unit.refusals = 0
    unit.verdict = None
    unit.retry_at = None
    unit.retry_in = None
    unit.allowed = False
    unit.reason = f"marked {event.status} by {event.by}"
    unit.error = None
    unit.finished_at = event.at
    if event.item is not None or "/" in event.step:
        # What is around a unit that failed has failed with it: a resume tries such again.
        compaction.reopen_around(state, event.unit, unit.reason, "failed" if event.status == "failed" else "pending")
    if event.status != "completed":
        compaction.discard_inside(state, event.unit, unit)  # else it would go on, and have nothing left to do
    if event.status == "completed":
        # A person vouches for it as it is now: whatever it was started with, and whatever changed before. What it
        # produced is unknown, so it counts as different from anything before.
        unit.changed_seq = seq
        unit.started_seq = seq
        unit.completed_seq = seq
        unit.artifacts = event.artifacts
        unit.inputs = event.inputs
        unit.fingerprint = ""
        unit.completions += 1
        state.last_completed = (event.step, event.item)


def _listed(state: RunState, unit: UnitState, _seq: int, event: ev.ItemsListed) -> None:
    compaction.listed(state, (event.step, event.item), unit, event)


def _dropped(state: RunState, unit: UnitState, _seq: int, event: ev.ItemDropped) -> None:
    unit.reason = f"dropped from the dead letter queue by {event.by}"
    compaction.reopen_around(state, (event.step, event.item), unit.reason)
    unit.finished_at = event.at


def _edited(state: RunState, unit: UnitState, _seq: int, event: ev.ItemEdited) -> None:
    compaction.discard_inside(state, event.unit, unit)
    unit.failures = 0
    unit.reason = f"edited by {event.by}"
    compaction.new_round(state, (event.step, event.item), unit)  # another item: what it does is new work
    compaction.reopen_around(state, (event.step, event.item), unit.reason)


def _restored(_state: RunState, unit: UnitState, _seq: int, event: ev.ArtifactsRestored) -> None:
    unit.artifacts = event.artifacts


def _adopted(state: RunState, unit: UnitState, seq: int, event: ev.StepAdopted) -> None:
    unit.started_seq = seq
    unit.changed_seq = seq
    unit.fingerprint = event.fingerprint
    unit.duration = event.duration
    unit.inputs = event.inputs
    unit.finished_at = event.at
    unit.reason = event.skipped
    if event.controls:
        unit.items = Items(marks=bytearray())  # of its items nothing is known here
    if event.failed is not None:
        unit.error = event.failed
        unit.allowed = True
    elif not event.skipped:
        unit.completed_seq = event.rank or seq
        unit.completions = 1
        unit.outputs = event.outputs
        unit.artifacts = event.artifacts
        state.last_completed = (event.step, event.item)


CHANGES: Final[Mapping[type, Any]] = {
    ev.StepAdopted: _adopted,
    ev.ArtifactsRestored: _restored,
    ev.StepStarted: _started,
    ev.StepCompleted: _completed,
    ev.StepFailed: _failed,
    ev.StepProgressed: _progressed,
    ev.StepInterrupted: _interrupted,
    ev.StepSkipped: _skipped,
    ev.StepInvalidated: _invalidated,
    ev.StepMarked: _marked,
    ev.StepJudged: _judged,
    ev.ItemsListed: _listed,
    ev.ItemDropped: _dropped,
    ev.ItemEdited: _edited,
}
BY_PEOPLE: Final = frozenset((ev.StepMarked, ev.StepJudged, ev.ItemDropped, ev.ItemEdited))  # while nobody drives the run
