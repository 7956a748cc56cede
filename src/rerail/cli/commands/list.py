"""`rerail list`: the runs, newest first, read without locking or changing anything."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import click

from rerail.app.runs import STATUSES, summaries
from rerail.cli.options import json_option, open_store, store_option
from rerail.cli.render.streams import print_json, say
from rerail.cli.render.table import Cell, table
from rerail.cli.render.terminal import STYLES, Terminal, out_look
from rerail.cli.render.units import age, dollars, moment, plain, seconds
from rerail.errors import UsageError

MAX_PARAMS = 4  # that get a column each


@click.command(name="list", epilog="Example: rerail list --status crashed")
@click.option(
    "--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only runs with this status; repeatable."
)
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
        print_json(rows)
    elif not rows and store.runs():
        say(f"rerail: no matching run in {store.url}\n  next: rerail list")
    elif not rows:
        say(f"rerail: no runs in {store.url}\n  next: rerail run PIPELINE")
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
    # An empty column only takes room.
    filled = [at for at in range(len(heads)) if any(line[at][0] for line in cells[1:])]
    cells = [[line[at] for at in filled] for line in cells]
    lines = table(cells, look, cut=filled.index(2) if 2 in filled else 1)
    sys.stdout.write("".join(line + "\n" for line in lines))


def _shared_params(rows: list[dict[str, Any]]) -> list[str]:
    """Return the params that get a column each: where all runs have the same few."""
    names = {tuple(row["params"]) for row in rows if row["status"] != "damaged"}
    return list(names.pop()) if len(names) == 1 and len(next(iter(names))) <= MAX_PARAMS else []


def _params(row: dict[str, Any], columns: list[str]) -> list[Cell]:
    if columns:
        return [(plain(row["params"].get(name, "")), "") for name in columns]
    return [(" ".join(f"{key}={plain(value)}" for key, value in row["params"].items()), "dim")]


def _waits(row: dict[str, Any], now: datetime) -> str:
    """Return the cause of a pause, and its end."""
    if row["status"] != "paused" or not row.get("paused_for"):
        return ""
    until = row.get("paused_until")
    return f" ({row['paused_for']})" + (f" until {moment(until, now)}" if until else "")


def _items(row: dict[str, Any]) -> str:
    """Return the progress of the maps of a run, and the number of items that failed permanently."""
    if not row.get("items_total"):
        return ""
    dead = f", {row['dead_letters']} failed" if row.get("dead_letters") else ""
    return f"{row['items_done']}/{row['items_total']}{dead}"
