"""Forks: a new run that shares the work of another before a step, and diverges from there."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from typing import Any

import msgspec

from rerail.app.checks import params_of
from rerail.app.claims import concurrency_group
from rerail.app.masking import mask_of, require_no_secrets, require_no_secrets_in_header
from rerail.app.planning import ResumePlan, ResumeRequest, absolute, plan_resume, run_audit
from rerail.app.start import StartRequest, create_run, header_of, started
from rerail.core.checkpoint import checkpoint_of
from rerail.core.events import Cause, Event, Reason, RunInterrupted, RunStarted, StepInherited, StepInvalidated
from rerail.core.graph import downstream, topological
from rerail.core.model import Pipeline, Step
from rerail.core.plan import ExecuteOptions, PlanOptions
from rerail.core.planner import nested_units, plan
from rerail.core.staleness import EVERYTHING, references
from rerail.core.state import UnitState, fold
from rerail.core.unit_id import UnitId
from rerail.ports import LoadedRun, RunWriter, Store


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """Planned fork. Nothing was changed to make it."""

    ready: ResumePlan
    opening: RunStarted
    adopted: tuple[Event, ...]


def plan_fork(store: Store, parent_id: str, request: StartRequest, *, base_dir: str = "", look: bool = True) -> Fork:
    """Plan a run that shares everything before `request.execute.start` with its parent, or all if it is empty.

    Without `look` files are not checked: its execution will.
    """
    parent = store.read(parent_id)
    now = datetime.now(UTC)
    origin = plan_resume(
        store, parent, ResumeRequest(execute=msgspec.structs.replace(request.execute, verify=None)), base_dir
    )
    pipeline = origin.pipeline
    mask = mask_of(pipeline, request.options)
    require_no_secrets(mask, {**request.params, **request.labels, "run id": request.run_id})
    params = params_of(pipeline, {**_known(parent.header.params, pipeline), **request.params})
    path = absolute(parent.header.pipeline_path, base_dir)
    labels = {**parent.header.labels, **request.labels}
    header = header_of(
        pipeline, msgspec.structs.replace(request, pipeline_path=path, labels=labels), params, now, base_dir
    )
    header = msgspec.structs.replace(header, parent=parent_id, work_dir=parent.header.work_dir)
    header = msgspec.structs.replace(header, concurrency=concurrency_group(pipeline, header))
    require_no_secrets_in_header(mask, header, store.directory(header.run_id), absolute(header.work_dir, base_dir))
    opening = started(pipeline, origin.text, request.options, now)
    changed = {name for name in params if params[name] != parent.header.params.get(name)}
    as_it_was = plan(pipeline, parent.state)
    outdated = {made.step: made.why for made in as_it_was.decisions if not made.kept and not made.unless_unchanged}
    adopted = tuple(
        mask.struct(_with_results(event, store, header.run_id, absolute(header.work_dir, base_dir)))
        for event in _inherited(parent, pipeline, request.execute.start, changed, outdated, now)
    )
    state = fold(enumerate((opening, *adopted), 1))
    wishes = PlanOptions(start=request.execute.start, skip=request.execute.skip)
    wanted = ResumeRequest(execute=ExecuteOptions(verify="full" if look else None))
    audit = run_audit(pipeline, state, origin.place, store.content, wanted)
    ready = ResumePlan(
        run_id=header.run_id,
        recording=LoadedRun(header=header, state=state),
        pipeline=pipeline,
        text=origin.text,
        plan=plan(pipeline, state, audit, wishes),
        audit=audit,
        wishes=wishes,
        place=origin.place,
        notices=origin.notices,
        mask=mask,
    )
    return Fork(ready=ready, opening=opening, adopted=adopted)


def _known(params: dict[str, Any], pipeline: Pipeline) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name in pipeline.params and value is not None}


def _inherited(
    parent: LoadedRun, pipeline: Pipeline, start: str, changed: set[str], outdated: dict[str, Reason], now: datetime
) -> list[Event]:
    """Return the events that the new run inherits, and those that invalidate outdated ones or ones with other params."""
    after = downstream({step.id: step.needs for step in pipeline.steps}, [start] if start else [])
    events: list[Event] = []
    steps = {step.id: step for step in pipeline.steps}
    shared = [
        (unit.completed_seq, name)
        for (name, item), unit in parent.state.units.items()
        if item is None and name in steps and name not in after and _shareable(unit)
    ]
    ranks = {name: rank for rank, (_, name) in enumerate(sorted(shared), 1)}
    for step_id in topological({step.id: step.needs for step in pipeline.steps}):
        if step_id not in ranks:
            continue
        step, unit = steps[step_id], parent.state.unit(UnitId(step_id))
        events.append(
            StepInherited(
                at=now,
                step=step.id,
                run=parent.header.run_id,
                fingerprint=unit.fingerprint,
                duration=unit.duration,
                outputs=unit.outputs,
                artifacts=unit.artifacts,
                inputs=unit.inputs,
                skipped=(unit.reason or "skipped") if unit.status == "skipped" else "",
                failed=unit.error if unit.status == "failed" else None,
                rank=ranks[step_id],
                controls=step.is_controller,
            )
        )
        events += _adopted_inside(parent, step, now) if step.is_controller else ()
        read, _ = references(step, pipeline.env)
        other = sorted(changed if EVERYTHING in read else changed & read)
        why = outdated.get(step_id)
        if other:
            text = f"params.{other[0]} is another one than in {parent.header.run_id}"
            why = Reason(text, Cause(kind="params-changed"))
        if why:
            events.append(StepInvalidated(at=now, step=step_id, reason=why.text, because=why.cause))
    return events


def _adopted_inside(parent: LoadedRun, step: Step, now: datetime) -> list[Event]:
    """Return the products of items and other units inside a step that have to be proved."""
    inside = nested_units(parent.state, {step.id}, None).get(step.id, [])
    return [
        StepInherited(
            at=now,
            step=unit.step,
            item=unit.item,
            run=parent.header.run_id,
            fingerprint="",
            outputs=known.outputs,
            artifacts=known.artifacts,
            inputs=known.inputs,
        )
        for unit in inside
        if (known := parent.state.units[unit]).status == "completed" and known.artifacts
    ]


def _with_results(event: Event, store: Store, run_id: str, work_dir: str) -> Event:
    """Point an inherited map to results in the fork itself: its parent may be deleted."""
    if not (isinstance(event, StepInherited) and "results_sha256" in event.outputs):
        return event
    path = store.results_path(run_id, _results_name(event))
    if not path:
        return event
    outputs = {**event.outputs, "results_file": os.path.relpath(path, work_dir)}
    return msgspec.structs.replace(event, outputs=outputs)


def _shareable(unit: UnitState) -> bool:
    return unit.status in ("completed", "skipped") or (unit.status == "failed" and unit.allowed)


def _copy_results(store: Store, fork: Fork, log: RunWriter) -> None:
    """Copy the results of inherited maps from the parent; a lost one is missed when it is used."""
    parent = fork.ready.recording.header.parent
    for event in fork.adopted:
        if isinstance(event, StepInherited) and "results_sha256" in event.outputs:
            with contextlib.suppress(OSError):
                log.save_results(_results_name(event), [store.results(parent, _results_name(event))])


def _results_name(event: StepInherited) -> str:
    """Return the name under which a map saved its results: that of the file in its outputs."""
    return os.path.splitext(os.path.basename(str(event.outputs["results_file"])))[0]


def create_fork(store: Store, parent_id: str, request: StartRequest, *, base_dir: str = "") -> ResumePlan:
    """Create the run, with everything it shares durable first: from here on it is resumed like any run.

    Nothing is collected from the content store between reading the parent, which may be pruned at any moment, and the
    record that the fork refers to its copies too.
    """
    with store.content.pinned():
        fork = plan_fork(store, parent_id, request, base_dir=base_dir, look=False)
        header = fork.ready.recording.header
        log = create_run(store, header, fork.ready.text, generated=request.generated)
        try:
            now = fork.opening.at
            _copy_results(store, fork, log)
            events = [fork.opening, *fork.adopted, RunInterrupted(at=now, reason=f"forked from {header.parent}")]
            log.append(events)
            with contextlib.suppress(OSError):
                state = fold(enumerate(events, 1), log.recording.state)
                log.save_snapshot(checkpoint_of(header, fork.ready.pipeline, state), keep=0)
        finally:
            log.close()
        return fork.ready
