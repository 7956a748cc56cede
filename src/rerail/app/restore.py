"""Restore of artifacts before anything runs, as the plan says, and the events that record it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from rerail.app.masking import mask_of
from rerail.app.planning import ResumePlan, ResumeRequest, plan_resume, scope_of
from rerail.core.audit import after_restore
from rerail.core.events import ArtifactsRestored, Event, StepInvalidated
from rerail.core.expressions.language import ExpressionError
from rerail.core.expressions.render import filled
from rerail.core.plan import ExecuteOptions
from rerail.core.planner import plan
from rerail.core.unit_id import UnitId
from rerail.errors import UsageError
from rerail.ports import ContentStore, RunFiles, RunWriter, Store

if TYPE_CHECKING:
    from rerail.artifacts.restore import Restored


def restore(
    ready: ResumePlan, content: ContentStore, files: RunFiles, on_plan: Callable[[ResumePlan], None]
) -> tuple[ResumePlan, list[Restored]]:
    """Restore and quarantine; if a path cannot be restored after all, make another plan and report it."""
    done: list[Restored] = []
    while any(decision.flaws and decision.decision != "in-doubt" for decision in ready.plan.everything):
        from rerail.artifacts.restore import Restorer  # only for runs with broken artifacts

        restorer = Restorer(ready.place, content, files, ready.run_id, ready.mask)
        done += restorer.restore(ready.plan, ready.pipeline, ready.recording.state)
        if not restorer.failed:
            break
        restored = {flaw.path for one in done for flaw in one.restored}
        audit = after_restore(ready.audit, restored, restorer.failed)
        again = plan(ready.pipeline, ready.recording.state, audit, ready.wishes)
        ready = msgspec.structs.replace(ready, audit=audit, plan=again)
        on_plan(ready)
    return ready, done


def restore_events(ready: ResumePlan, done: Sequence[Restored], at: datetime) -> tuple[Event, ...]:
    """Return the events that record the restores and quarantines."""
    events: list[Event] = []
    state = ready.recording.state
    by_unit: dict[UnitId, list[Restored]] = {}
    for one in done:
        by_unit.setdefault(one.unit, []).append(one)
    for decision in ready.plan.everything:
        step, item = decision.unit
        mine = by_unit.get(decision.unit, [])
        quarantined = {path: where for one in mine for path, where in one.quarantined.items()}
        restored = {flaw.path: str(flaw.condition) for one in mine for flaw in one.restored}
        if decision.restores or (decision.kept and restored):
            artifacts = next((one.artifacts for one in reversed(mine) if one.artifacts), ())
            if not artifacts:
                continue
            events.append(
                ArtifactsRestored(
                    at=at, step=step, item=item, found=restored, artifacts=artifacts, quarantined=quarantined
                )
            )
        elif decision.flaws and decision.decision != "in-doubt":
            events.append(
                StepInvalidated(
                    at=at,
                    step=step,
                    item=item,
                    reason=decision.reason,
                    because=decision.because,
                    quarantined=quarantined,
                    index=state.unit(decision.unit).index,
                )
            )
    return tuple(events)


def seal_now(store: Store, log: RunWriter, step_id: str, base_dir: str, until: contextlib.ExitStack) -> dict[str, Any]:
    """Seal the present artifacts and inputs of a step that a person marks as completed.

    No copy of them is collected `until` the mark is recorded.
    """
    recording = log.recording
    ready = plan_resume(store, recording, ResumeRequest(execute=ExecuteOptions(verify=None)), base_dir)
    step = next((step for step in ready.pipeline.steps if step.id == step_id), None)
    if step is None or not (step.artifacts or step.inputs):
        return {}
    from rerail.artifacts.seal import ArtifactInvalid, SealEnv, examine, seal  # only for runs with files

    header = recording.header
    scope = scope_of(recording, log.directory)
    staging = until.enter_context(log.staging())
    mask = mask_of(ready.pipeline, recording.state.options if recording.state.seq else header.options)
    means = SealEnv(place=ready.place, content=store.content, staging=staging, mask=mask)
    try:
        artifacts = seal(filled(step.artifacts, scope), means).records
        return {"artifacts": artifacts, "inputs": examine(filled(step.inputs, scope), means)}
    except (ArtifactInvalid, ExpressionError) as error:
        hint = f"fix it, or: rerail mark {header.run_id} {step_id} pending"
        raise UsageError(f"{step_id} cannot be marked completed: {error}", hint=hint) from None
