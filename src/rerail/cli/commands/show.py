"""`rerail show`: the state of one run, read without locking or changing anything."""

from __future__ import annotations

import os
import sys
from typing import Any

import click
import msgspec

from rerail.app.runs import last_seen, owner_fields
from rerail.cli.options import (
    complete_step,
    find_run_and_step,
    json_option,
    open_store,
    run_argument,
    store_flag,
    store_option,
)
from rerail.cli.render.next_command import next_command
from rerail.cli.render.run import RunView
from rerail.cli.render.streams import print_json
from rerail.cli.render.terminal import out_look
from rerail.core.checkpoint import Checkpoint
from rerail.core.durations import LastSeen, active_seconds, span_seconds
from rerail.core.items import STATUS
from rerail.core.money import totals_by_step
from rerail.core.state import RunState, shown_status
from rerail.core.unit_id import UnitId
from rerail.ports import LoadedRun, Store


@click.command(epilog="Example: rerail show last, or of an item: rerail show last sections intro")
@run_argument(required=False)
@click.argument("step", required=False, default=None, shell_complete=complete_step)
@click.argument("item", required=False, default=None)
@click.option("--page", type=click.IntRange(min=1), default=1, metavar="N", help="Page of items to show.")
@click.option("--status", type=click.Choice(STATUS), help="Only items with this status.")
@json_option("The run, named as in checkpoint.json; the page of the STEP; or an array of the items of a map.")
@store_option()
def show(
    run_name: str | None,
    step: str | None,
    item: str | None,
    page: int,
    status: str | None,
    as_json: bool,
    store_url: str | None,
) -> int:
    """Show a run; or one step, item or iteration with its attempts, outputs, artifacts and log; of a map, its items."""
    store = open_store(store_url)
    run_id, (step, item) = find_run_and_step(store, run_name, step, item)
    if step is not None:
        unit = UnitId(step, item) if item is not None else UnitId.parse(step)
        known = store.read(run_id).state.unit(unit)
        if unit.item is None and known.items is not None and not known.items.is_loop and known.items.total:
            from rerail.cli.render.items import show_items  # only for one step

            return show_items(store, run_id, step, page, status, as_json=as_json)
        from rerail.cli.render.step import show_step  # only for one step

        return show_step(store, run_id, unit, store_flag(store), as_json=as_json)
    return _show_run(store, run_id, as_json=as_json)


def _show_run(store: Store, run_id: str, *, as_json: bool) -> int:
    from rerail import api  # planning and loading: not for all of this command
    from rerail.app.claims import waits_for

    recording = store.read(run_id)
    ownership = store.ownership(run_id)
    if not ownership.alive and any(unit.status == "running" for unit in recording.state.units.values()):
        from rerail.app.traces import last_traces  # only for runs that were interrupted, or are in flight

        for unit, far in last_traces(store, recording).items():
            recording.state.units[unit].progress = far
    checkpoint = _with_states(api.checkpoint(store, recording), store)
    _count_up_to_now(checkpoint, recording.state, last_seen(store, recording, alive=ownership.alive))
    if ownership.alive and recording.state.status != "running" and checkpoint.concurrency:
        checkpoint.status_reason = waits_for(store, run_id) or checkpoint.status_reason
    status = shown_status(recording.state, owner_alive=ownership.alive)
    if as_json:
        within = totals_by_step(recording.state)
        for record in checkpoint.steps:
            if record.item is None and record.id in within:
                record.metrics = within[record.id].metrics
        data: dict[str, Any] = msgspec.to_builtins(checkpoint)
        _drop_internal(data)
        data["status"] = status
        data["owner"] = owner_fields(ownership)
        print_json(data)
        return 0
    _evaluate_questions(checkpoint, store, recording)
    portrait = RunView(checkpoint, status, out_look(), totals_by_step(recording.state))
    notices = () if ownership.alive else recording.notices
    following = "" if recording.state.status == "completed" else next_command(run_id, recording.state, store_flag(store))
    if ownership.alive:
        following = f"rerail watch {run_id}{store_flag(store)}"
    parts = [
        portrait.overview(_logs_hint(store, run_id), notices, following),
        portrait.steps(),
        portrait.artifacts(),
        portrait.invocations(store.history(run_id), alive=ownership.alive),
        portrait.error(),
    ]
    sys.stdout.write("\n\n".join("\n".join(part) for part in parts if part) + "\n")
    return 0


def _count_up_to_now(checkpoint: Checkpoint, state: RunState, seen: LastSeen) -> None:
    """Count the present invocation, and the steps that are running, up to now; those of a killed one up to its death."""
    checkpoint.active_seconds = active_seconds(state, seen)
    checkpoint.duration_seconds = span_seconds(state, seen)
    for step in checkpoint.steps:
        if step.status == "running" and step.started_at is not None:
            elapsed = step.progress.elapsed if step.progress is not None else 0.0
            if seen.at is not None:
                elapsed = max(elapsed, (seen.at - step.started_at).total_seconds())
            step.duration_seconds = max(elapsed, 0.0)


def _evaluate_questions(checkpoint: Checkpoint, store: Store, recording: LoadedRun) -> None:
    """Put values into the questions of pending `approve` steps where these are known already; drop the other ones."""
    templates = [one for one in checkpoint.steps if one.kind == "approve" and "${{" in one.command]
    if not templates:
        return
    from rerail.app.masking import secrets_of  # expressions: only for questions that hold some
    from rerail.app.planning import scope_of
    from rerail.core.expressions.language import ExpressionError, render

    scope = scope_of(recording, store.directory(checkpoint.run_id))
    mask = secrets_of(store, recording)
    for step in templates:
        try:
            step.command = mask.text(render(step.command, scope))
        except ExpressionError:
            step.command = "approve: "


def _drop_internal(data: dict[str, Any]) -> None:
    """Remove the members `internal`: only resume reads them. Those of outputs and params are the user's own."""
    steps = data["steps"]
    artifacts = [artifact for step in steps for artifact in step["artifacts"]]
    for record in (data, *steps, *artifacts, *(step["items"] for step in steps if step.get("items"))):
        record.pop("internal", None)


def _logs_hint(store: Store, run_id: str) -> str:
    where = store.logs(run_id).directory
    return f"rerail logs {run_id}  ({where})" if where else f"rerail logs {run_id}"


def _with_states(checkpoint: Checkpoint, store: Store) -> Checkpoint:
    """Return the checkpoint with the result of a quick check of the artifacts of completed steps."""
    if not any(step.artifacts for step in checkpoint.steps):
        return checkpoint
    from rerail.artifacts.audit import state_of  # only for runs with files

    work_dir = os.path.join(store.base_dir, checkpoint.work_dir)
    for step in checkpoint.steps:
        if step.status == "completed":
            step.artifacts = tuple(
                msgspec.structs.replace(record, state=state_of(record, work_dir, store.content))
                for record in step.artifacts
            )
    return checkpoint
