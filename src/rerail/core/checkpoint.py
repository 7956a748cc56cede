"""checkpoint.json: the state of a run under the names that people and scripts read, and back again.

Pure construction: the store adds the journal position and the hash, and does the writing.
`checkpoint_of` covers every status of a run: completed, failed, interrupted, paused, still running.
"""

from datetime import datetime
from typing import Any, Literal

import msgspec

from rerail.core.dead_letters import dead_letters
from rerail.core.durations import span_seconds
from rerail.core.events import (
    Approval,
    ArtifactRecord,
    AttemptProgress,
    BudgetKind,
    Cause,
    Failure,
    InputRecord,
    Metrics,
    PauseCause,
)
from rerail.core.formats import CHECKPOINT
from rerail.core.items import ItemsRecord, items_of, record_of
from rerail.core.model import Pipeline, RunHeader, RunOptions, every_step
from rerail.core.money import COST, TOKENS, total
from rerail.core.state import RunState, RunStatus, UnitState, UnitStatus
from rerail.core.unit_id import UnitId

Reason = Literal["before_step", "after_step", "step_failed", "signal", "interval", "manual"]
Phase = Literal["before_step", "completed", "failed", "interrupted"]


class PhaseDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Phase of a run: about to start a step, after its completion, after its failure, or interrupted."""

    kind: Phase
    step: str | None = None
    step_index: int | None = None
    output: str | None = None
    error: str | None = None
    retryable: bool | None = None
    in_progress: bool | None = None


class StepInternals(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """The part of a step's record that only resume reads."""

    completions: int = 0
    started_seq: int = 0
    changed_seq: int = 0
    completed_seq: int = 0
    settled_seq: int = 0
    inputs: tuple[InputRecord, ...] = ()
    fingerprint: str = ""
    retry_in: float | None = None
    head: str = ""
    position: int | None = None  # of an item: its position in the list
    generation: int = 0
    refusals: int = 0
    void: float = 0.0


class StepRecord(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """Record of one step in checkpoint.json and `show --json`. Members with their default value are left out."""

    id: str
    index: int
    status: UnitStatus
    attempts: int
    command: str
    kind: str  # run, python, write, approve, map, loop or pipeline
    started_at: datetime | None
    finished_at: datetime | None
    duration_seconds: float | None
    output: str
    outputs: dict[str, Any]
    metrics: Metrics
    artifacts: tuple[ArtifactRecord, ...]
    error: Failure | None
    item: str | None = None
    failures: int = 0
    crashes: int = 0  # in a row
    retry_at: datetime | None = None
    allowed_failure: bool = False
    reason: str = ""
    because: Cause | None = None
    items: ItemsRecord | None = None
    worked_seconds: float = 0.0  # by all attempts
    progress: AttemptProgress | None = None
    approval: Approval | None = None
    internal: StepInternals = msgspec.field(default_factory=StepInternals)


class RunInternals(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """The part of a checkpoint that only resume reads."""

    seq: int = 0
    finished_seq: int = 0
    pipeline_sha256: str = ""
    hooks: tuple[str, ...] = ()
    last_event: str = ""
    last_unit: UnitId | None = None
    last_completed: UnitId | None = None
    budget_kind: BudgetKind = ""


class Checkpoint(msgspec.Struct, kw_only=True):
    """Snapshot of the state of a run at one journal position."""

    version: int
    run_id: str
    pipeline: str
    pipeline_path: str
    pipeline_type: Literal["standard", "iterative", "mapreduce"]
    work_dir: str
    worktree_path: str
    labels: dict[str, str]
    params: dict[str, Any]
    status: RunStatus
    state: PhaseDetail
    reason: Reason
    created_at: str
    started_at: datetime | None
    updated_at: datetime | None
    finished_at: datetime | None
    duration_seconds: float | None
    steps: list[StepRecord]
    last_completed_step: str | None
    next_step: str | None
    total_cost_usd: float
    total_tokens: int
    error: Failure | None
    resumable: bool
    status_reason: str = ""
    invocations: int = 0
    options: RunOptions = RunOptions()
    total_steps: int = 0
    removed_steps: tuple[str, ...] = ()  # recorded steps that the pipeline no longer has
    parent: str = ""
    concurrency: str = ""
    dead_letters: int = 0  # items that failed permanently
    spent: Metrics = {}  # by all attempts, ever
    active_seconds: float = 0.0  # in all invocations before this one
    invoked_at: datetime | None = None  # when this invocation began
    saved_usd: float = 0  # cost of reused work, not spent again in this invocation
    paused_for: PauseCause = ""
    paused_until: datetime | None = None
    waiting_for: tuple[str, ...] = ()  # units without an answer, or in doubt
    internal: RunInternals = msgspec.field(default_factory=RunInternals)


class PipelineOutline(msgspec.Struct, frozen=True):
    """Outline of a pipeline for its checkpoints: computed once, as checkpoints are taken again and again."""

    units: list[UnitId]
    index: dict[str, int]
    commands: dict[str, str]
    kinds: dict[str, str]


def outline_of(pipeline: Pipeline) -> PipelineOutline:
    """Return the outline of a pipeline."""
    return PipelineOutline(
        [UnitId(step.id) for step in pipeline.steps],
        {step.id: position for position, step in enumerate(pipeline.steps)},
        {step.id: step.command for _, step in every_step(pipeline)},
        {step.id: str(step.action.__struct_config__.tag) for _, step in every_step(pipeline)},
    )


def checkpoint_of(
    header: RunHeader, pipeline: Pipeline | PipelineOutline, state: RunState, reason: Reason | None = None
) -> Checkpoint:
    """Return the checkpoint of a run. `reason` is why it is taken now; by default it follows from the last event."""
    outline = pipeline if isinstance(pipeline, PipelineOutline) else outline_of(pipeline)
    index = outline.index
    units = [(unit, state.unit(unit)) for unit in outline.units]
    waiting = next((unit.step for unit, unit_state in units if not unit_state.settled), None)
    units += [
        (unit, unit_state) for unit, unit_state in state.units.items() if unit.item is not None or unit.step not in index
    ]
    phase, last_reason = _phase(state, index)
    return Checkpoint(
        version=CHECKPOINT.version,
        **_started_as(header),
        status=state.status,
        state=phase,
        reason=reason or last_reason,
        started_at=state.started_at,
        updated_at=state.updated_at,
        finished_at=state.finished_at,
        duration_seconds=span_seconds(state),
        steps=[_step_record(unit, unit_state, outline) for unit, unit_state in units],
        last_completed_step=str(state.last_completed) if state.last_completed else None,
        next_step=waiting,
        total_cost_usd=total_cost(state),
        total_tokens=total_tokens(state),
        error=state.error,
        resumable=state.status != "completed",
        status_reason=state.reason,
        invocations=state.invocations,
        options=state.options,
        total_steps=state.steps,
        removed_steps=state.removed,
        dead_letters=sum(1 for _ in dead_letters(state)) if state.inner else 0,
        spent=state.spent,
        active_seconds=state.active_seconds,
        invoked_at=state.invoked_at,
        saved_usd=state.saved_usd,
        paused_for=state.cause,
        paused_until=state.until,
        waiting_for=state.waiting_for,
        internal=RunInternals(
            seq=state.seq,
            finished_seq=state.finished_seq,
            pipeline_sha256=state.pipeline_sha256,
            hooks=state.hooks,
            last_event=state.last_event,
            last_unit=state.last_unit,
            last_completed=state.last_completed,
            budget_kind=state.budget_kind,
        ),
    )


def _started_as(header: RunHeader) -> dict[str, Any]:
    """Return the members that are known before the first event of the run."""
    return {
        "run_id": header.run_id,
        "pipeline": header.pipeline,
        "pipeline_path": header.pipeline_path,
        "pipeline_type": header.pipeline_type,
        "work_dir": header.work_dir,
        "worktree_path": header.work_dir,
        "labels": header.labels,
        "params": header.params,
        "created_at": header.created_at,
        "parent": header.parent,
        "concurrency": header.concurrency,
    }


def state_of(checkpoint: Checkpoint) -> RunState:
    """Return the state that a checkpoint was made of."""
    units = {UnitId(step.id, step.item): _unit_state(step) for step in checkpoint.steps if _touched(step)}
    internal = checkpoint.internal
    return RunState(
        status=checkpoint.status,
        seq=internal.seq,
        finished_seq=internal.finished_seq,
        invocations=checkpoint.invocations,
        pipeline_sha256=internal.pipeline_sha256,
        options=checkpoint.options,
        steps=checkpoint.total_steps,
        hooks=internal.hooks,
        removed=checkpoint.removed_steps,
        reason=checkpoint.status_reason,
        started_at=checkpoint.started_at,
        updated_at=checkpoint.updated_at,
        finished_at=checkpoint.finished_at,
        error=checkpoint.error,
        last_event=internal.last_event,
        last_unit=internal.last_unit,
        last_completed=internal.last_completed,
        spent=checkpoint.spent,
        active_seconds=checkpoint.active_seconds,
        invoked_at=checkpoint.invoked_at,
        saved_usd=checkpoint.saved_usd,
        cause=checkpoint.paused_for,
        until=checkpoint.paused_until,
        waiting_for=checkpoint.waiting_for,
        budget_kind=internal.budget_kind,
        units=units,
        inner=_inner(units),
    )


def _inner(units: dict[UnitId, UnitState]) -> dict[str, set[str]]:
    steps: dict[str, set[str]] = {}
    for step, item in units:
        if item is not None:
            steps.setdefault(item, set()).add(step)
    return steps


def _step_record(unit: UnitId, state: UnitState, outline: PipelineOutline) -> StepRecord:
    step, item = unit
    return StepRecord(
        id=step,
        index=outline.index.get(step, -1),
        status=state.status,
        attempts=state.attempts,
        command=outline.commands.get(step, ""),
        kind=outline.kinds.get(step, ""),
        started_at=state.started_at,
        finished_at=state.finished_at,
        duration_seconds=state.duration,
        output=state.output,
        outputs=state.outputs,
        metrics=state.metrics,
        artifacts=state.artifacts,
        error=state.error,
        item=item,
        failures=state.failures,
        crashes=state.crashes,
        retry_at=state.retry_at,
        allowed_failure=state.allowed,
        reason=state.reason,
        because=state.because,
        items=record_of(state.items),
        worked_seconds=state.worked,
        progress=state.progress,
        approval=state.approval,
        internal=StepInternals(
            completions=state.completions,
            started_seq=state.started_seq,
            changed_seq=state.changed_seq,
            completed_seq=state.completed_seq,
            settled_seq=state.settled_seq,
            inputs=state.inputs,
            fingerprint=state.fingerprint,
            retry_in=state.retry_in,
            head=state.head,
            position=state.index,
            generation=state.generation,
            refusals=state.refusals,
            void=state.void,
        ),
    )


def _unit_state(step: StepRecord) -> UnitState:
    internal = step.internal
    return UnitState(
        status=step.status,
        attempts=step.attempts,
        completions=internal.completions,
        failures=step.failures,
        crashes=step.crashes,
        started_seq=internal.started_seq,
        changed_seq=internal.changed_seq,
        completed_seq=internal.completed_seq,
        settled_seq=internal.settled_seq,
        inputs=internal.inputs,
        started_at=step.started_at,
        finished_at=step.finished_at,
        duration=step.duration_seconds,
        fingerprint=internal.fingerprint,
        outputs=step.outputs,
        metrics=step.metrics,
        artifacts=step.artifacts,
        output=step.output,
        error=step.error,
        retry_at=step.retry_at,
        retry_in=internal.retry_in,
        allowed=step.allowed_failure,
        head=internal.head,
        reason=step.reason,
        because=step.because,
        items=items_of(step.items),
        index=internal.position,
        generation=internal.generation,
        refusals=internal.refusals,
        void=internal.void,
        worked=step.worked_seconds,
        progress=step.progress,
        approval=step.approval,
    )


def _touched(step: StepRecord) -> bool:
    """Return whether a unit ever had an event; the others are in the file for the reader's sake."""
    return step.status != "pending" or bool(step.attempts or step.reason or step.internal.changed_seq)


def _phase(state: RunState, index: dict[str, int]) -> tuple[PhaseDetail, Reason]:
    step = state.last_unit.step if state.last_unit else None
    position = index.get(step) if step is not None else None
    unit = state.unit(state.last_unit) if state.last_unit else UnitState()
    if state.status in ("interrupted", "paused"):
        return PhaseDetail(kind="interrupted", step=step, step_index=position, in_progress=False), "signal"
    if state.status == "failed" and state.error is not None:
        step, unit = state.error.step, state.unit(UnitId(state.error.step, state.error.item))
        failed = PhaseDetail(
            kind="failed",
            step=step,
            step_index=index.get(step),
            error=state.error.message,
            retryable=state.error.retryable,
        )
        return failed, "step_failed"
    match state.last_event:
        case "step-completed":
            return PhaseDetail(kind="completed", step=step, step_index=position, output=unit.output), "after_step"
        case "step-failed" if unit.error is not None:
            failed = PhaseDetail(
                kind="failed",
                step=step,
                step_index=position,
                error=unit.error.message,
                retryable=unit.error.retryable,
            )
            return failed, "step_failed"
        case "step-interrupted":
            return PhaseDetail(kind="interrupted", step=step, step_index=position, in_progress=False), "signal"
        case "":
            return PhaseDetail(kind="before_step"), "before_step"
        case _:
            return PhaseDetail(kind="before_step", step=step, step_index=position), "before_step"


def total_cost(state: RunState) -> float:
    """Return the cost of a run in dollars, failed attempts included."""
    return _total(state, (COST,))


def total_tokens(state: RunState) -> int:
    """Return all tokens of a run, failed attempts included."""
    return int(_total(state, TOKENS))


def _total(state: RunState, names: tuple[str, ...]) -> float:
    return total(unit.metrics[metric] for unit in state.units.values() for metric in names if metric in unit.metrics)
