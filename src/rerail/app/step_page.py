"""Page about one step of a run, or of one item or iteration: everything that is known about it, as a value."""

from collections import deque
from collections.abc import Iterable
from datetime import datetime
from itertools import chain
from typing import Any, Literal

import msgspec

from rerail.app.logs import LogReader, LogSelection, assembled
from rerail.app.masking import present_secrets
from rerail.app.planning import absolute, scope_of
from rerail.core import item_list as lists
from rerail.core.dead_letters import dead_letters
from rerail.core.events import ArtifactRecord, Failure, Metrics
from rerail.core.expressions.language import ExpressionError
from rerail.core.expressions.render import StepResults, command_of
from rerail.core.model import CONTROLLERS, Loop, Map, Pipeline, Step, every_step
from rerail.core.money import COST, total
from rerail.core.run_state import RunState, UnitState
from rerail.core.unit_history import AttemptRecord, RecordsByUnit, UnitHistory
from rerail.core.unit_id import UnitId, outer_step, step_path, steps_around
from rerail.errors import PipelineInvalid, StateError, UsageError
from rerail.ports import LoadedRun, Store

LOG_LINES = 12
CommandSource = Literal["recorded", "evaluated", "declared"]


class AttemptRow(AttemptRecord, kw_only=True):
    """Attempt with the number of its invocation."""

    invocation: int


class UnitRow(msgspec.Struct, kw_only=True):
    """Row about a unit inside a step: an iteration, an item, or a step of one."""

    step: str
    item: str | None
    status: str
    attempts: int
    started_at: datetime | None
    duration_seconds: float | None
    cost_usd: float
    outputs: dict[str, Any]
    error: str


class StepPage(msgspec.Struct, kw_only=True):
    """All that is known about one step, item or iteration of a run."""

    run_id: str
    step: str
    item: str | None
    kind: str
    status: str  # '' of a step inside a map or loop: each instance has its own
    why: str  # why its last attempt ran, or why it was skipped
    command: str
    command_source: CommandSource  # as recorded by a failure, evaluated now, or as declared
    needs: tuple[str, ...]
    attempts: list[AttemptRow]
    duration_seconds: float | None
    worked_seconds: float
    metrics: Metrics
    outputs: dict[str, Any]
    artifacts: tuple[ArtifactRecord, ...]
    error: Failure | None
    iterations: list[UnitRow]  # of a loop
    inside: list[UnitRow]  # steps of an item, iteration or pipeline; instances of a step inside a map or loop
    is_dead_letter: bool
    log_tail: list[str]


def inspect_step(store: Store, recording: LoadedRun, unit: UnitId, *, alive: bool) -> StepPage:
    """Return all that is known about a unit; raise UsageError if the run has none of that name."""
    run_id = recording.header.run_id
    pipeline = recorded_pipeline(store, recording)
    records = RecordsByUnit(store.history(run_id))
    units = records.units
    declared = {step.id: step for _, step in every_step(pipeline)}
    instances = [known for known in units if known.step == unit.step and unit.item is None and known.item is not None]
    if unit not in units and not instances and (unit.item is not None or unit.step not in declared):
        _refuse(run_id, unit, units, declared)
    mine = records.history(unit)
    step = _declared(pipeline, unit)
    status = "" if instances else _status(mine, alive=alive)
    command, source = _command(store, recording, pipeline, unit, mine, records)
    rows = {known: _row(records, known, alive=alive) for known in units if known != unit and known.is_within(unit)}
    is_loop = step is not None and isinstance(step.action, Loop) and any(row.is_item_of(unit) for row in rows)
    iterations = [row for known, row in rows.items() if is_loop and known.is_item_of(unit)]
    inside = [row for known, row in rows.items() if not (is_loop and known.is_item_of(unit)) and _is_direct(known, unit)]
    attempts = [
        AttemptRow(**msgspec.structs.asdict(attempt), invocation=invocation.invocation)
        for invocation in mine.invocations
        for attempt in invocation.attempts
    ]
    last = attempts[-1] if attempts else None
    notes = [note for invocation in mine.invocations for note in invocation.notes]
    return StepPage(
        run_id=run_id,
        step=unit.step,
        item=unit.item,
        kind=_kind(pipeline, step, unit),
        status=status,
        why=notes[-1] if notes and (last is None or status == "skipped") else last.why if last else "",
        command=command,
        command_source=source,
        needs=step.needs if step is not None and unit.is_top_level else (),
        attempts=attempts,
        duration_seconds=last.duration_seconds if last else None,
        worked_seconds=sum(attempt.duration_seconds or 0.0 for attempt in attempts),
        metrics=_metrics(attempts),
        outputs=mine.outputs if status in ("completed", "failed") else {},
        artifacts=_with_states(store, recording, mine) if mine.status == "completed" else (),
        error=last.error if last and status != "completed" else None,
        iterations=iterations,
        inside=inside
        if unit.item is not None or instances or is_loop or _kind(pipeline, step, unit) == "pipeline"
        else [],
        is_dead_letter=unit in dead_letters(recording.state),
        log_tail=_log_tail(store, run_id, unit),
    )


def recorded_pipeline(store: Store, recording: LoadedRun) -> Pipeline:
    """Return the pipeline as the last invocation had it; without steps if its copy cannot be read."""
    from rerail.loaders.yaml import load_pipeline  # YAML: commands that only read a run start without it

    header = recording.header
    try:
        return load_pipeline(store.pipeline(header.run_id, recording.state.pipeline_sha256), header.pipeline_path)
    except (PipelineInvalid, StateError):
        return Pipeline(name=header.pipeline, steps=())  # without a file, of another version, or damaged


def _refuse(run_id: str, unit: UnitId, units: Iterable[UnitId], declared: dict[str, Step]) -> None:
    items = [known.item for known in units if known.step == unit.step and known.item is not None]
    if unit.item is not None and (items or unit.step in declared):
        there = ", ".join(str(item) for item in items[:12]) or "none yet"
        message = f"step {unit.step!r} of run {run_id} has no item {unit.item!r} with events (items: {there})"
        raise UsageError(message, hint=f"rerail show {run_id} {unit.step}")
    steps = dict.fromkeys((*declared, *(known.step for known in units)))
    there = ", ".join(list(steps)[:12])
    raise UsageError(f"run {run_id} has no step {unit.step!r} (steps: {there})", hint=f"rerail show {run_id}")


def _declared(pipeline: Pipeline, unit: UnitId) -> Step | None:
    """Return the declared step that a unit is an instance of; None for an item of several steps."""
    found = [step for depth, step in every_step(pipeline) if step.id == unit.step and depth == unit.depth]
    if found or unit.item is not None:
        return found[0] if found else None
    return next((step for _, step in every_step(pipeline) if step.id == unit.step), None)


def _kind(pipeline: Pipeline, step: Step | None, unit: UnitId) -> str:
    if step is None and unit.item is not None:
        controller = _declared(pipeline, unit.controller)
        return "iteration" if controller is not None and isinstance(controller.action, Loop) else "item"
    if step is None:
        return "unknown"
    return str(step.action.__struct_config__.tag)


def _is_direct(known: UnitId, unit: UnitId) -> bool:
    """Return whether a unit is one level inside another: a step of an item, or an instance of a step."""
    if known.step == unit.step:
        return unit.item is None
    return outer_step(known.step) == unit.step and known.item == unit.item


def _status(history: UnitHistory, *, alive: bool) -> str:
    return "interrupted" if history.status == "running" and not alive else history.status


def _metrics(attempts: Iterable[AttemptRecord]) -> Metrics:
    names = {name for attempt in attempts for name in attempt.metrics}
    return {name: total(attempt.metrics.get(name, 0) for attempt in attempts) for name in sorted(names)}


def _row(records: RecordsByUnit, unit: UnitId, *, alive: bool) -> UnitRow:
    history = records.history(unit)
    last = history.attempts[-1] if history.attempts else None
    return UnitRow(
        step=unit.step,
        item=unit.item,
        status=_status(history, alive=alive),
        attempts=last.attempt if last else 0,
        started_at=last.started_at if last else None,
        duration_seconds=last.duration_seconds if last else None,
        cost_usd=_metrics(history.attempts).get(COST, 0),
        outputs=history.outputs,
        error=last.error.message if last and last.error and history.status == "failed" else "",
    )


def _with_states(store: Store, recording: LoadedRun, history: UnitHistory) -> tuple[ArtifactRecord, ...]:
    """Return the artifacts with the result of a quick check of each."""
    if not history.artifacts:
        return ()
    from rerail.artifacts.audit import state_of  # only for steps with files

    work_dir = absolute(recording.header.work_dir, store.base_dir)
    known = recording.state.units.get(history.unit)
    records = known.artifacts if known is not None and known.artifacts else history.artifacts
    return tuple(msgspec.structs.replace(record, state=state_of(record, work_dir, store.content)) for record in records)


def _command(
    store: Store,
    recording: LoadedRun,
    pipeline: Pipeline,
    unit: UnitId,
    history: UnitHistory,
    records: RecordsByUnit,
) -> tuple[str, CommandSource]:
    """Return the command of a unit with the values of its expressions, secrets masked, as far as they are known."""
    errors = [attempt.error for attempt in history.attempts if attempt.error is not None]
    if errors and errors[-1].command and history.attempts[-1].error is errors[-1]:
        return errors[-1].command, "recorded"
    step = _declared(pipeline, unit)
    if step is None:
        return "", "declared"
    mask = present_secrets(pipeline, recording.state.options)
    if "${{" not in step.command or isinstance(step.action, CONTROLLERS) or not history.attempts:
        return mask.text(step.command), "declared"
    found = {known: records.history(known) for known in records.units if _is_seen_from(known, unit)}
    state = RunState(
        status=recording.state.status,
        units={known: UnitState(status=seen.status, outputs=seen.outputs) for known, seen in found.items()},
    )

    def lookup(name: str) -> UnitId:
        for outer in (*steps_around(unit.step), ""):
            for item in (unit.item, *(other.item for other in unit.ancestors())):
                if (inner := UnitId(step_path(outer, name), item)) in state.units:
                    return inner
        return UnitId(name)

    scope = scope_of(recording, store.directory(recording.header.run_id))
    scope = msgspec.structs.replace(
        scope, steps=StepResults(state, lookup), more=_names(store, pipeline, unit, recording)
    )
    try:
        return command_of(step, {**pipeline.env, **step.env}, scope, mask=mask), "evaluated"
    except ExpressionError:
        return mask.text(step.command), "declared"


def _is_seen_from(known: UnitId, unit: UnitId) -> bool:
    """Return whether expressions of a unit may name another unit: in the same instance, or in one around it."""
    return known.item in (unit.item, *(other.item for other in unit.ancestors()))


def _names(store: Store, pipeline: Pipeline, unit: UnitId, recording: LoadedRun) -> dict[str, Any]:
    """Return the item and the iteration that the expressions of a unit see."""
    names: dict[str, Any] = {}
    for around in (unit, *unit.ancestors()):
        if around.item is None:
            continue
        outer = around.controller
        step = _declared(pipeline, outer)
        if step is not None and isinstance(step.action, Loop) and "loop" not in names and around.key.isdigit():
            names["loop"] = {"iteration": int(around.key)}
        if step is not None and isinstance(step.action, Map) and "item" not in names:
            listing = lists.recorded(store.find(recording.header.run_id, lists.TAGS, outer.step), outer)
            if listing is not None and around.key in listing.keys:
                names["item"] = listing.value(listing.keys.index(around.key))
    return names


def _log_tail(store: Store, run_id: str, unit: UnitId) -> list[str]:
    """Return the last lines that a unit printed."""
    reader = LogReader(store.logs(run_id), LogSelection(step=unit.step, item=unit.item))
    pieces = chain(reader.ordered(ended=True), reader.new(), reader.rests())
    tail = deque((line.text for line in assembled(pieces)), maxlen=LOG_LINES)
    return [line.decode(errors="replace").rstrip("\r") for line in tail]
