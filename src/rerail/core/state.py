"""The state of a run: the fold of its events. The tables below are the only place that says what may follow what.

An event that is not in a table raises IllegalEvent and changes nothing. State is changed in place, one unit
per event: a copy per event would make a long run quadratic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from rerail.core import events as ev
from rerail.core.events import ArtifactRecord, Event, Failure, InputRecord, Metrics, UnitEvent
from rerail.core.model import RunOptions
from rerail.errors import IllegalEvent

Unit = tuple[str, str | None]
UnitStatus = Literal["pending", "running", "completed", "failed", "interrupted", "skipped"]
RunStatus = Literal["pending", "running", "completed", "failed", "interrupted", "paused"]

_STARTABLE: Final = ("pending", "failed", "interrupted")

TRANSITIONS: Final[Mapping[tuple[str, type], UnitStatus]] = {
    **{(before, ev.StepStarted): "running" for before in _STARTABLE},
    ("running", ev.StepCompleted): "completed",
    ("running", ev.StepFailed): "failed",
    ("running", ev.StepInterrupted): "interrupted",
    ("pending", ev.StepSkipped): "skipped",
    ("pending", ev.StepAdopted): "completed",  # or skipped: the event says so
    ("completed", ev.ArtifactsRestored): "completed",
    # From running only when the attempt was announced and then never launched.
    **{
        (before, ev.StepInvalidated): "pending" for before in ("running", "completed", "failed", "interrupted", "skipped")
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


class UnitState(msgspec.Struct, kw_only=True, gc=False):
    """What is known of one unit. Outputs and artifacts are those of its last completion."""

    status: UnitStatus = "pending"
    attempts: int = 0  # started so far, for ever growing
    completions: int = 0
    failures: int = 0  # failed attempts since the unit was last pending: what a retry policy counts
    started_seq: int = 0  # journal position of the attempt that completed, or of the latest one
    changed_seq: int = 0  # journal position at which its product last became something different
    completed_seq: int = 0  # journal position of its last completion: the last producer of a path owns it
    started_at: datetime | None = None
    finished_at: datetime | None = None
    duration: float | None = None
    fingerprint: str = ""
    outputs: dict[str, Any] = {}
    metrics: Metrics = {}
    artifacts: tuple[ArtifactRecord, ...] = ()
    inputs: tuple[InputRecord, ...] = ()
    output: str = ""
    error: Failure | None = None
    retry_at: datetime | None = None
    retry_in: float | None = None
    allowed: bool = False
    head: str = ""  # where HEAD was when it was first tried
    reason: str = ""  # why it was skipped, invalidated, interrupted or marked

    @property
    def settled(self) -> bool:
        """Done in a way that lets dependants run."""
        return self.status in ("completed", "skipped") or (self.status == "failed" and self.allowed)


_UNTOUCHED: Final = UnitState()


class RunState(msgspec.Struct, kw_only=True):
    """The whole state of a run at journal position `seq`."""

    status: RunStatus = "pending"
    seq: int = 0
    lives: int = 0
    reason: str = ""
    pipeline_sha256: str = ""  # of the definition in use
    options: RunOptions = RunOptions()
    steps: int = 0  # how many the pipeline has
    hooks: tuple[str, ...] = ()
    started_at: datetime | None = None
    updated_at: datetime | None = None
    finished_at: datetime | None = None
    finished_seq: int = 0  # journal position of the latest end that was recorded
    error: Failure | None = None
    last_event: str = ""  # tag and unit of the last unit event: what checkpoint.json calls its state
    last_unit: Unit | None = None
    last_completed: Unit | None = None
    units: dict[Unit, UnitState] = {}

    def unit(self, unit: Unit) -> UnitState:
        """The state of a unit, to read; a unit nothing happened to is pending."""
        return self.units.get(unit, _UNTOUCHED)


def apply(state: RunState, seq: int, event: Event) -> None:
    """Change `state` by one event, in place; raise IllegalEvent and change nothing if it cannot follow."""
    if seq != state.seq + 1:
        raise IllegalEvent(f"record {seq} cannot follow record {state.seq}")
    if type(event) in _CHANGES:
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
            state.reason = ""
            state.error = None
        case ev.RunRepaired():
            state.reason = event.reason
            _suspect(state, event.suspects)
        case ev.RunInterrupted() | ev.RunPaused():
            state.reason = event.reason
        case ev.RunFinished():
            status = event.status
            state.finished_at = event.at
            state.finished_seq = state.seq + 1
    state.status = status


def _suspect(state: RunState, steps: Iterable[str]) -> None:
    """Steps that something happened to that can no longer be proved: as if they had been cut off."""
    for step in steps:
        unit = state.units.setdefault((step, None), UnitState())
        if unit.status != "completed":
            unit.status = "interrupted"
            unit.attempts = max(unit.attempts, 1)
            unit.reason = "its record was lost"


def _begin_life(state: RunState, event: ev.RunStarted | ev.RunResumed) -> None:
    state.lives += 1
    state.pipeline_sha256 = event.pipeline_sha256
    state.options = event.options
    state.steps = event.steps
    state.hooks = event.hooks


def _apply_unit(state: RunState, seq: int, event: UnitEvent) -> None:
    kind = type(event)
    if state.status != "running" and kind is not ev.StepMarked:
        raise IllegalEvent(f"{type(event).__name__} cannot happen in a run that is {state.status}")
    key = (event.step, event.item)
    unit = state.units.get(key)
    before: UnitStatus = "pending" if unit is None else unit.status
    try:
        status = TRANSITIONS[before, kind]
    except KeyError:
        raise IllegalEvent(f"{type(event).__name__} cannot happen to {name(key)}, which is {before}") from None
    if unit is None:
        unit = state.units[key] = UnitState()
    _CHANGES[kind](state, unit, seq, event)
    unit.status = status
    if isinstance(event, ev.StepAdopted):
        unit.status = "skipped" if event.skipped else "failed" if event.failed else status
    if isinstance(event, ev.StepMarked):
        unit.status = event.status
        if event.status != "completed" and state.status == "completed":
            state.status = "interrupted"
            state.reason = f"{name(key)} was {unit.reason}"
    state.last_event = _TAGS[kind]
    state.last_unit = key


def shown_status(state: RunState, *, owner_alive: bool) -> str:
    """The status people see: recorded as running with its owner dead is crashed."""
    return "crashed" if state.status == "running" and not owner_alive else state.status


def name(unit: Unit) -> str:
    """A unit as people write it: `step` or `step[item]`."""
    step, item = unit
    return step if item is None else f"{step}[{item}]"


def _started(_state: RunState, unit: UnitState, seq: int, event: ev.StepStarted) -> None:
    unit.attempts = event.attempt
    unit.started_seq = seq
    unit.started_at = event.at
    unit.finished_at = None
    unit.duration = None
    unit.retry_at = None
    unit.retry_in = None
    unit.fingerprint = event.fingerprint
    unit.inputs = event.inputs
    unit.head = unit.head or event.head


def _completed(state: RunState, unit: UnitState, seq: int, event: ev.StepCompleted) -> None:
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
    _ended(unit, event)
    if event.step not in state.hooks:
        state.last_completed = (event.step, event.item)


def same_product(unit: UnitState, event: ev.StepCompleted) -> bool:
    """Whether a completion produced exactly what the unit's previous completion did."""
    if event.outputs != unit.outputs or len(event.artifacts) != len(unit.artifacts):
        return False
    return all(new.product == old.product for new, old in zip(event.artifacts, unit.artifacts, strict=True))


def _failed(state: RunState, unit: UnitState, seq: int, event: ev.StepFailed) -> None:
    unit.failures += 1
    unit.error = event.error
    if event.allowed:
        # Dependants see it now, with nothing handed out: that is a product too, and a different one.
        unit.changed_seq = seq
        unit.outputs = {}
        unit.artifacts = ()
    unit.retry_at = event.retry_at
    unit.retry_in = event.retry_in
    unit.allowed = event.allowed
    _ended(unit, event)
    if event.retry_at is None and not event.allowed and state.error is None:
        state.error = event.error  # the first one: what fails after it is often its consequence


def _ended(unit: UnitState, event: ev.StepCompleted | ev.StepFailed) -> None:
    unit.finished_at = event.at
    unit.duration = event.duration
    unit.output = event.output
    if event.metrics:
        unit.metrics = added(unit.metrics, event.metrics)


def _interrupted(_state: RunState, unit: UnitState, _seq: int, event: ev.StepInterrupted) -> None:
    unit.finished_at = event.at
    unit.reason = event.reason
    if event.metrics:
        unit.metrics = added(unit.metrics, event.metrics)


def _skipped(_state: RunState, unit: UnitState, seq: int, event: ev.StepSkipped) -> None:
    unit.outputs = {}  # dependants see nothing of it now: whatever it makes later is something different
    unit.artifacts = ()
    unit.started_seq = seq
    if unit.completions or unit.error or not unit.changed_seq:  # else it was skipped before, which is no change
        unit.changed_seq = seq
    unit.fingerprint = event.fingerprint
    unit.reason = event.reason
    unit.finished_at = event.at


def _invalidated(_state: RunState, unit: UnitState, _seq: int, event: ev.StepInvalidated) -> None:
    unit.failures = 0
    unit.reason = event.reason
    unit.retry_at = None
    unit.retry_in = None
    unit.allowed = False


def _marked(state: RunState, unit: UnitState, seq: int, event: ev.StepMarked) -> None:
    unit.failures = 0
    unit.retry_at = None
    unit.retry_in = None
    unit.allowed = False
    unit.reason = f"marked {event.status} by {event.by}"
    unit.error = None
    unit.finished_at = event.at
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
    if event.failed is not None:
        unit.error = event.failed
        unit.allowed = True
    elif not event.skipped:
        unit.completed_seq = event.rank or seq
        unit.completions = 1
        unit.outputs = event.outputs
        unit.artifacts = event.artifacts
        state.last_completed = (event.step, event.item)


_CHANGES: Final[Mapping[type, Any]] = {
    ev.StepAdopted: _adopted,
    ev.ArtifactsRestored: _restored,
    ev.StepStarted: _started,
    ev.StepCompleted: _completed,
    ev.StepFailed: _failed,
    ev.StepInterrupted: _interrupted,
    ev.StepSkipped: _skipped,
    ev.StepInvalidated: _invalidated,
    ev.StepMarked: _marked,
}


_TAGS: Final[Mapping[type, str]] = {kind: str(kind.__struct_config__.tag) for kind in _CHANGES}  # type: ignore[attr-defined]


def added(first: Metrics, second: Metrics) -> Metrics:
    """Two sets of metrics, summed name by name."""
    total = dict(first)
    for key, value in second.items():
        total[key] = total.get(key, 0) + value
    return total
