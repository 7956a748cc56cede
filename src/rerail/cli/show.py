"""`rerail list`, `rerail show` and `rerail history`: what is known, read without locking or changing anything."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from rerail.cli.durations import seconds
from rerail.cli.options import find_run, json_option, newest_first, open_store, run_argument, store_option
from rerail.cli.output import printable, say
from rerail.cli.sentences import sentence
from rerail.core.checkpoint import StepRecord, total_tokens
from rerail.core.state import name, shown_status
from rerail.errors import RerailError
from rerail.ports import Ownership
from rerail.stores.directory import DirectoryStore

STATUSES = ("pending", "running", "completed", "failed", "interrupted", "paused", "crashed", "damaged")

# The names of the state that only resume needs; people and scripts are not shown them.
_INTERNAL = ("seq", "lives", "last_event", "last_unit", "last_completed", "pipeline_sha256")


@click.command(name="list", epilog="Example: rerail list --status crashed")
@click.option("--status", type=click.Choice(STATUSES), help="Only runs with this status.")
@click.option("--pipeline", help="Only runs of this pipeline.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Only runs with this label; repeatable.")
@click.option("--resumable", is_flag=True, help="Only runs that can be resumed.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N runs.")
@json_option("An array of runs, newest first.")
@store_option()
def list_runs(
    status: str | None,
    pipeline: str | None,
    labels: tuple[str, ...],
    resumable: bool,
    limit: int | None,
    as_json: bool,
    store_url: str | None,
) -> int:
    """List the runs, newest first."""
    store = open_store(store_url)
    rows: list[dict[str, Any]] = []
    pairs = [tuple(label.partition("=")[::2]) for label in labels]
    for run_id in newest_first(store):
        row = _summary(store, run_id)
        wanted = status in (None, row["status"]) and pipeline in (None, row["pipeline"])
        wanted = wanted and all(f"{key}={row['labels'].get(key)}" == f"{key}={value}" for key, value in pairs)
        if wanted and (row["resumable"] or not resumable):
            rows.append(row)
        if limit is not None and len(rows) >= limit:
            break
    if as_json:
        _emit(rows)
    elif not rows and store.runs():
        say(f"rerail: no run in {store.root} matches\n  next: rerail list")
    elif not rows:
        say(f"rerail: no runs in {store.root}\n  next: rerail run PIPELINE")
    else:
        _table(rows)
    return 0


def _summary(store: DirectoryStore, run_id: str) -> dict[str, Any]:
    """One row of the list; a run that cannot be read is listed as what it is."""
    try:
        recording = store.read(run_id)
    except RerailError as error:
        return {
            "run_id": run_id,
            "pipeline": "?",
            "labels": {},
            "status": "damaged",
            "resumable": False,
            "created_at": store.created_at(run_id),
            "error": error.message,
        }
    header, state = recording.header, recording.state
    ownership = store.ownership(run_id)
    units = [unit for (step, item), unit in state.units.items() if item is None and step not in state.hooks]
    return {
        "run_id": run_id,
        "pipeline": header.pipeline,
        "pipeline_path": header.pipeline_path,
        "work_dir": header.work_dir,
        "labels": header.labels,
        "params": header.params,
        "status": shown_status(state, owner_alive=ownership.alive),
        "steps_completed": min(sum(unit.settled for unit in units), state.steps),  # removed steps may be among them
        "steps_total": state.steps,
        "total_cost_usd": sum(unit.metrics.get("cost_usd", 0) for unit in state.units.values()),
        "created_at": header.created_at,
        "started_at": state.started_at,
        "updated_at": state.updated_at,
        "finished_at": state.finished_at,
        "duration_seconds": _duration(state.started_at, state.finished_at or state.updated_at),
        "resumable": state.status != "completed",
        "pipeline_type": "standard",
        "last_completed_step": name(state.last_completed) if state.last_completed else None,
        "total_tokens": total_tokens(state),
        "owner": _owner(ownership),
        "error": msgspec.to_builtins(state.error),
    }


def _owner(ownership: Ownership) -> dict[str, Any] | None:
    return {**msgspec.to_builtins(ownership.owner), "alive": ownership.alive} if ownership.owner else None


def _duration(start: datetime | None, end: datetime | None) -> float | None:
    return max((end - start).total_seconds(), 0.0) if start and end else None


def _table(rows: list[dict[str, Any]]) -> None:
    cells = [("RUN", "PIPELINE", "STATUS", "STEPS", "COST", "AGE", "TOOK")]
    now = datetime.now(UTC)
    for row in rows:
        cost = row.get("total_cost_usd") or 0
        cells.append(
            (
                row["run_id"],
                row["pipeline"],
                row["status"],
                f"{row['steps_completed']}/{row['steps_total']}" if "steps_total" in row else "",
                f"${cost:.2f}" if cost else "",
                _age(row["created_at"], now),
                seconds(row.get("duration_seconds")),
            )
        )
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True))
        sys.stdout.write(printable("  ".join(padded).rstrip()) + "\n")


def _age(created_at: str, now: datetime) -> str:
    try:
        then = datetime.fromisoformat(created_at.replace("Z", "+00:00"))
    except ValueError:
        return ""
    passed = max((now - then).total_seconds(), 0.0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed >= size:
            return f"{int(passed // size)} {unit}"
    return f"{int(passed)} s"


@click.command(epilog="Example: rerail show last")
@run_argument()
@json_option("The whole state of the run, with the names of checkpoint.json.")
@store_option()
def show(run_name: str, as_json: bool, store_url: str | None) -> int:
    """Show one run: its steps, what they handed out, and why it stopped."""
    from rerail import api

    store = open_store(store_url)
    run_id = find_run(store, run_name)
    recording = store.read(run_id)
    ownership = store.ownership(run_id)
    checkpoint = api.checkpoint(store, recording)
    status = shown_status(recording.state, owner_alive=ownership.alive)
    if as_json:
        data: dict[str, Any] = msgspec.to_builtins(checkpoint)
        for name in _INTERNAL:
            del data[name]
        data["status"] = status
        data["owner"] = _owner(ownership)
        _emit(data)
        return 0
    out = [
        f"run        {run_id}",
        f"pipeline   {checkpoint.pipeline}  ({checkpoint.pipeline_path})",
        f"status     {status}" + (f": {checkpoint.status_reason}" if checkpoint.status_reason else ""),
        f"created    {checkpoint.created_at}",
        f"took       {seconds(checkpoint.duration_seconds)}, from its start to its last event",
        f"resumed    {recording.state.lives - 1} times" if recording.state.lives > 1 else "resumed    never",
    ]
    if checkpoint.total_cost_usd or checkpoint.total_tokens:
        out.append(f"cost       ${checkpoint.total_cost_usd:.2f}, {checkpoint.total_tokens} tokens")
    out.append(f"logs       {store.path(run_id)}/logs")
    out += [f"notice     {notice}" for notice in recording.notices if not ownership.alive]
    width = max((len(step.id) for step in checkpoint.steps), default=0)
    out += ["", *(_step_line(step, width) for step in checkpoint.steps)]
    if checkpoint.error is not None:
        out += ["", f"error      {checkpoint.error.step}: {checkpoint.error.message}"]
        out += [f"  | {line}" for line in checkpoint.error.stderr_tail.splitlines()[-12:]]
    if recording.state.status != "completed" and not ownership.alive:
        out += ["", f"next       {_next(run_id, recording.state.reason)}"]
    sys.stdout.write(printable("\n".join(out)) + "\n")
    return 0


def _next(run_id: str, reason: str) -> str:
    unknown = re.match(r"the outcome of ([^ ,]+)", reason)
    return f"rerail mark {run_id} {unknown[1]} completed|failed|pending" if unknown else f"rerail resume {run_id}"


def _step_line(step: StepRecord, width: int) -> str:
    attempts = f"  {step.attempts} attempts" if step.attempts > 1 else ""
    outputs = f"  {msgspec.json.encode(step.outputs).decode()[:80]}" if step.outputs else ""
    if step.status in ("skipped", "interrupted"):
        outputs += f"  {step.reason}"
    if step.allowed_failure:
        outputs += "  which is allowed"
    return f"  {step.status:<11} {step.id:<{width}}  {seconds(step.duration_seconds):<8}{attempts}{outputs}".rstrip()


@click.command(epilog="Example: rerail history last")
@run_argument()
@json_option("An array of events, newest first.")
@store_option()
def history(run_name: str, as_json: bool, store_url: str | None) -> int:
    """Tell everything that ever happened to a run, in order."""
    store = open_store(store_url)
    run_id = find_run(store, run_name)
    records = list(store.history(run_id))
    if as_json:
        _emit([{"seq": seq, **msgspec.to_builtins(event)} for seq, event in reversed(records)])
        return 0
    for seq, event in records:
        at = event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        sys.stdout.write(printable(f"{seq:>5}  {at}  {sentence(event)}") + "\n")
    return 0


def _emit(value: Any) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
