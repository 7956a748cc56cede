"""`rerail list`, `rerail show` and `rerail history`: what is known, read without locking or changing anything."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from rerail.app.runs import STATUSES, owner_fields, summaries
from rerail.cli.options import (
    base_dir,
    complete_step,
    find_run,
    json_option,
    open_store,
    reach,
    run_argument,
    store_option,
)
from rerail.cli.render.events import sentence
from rerail.cli.render.output import printable, say
from rerail.cli.render.run import RunView, next_command
from rerail.cli.render.table import Cell, table
from rerail.cli.render.terminal import STYLES, Terminal, out_look
from rerail.cli.render.units import age, dollars, moment, seconds
from rerail.core.checkpoint import Checkpoint
from rerail.core.items import STATUS
from rerail.core.money import totals_by_step
from rerail.core.state import shown_status
from rerail.errors import UsageError
from rerail.stores.directory import DirectoryStore

MOST_PARAMS = 4  # that get a column each

# The names of the state that only resume needs; people and scripts are not shown them.
_INTERNAL = ("seq", "lives", "last_event", "last_unit", "last_completed", "pipeline_sha256", "finished_seq")


@click.command(name="list", epilog="Example: rerail list --status crashed")
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only such runs; repeatable.")
@click.option("--pipeline", help="Only runs of this pipeline.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Only runs with this label; repeatable.")
@click.option("--resumable", is_flag=True, help="Only runs that can be resumed.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N runs.")
@json_option("An array of runs, newest first.")
@store_option()
def list_runs(
    statuses: tuple[str, ...],
    pipeline: str | None,
    labels: tuple[str, ...],
    resumable: bool,
    limit: int | None,
    as_json: bool,
    store_url: str | None,
) -> int:
    """List the runs, newest first."""
    store = open_store(store_url)
    if bad := [label for label in labels if "=" not in label]:
        raise UsageError(f"--label {bad[0]!r}: not NAME=VALUE", hint="rerail list --help")
    pairs = [label.partition("=")[::2] for label in labels]

    def wanted(row: dict[str, Any]) -> bool:
        if (statuses and row["status"] not in statuses) or pipeline not in (None, row["pipeline"]):
            return False
        return (row["resumable"] or not resumable) and all(row["labels"].get(key) == value for key, value in pairs)

    rows = [row for row in summaries(store) if wanted(row)][:limit]
    if as_json:
        _emit(rows)
    elif not rows and store.runs():
        say(f"rerail: no run in {store.root} matches\n  next: rerail list")
    elif not rows:
        say(f"rerail: no runs in {store.root}\n  next: rerail run PIPELINE")
    else:
        _table(rows, out_look())
    return 0


def _table(rows: list[dict[str, Any]], look: Terminal) -> None:
    now = datetime.now(UTC)
    params = _shared_params(rows)
    named = [name.upper() for name in params] if params else ["PARAMS"]
    heads = ["RUN", "PIPELINE", *named, "STATUS", "STEPS", "ITEMS", "COST", "AGE", "TOOK"]
    cells: list[list[Cell]] = [[(head, "dim") for head in heads]]
    for row in rows:
        status = row["status"]
        cells.append(
            [
                (row["run_id"], ""),
                (row["pipeline"], ""),
                *_params(row, params),
                (f"{look.symbol(status)} {status}{_waits(row, now)}", STYLES.get(status, "")),
                (f"{row['steps_completed']}/{row['steps_total']}" if "steps_total" in row else "", ""),
                (_items(row), ""),
                (dollars(row.get("total_cost_usd") or 0), ""),
                (age(row["created_at"], now), ""),
                (seconds(row.get("duration_seconds")), ""),
            ]
        )
    # A column that nobody filled only takes room.
    filled = [at for at in range(len(heads)) if any(line[at][0] for line in cells[1:])]
    cells = [[line[at] for at in filled] for line in cells]
    lines = table(cells, look, cut=filled.index(2) if 2 in filled else 1)
    sys.stdout.write("".join(line + "\n" for line in lines))


def _shared_params(rows: list[dict[str, Any]]) -> list[str]:
    """The params that get a column each: where all runs have the same few."""
    names = {tuple(row["params"]) for row in rows if row["status"] != "damaged"}
    return list(names.pop()) if len(names) == 1 and len(next(iter(names))) <= MOST_PARAMS else []


def _params(row: dict[str, Any], columns: list[str]) -> list[Cell]:
    if columns:
        return [(str(row["params"].get(name, "")), "") for name in columns]
    return [(" ".join(f"{key}={value}" for key, value in row["params"].items()), "dim")]


def _waits(row: dict[str, Any], now: datetime) -> str:
    """What a paused run waits for, and until when."""
    if row["status"] != "paused" or not row.get("paused_for"):
        return ""
    until = row.get("paused_until")
    return f" ({row['paused_for']})" + (f" until {moment(until, now)}" if until else "")


def _items(row: dict[str, Any]) -> str:
    """How far the maps of a run are, and how many of their items failed for good."""
    if not row.get("items_total"):
        return ""
    dead = f", {row['dead_letters']} failed" if row.get("dead_letters") else ""
    return f"{row['items_done']}/{row['items_total']}{dead}"


@click.command(epilog="Example: rerail show last, or of a map: rerail show last sections --page 2")
@run_argument()
@click.argument("step", required=False, default=None, shell_complete=complete_step)
@click.option("--page", type=click.IntRange(min=1), default=1, metavar="N", help="Of the items of a map.")
@click.option("--status", type=click.Choice(STATUS), help="Only items of a map that stand so.")
@json_option("The whole state of the run, with the names of checkpoint.json.")
@store_option()
def show(run_name: str, step: str | None, page: int, status: str | None, as_json: bool, store_url: str | None) -> int:
    """Show one run: its steps, what they handed out, and why it stopped; or the items of one map."""
    store = open_store(store_url)
    run_id = find_run(store, run_name)
    if step is not None:
        from rerail.cli.render.items import show_items

        return show_items(store, run_id, step, page, status, as_json=as_json)
    return _show_run(store, run_id, as_json=as_json)


def _show_run(store: DirectoryStore, run_id: str, *, as_json: bool) -> int:
    from rerail import api

    recording = store.read(run_id)
    ownership = store.ownership(run_id)
    if not ownership.alive and any(unit.status == "running" for unit in recording.state.units.values()):
        from rerail.app.traces import last_traces

        for unit, far in last_traces(store, recording).items():
            recording.state.units[unit].so_far = far
    checkpoint = _with_states(api.checkpoint(store, recording), store)
    status = shown_status(recording.state, owner_alive=ownership.alive)
    if as_json:
        within = totals_by_step(recording.state)
        for record in checkpoint.steps:
            if record.item is None and record.id in within:
                record.metrics = within[record.id].metrics
        data: dict[str, Any] = msgspec.to_builtins(checkpoint)
        for name in _INTERNAL:
            del data[name]
        data["status"] = status
        data["owner"] = owner_fields(ownership)
        _emit(data)
        return 0
    portrait = RunView(checkpoint, status, out_look(), totals_by_step(recording.state))
    notices = () if ownership.alive else recording.notices
    parts = [
        portrait.overview(f"rerail logs {run_id}  ({store.path(run_id)}/logs)", notices),
        portrait.steps(),
        portrait.artifacts(),
        portrait.lives(store.history(run_id), alive=ownership.alive),
        portrait.error(),
    ]
    if recording.state.status != "completed" and not ownership.alive:
        parts.append([f"next   {next_command(run_id, checkpoint, reach(store))}"])
    sys.stdout.write("\n\n".join("\n".join(part) for part in parts if part) + "\n")
    return 0


def _with_states(checkpoint: Checkpoint, store: DirectoryStore) -> Checkpoint:
    """The checkpoint with what a glance at the artifacts of completed steps tells of them."""
    if not any(step.artifacts for step in checkpoint.steps):
        return checkpoint
    from rerail.artifacts.audit import state_of
    from rerail.artifacts.content_store import objects_of

    work_dir = os.path.join(base_dir(store), checkpoint.work_dir)
    objects = objects_of(store.path(checkpoint.run_id))
    for step in checkpoint.steps:
        if step.status == "completed":
            step.artifacts = tuple(
                msgspec.structs.replace(record, state=state_of(record, work_dir, objects)) for record in step.artifacts
            )
    return checkpoint


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
