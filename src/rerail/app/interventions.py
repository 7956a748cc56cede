"""Manual interventions in a run without an owner, recorded in its journal like every other event."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rerail.app.masking import mask_of, secrets_of
from rerail.app.planning import ResumeRequest, checkpoint, plan_resume
from rerail.app.restore import seal_now
from rerail.app.traces import death_of, end_processes, last_traces, process_tag
from rerail.core import item_list as lists
from rerail.core.compaction import is_past_iteration
from rerail.core.durations import open_seconds
from rerail.core.events import (
    ApprovalGiven,
    ArtifactsAccepted,
    Event,
    ItemDropped,
    ItemEdited,
    RunInterrupted,
    StepMarked,
)
from rerail.core.inflight import interrupted_event
from rerail.core.model import Approve, CheckpointPolicy, Pipeline, every_step
from rerail.core.plan import ExecuteOptions
from rerail.core.state import RunState, fold
from rerail.core.unit_id import UnitId, is_step_within, item_depth, outer_step, top_step
from rerail.errors import RunBusy, UsageError
from rerail.ports import RunWriter, Store

MAX_REASON = 10_000  # characters
_SAID = StepMarked | ArtifactsAccepted | ApprovalGiven | ItemDropped | ItemEdited  # events of people


@contextlib.contextmanager
def _owned(store: Store, run_id: str) -> Iterator[RunWriter]:
    """Own a run while the context is active, after ending orphaned processes, which would go on changing it."""
    log = store.own(run_id)
    try:
        end_processes(log)
        yield log
    finally:
        log.close()


def mark(store: Store, run_id: str, unit: UnitId, status: Any, by: str, *, base_dir: str = "") -> None:
    """Record the status that a person sets for a step, or for a unit inside one.

    Orphaned processes of the run are ended first. Marked as completed, a step vouches for its artifacts
    as they are now: they are sealed. Raise UsageError if they are not as declared.
    """
    with contextlib.ExitStack() as until:
        log = until.enter_context(_owned(store, run_id))
        now, (step, item) = datetime.now(UTC), unit
        known = log.recording.state.unit(unit)
        if status != "completed":  # vouching for the present product changes nothing for later iterations
            _check_current_iteration(log.recording.state, unit, run_id)
        files: dict[str, Any] = {}
        if status == "completed" and item is None and "/" not in step:
            files = seal_now(store, log, step, base_dir, until)
        events: list[Event] = [StepMarked(at=now, step=step, item=item, status=status, by=by, **files)]
        if known.status == "running":  # recorded so by an invocation that is over
            seen = last_traces(store, log.recording, process_tag(log)).get(unit)
            events.insert(0, interrupted_event(unit, known, seen, now))
        record(store, log, events)


def accept(store: Store, run_id: str, unit: UnitId, paths: Sequence[str], by: str, *, base_dir: str = "") -> int:
    """Accept edited artifacts of a completed unit as its product; return how many units changed.

    Raise UsageError if a path is no artifact of the unit, or the file is not as declared.
    """
    from rerail.app.acceptance import accept_now, recorded_paths  # only for edited artifacts

    with _owned(store, run_id) as log:
        ready = plan_resume(store, log.recording, ResumeRequest(execute=ExecuteOptions(verify=None)), base_dir)
        return accept_now(ready, {unit: recorded_paths(ready, unit, paths)}, by, store, log, record)


class PersonsAnswer(NamedTuple):
    """Answer of a person to an `approve` step, with the name and the reason."""

    approved: bool
    by: str
    reason: str = ""


def answer(store: Store, run_id: str, step: str, verdict: PersonsAnswer, *, base_dir: str = "") -> tuple[UnitId, bool]:
    """Record the answer to an `approve` step; return the unit, and whether it was sent to the owner of the run.

    It may be given before the step is reached. Raise UsageError if there is no such step, or it has its answer.
    """
    recording = store.read(run_id)
    ready = plan_resume(store, recording, ResumeRequest(execute=ExecuteOptions(verify=None)), base_dir)
    unit = _approve_step(ready.pipeline, recording.state, step, run_id)
    if not recording.state.seq:
        raise UsageError(f"run {run_id} has not started", hint=f"rerail resume {run_id}")
    _check_unanswered(recording.state, unit, run_id)
    if len(verdict.reason) > MAX_REASON:
        raise UsageError(f"-m: {len(verdict.reason)} characters; {MAX_REASON} at most", hint="rerail approve --help")
    mask = mask_of(ready.pipeline, recording.state.options)
    by, approved, reason = verdict.by, verdict.approved, verdict.reason
    now = datetime.now(UTC)
    seen = recording.state.seq
    said = mask.struct(
        ApprovalGiven(at=now, step=unit.step, item=unit.item, approved=approved, by=by, reason=reason, seen=seen)
    )
    with contextlib.ExitStack() as until:
        try:
            log = until.enter_context(_owned(store, run_id))
        except RunBusy:
            store.send(run_id, said)
            return unit, True
        _check_unanswered(log.recording.state, unit, run_id)  # another answer may have been quicker
        record(store, log, [said])
    return unit, False


def _check_unanswered(state: RunState, unit: UnitId, run_id: str) -> None:
    status = state.unit(unit).status
    if status in ("completed", "skipped", "running"):
        raise UsageError(f"{unit} is not waiting for approval: it is {status}", hint=f"rerail show {run_id}")


def _approve_step(pipeline: Pipeline, state: RunState, text: str, run_id: str) -> UnitId:
    steps = {step.id: depth for depth, step in every_step(pipeline) if isinstance(step.action, Approve)}
    unit = UnitId.parse(text)
    if unit.step not in steps:
        there = f"it has {', '.join(sorted(steps)[:12])}" if steps else "it has none"
        raise UsageError(f"run {run_id} has no `approve` step {text!r}; {there}", hint=f"rerail show {run_id}")
    body = outer_step(unit.step)
    begun = sorted(
        item
        for item, names in state.inner.items()
        if item_depth(item) == steps[unit.step] and any(is_step_within(one, body) for one in names)
    )
    if unit.item not in (begun if steps[unit.step] else [None]):
        named = f"name one of its items, such as {UnitId(unit.step, begun[0])}" if begun else "it has no such item"
        raise UsageError(f"{text!r} is not an `approve` step of run {run_id}: {named}", hint=f"rerail show {run_id}")
    return unit


def drop_items(store: Store, run_id: str, units: Sequence[UnitId], by: str) -> None:
    """Drop items of the dead letter queue."""
    _change(store, run_id, lambda now: [ItemDropped(at=now, step=step, item=item, by=by) for step, item in units])


def edit_item(store: Store, run_id: str, unit: UnitId, value: Any, by: str, *, base_dir: str = "") -> None:
    """Change an item of the dead letter queue; raise UsageError if the value could not be an item of the map."""
    recording = store.read(run_id)
    ready = plan_resume(store, recording, ResumeRequest(execute=ExecuteOptions(verify=None)), base_dir)
    mask = mask_of(ready.pipeline, recording.state.options)
    _check_current_iteration(recording.state, unit, run_id)
    hint = f"rerail dlq show {run_id} {unit.item}"
    if mask.value(value) != value:
        raise UsageError("the new value holds a secret; items are recorded, and secrets never are", hint=hint)
    try:
        lists.check_item(unit.item or "", value)
    except lists.ItemListError as error:
        raise UsageError(f"the new value cannot be an item: {error}", hint=hint) from None
    _change(store, run_id, lambda now: [ItemEdited(at=now, step=unit.step, item=unit.item, value=value, by=by)])


def _check_current_iteration(state: RunState, unit: UnitId, run_id: str) -> None:
    """Reject a unit in an iteration of a loop that has ended; raise UsageError.

    All later iterations depend on it: it cannot be changed without beginning the loop anew.
    """
    for outer in unit.ancestors():
        if is_past_iteration(state, outer, unit):
            raise UsageError(
                f"{unit} is in an iteration of {outer} that has ended",
                hint=f"rerail resume {run_id} --from {top_step(outer.step)}  # restarts it",
            )


def _change(store: Store, run_id: str, events: Callable[[datetime], Sequence[Event]]) -> None:
    with _owned(store, run_id) as log:
        record(store, log, [*events(datetime.now(UTC))])


def record(store: Store, log: RunWriter, events: list[Event]) -> None:
    """Append events to a run without an owner; an invocation that was killed is recorded as over first."""
    state: RunState = log.recording.state
    if state.status == "running":
        at = next((at for at, event in enumerate(events) if isinstance(event, _SAID)), 0)
        last = state.updated_at or events[0].at  # it was not executed since
        lasted = open_seconds(state, death_of(store, log.recording))
        events.insert(at, RunInterrupted(at=last, reason="its process died", active_seconds=lasted))
    mask = secrets_of(store, log.recording)
    events = [mask.struct(event) for event in events]
    fold(enumerate(events, state.seq + 1), state)  # raises IllegalEvent before anything is written
    log.append(events)
    with contextlib.suppress(OSError):
        log.save_snapshot(checkpoint(store, log.recording), keep=CheckpointPolicy().history)
