"""`rerail list`: the runs, newest first, read without locking or changing anything."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from rerail.app.runs import STATUSES, summaries
from rerail.cli.options import json_option, open_store, store_flag, store_option
from rerail.cli.render.streams import print_json, say
from rerail.cli.render.table import Cell, table, width_of
from rerail.cli.render.terminal import STYLES, Terminal, out_look
from rerail.cli.render.units import age, dollars, moment, plain, seconds, since_moment
from rerail.errors import UsageError

MAX_PARAMS = 4  # that get a column each
SHOWN = 20  # runs, if no other number is asked for
_NARROWEST_CUT = 12  # columns that a cut column keeps, or it is left out
# The columns that a narrow terminal cuts or leaves out, in this order; never RUN and STATUS.
_FIRST_TO_GO = ("PARAMS", "ITEMS", "TOOK", "PIPELINE", "STEPS", "COST", "AGE")
_CUT = ("PARAMS", "PIPELINE")


@click.command(name="list", epilog="Example: rerail list --status crashed")
@click.option(
    "--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only runs with this status; repeatable."
)
@click.option("--pipeline", help="Only runs of this pipeline.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Only runs with this label; repeatable.")
@click.option("--resumable", is_flag=True, help="Only runs that can be resumed.")
@click.option("--since", default="", metavar="D", help="Only runs active since a day (2026-11-01) or within a time (2d).")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help=f"At most N runs. Default: {SHOWN}; with --json, all."
)
@click.option("--all", "everything", is_flag=True, help="All runs.")
@json_option("An array of runs, newest first: all of them without --limit.")
@store_option()
def list_runs(
    statuses: tuple[str, ...],
    pipeline: str | None,
    labels: tuple[str, ...],
    resumable: bool,
    since: str,
    limit: int | None,
    everything: bool,
    as_json: bool,
    store_url: str | None,
) -> int:
    """List the runs, newest first."""
    store = open_store(store_url)
    if bad := [label for label in labels if "=" not in label]:
        raise UsageError(f"--label {bad[0]!r}: not NAME=VALUE", hint="rerail list --help")
    if limit and everything:
        raise UsageError("--limit and --all exclude each other", hint="rerail list --help")
    pairs = [label.partition("=")[::2] for label in labels]
    start = since_moment(since, "rerail list") if since else None

    def wanted(row: dict[str, Any]) -> bool:
        if (statuses and row["status"] not in statuses) or pipeline not in (None, row["pipeline"]):
            return False
        if start is not None and row["status"] != "running" and not _is_active(row, start):
            return False
        return (row["resumable"] or not resumable) and all(row["labels"].get(key) == value for key, value in pairs)

    found = [row for row in summaries(store) if wanted(row)]
    most = limit or (None if everything or as_json else SHOWN)
    if as_json:
        print_json(found[:most])
    elif not found and store.runs():
        say(f"rerail: no matching run in {store.url}\n  next: rerail list")
    elif not found:
        say(f"rerail: no runs in {store.url}\n  next: rerail run PIPELINE")
    else:
        look = out_look()
        _table(found[:most], look)
        is_filtered = bool(statuses or pipeline or labels or resumable or since)
        footer = _footer(found, len(found[:most]), store_flag(store), is_filtered=is_filtered)
        if footer:
            say("  " + (" · " if look.unicode else "; ").join(footer))
    return 0


def _is_active(row: dict[str, Any], start: datetime) -> bool:
    """Return whether anything happened to a run since a moment; of a damaged run only its creation is known."""
    created = row["created_at"]
    last = row.get("updated_at") or (datetime.fromisoformat(created.replace("Z", "+00:00")) if created else None)
    return last is None or last >= start


def _footer(rows: list[dict[str, Any]], shown: int, where: str, *, is_filtered: bool) -> list[str]:
    """Return how many runs are not shown, not completed or damaged, and the next command for them."""
    running = [row for row in rows if row["status"] == "running"]
    damaged = [row for row in rows if row["status"] == "damaged"]
    unfinished = [row for row in rows if row["resumable"] and row["status"] != "running"]
    told = [f"{shown} of {len(rows)} runs (--all)"] if shown < len(rows) else []
    told += [
        f"{len(some)} {what}"
        for some, what in ((running, "running"), (unfinished, "unfinished"), (damaged, "damaged"))
        if some
    ]
    if unfinished:
        newest = next(row for row in rows if row["resumable"] or row["status"] == "damaged")
        name = "" if newest is unfinished[0] and not is_filtered else f" {unfinished[0]['run_id']}"
        told.append(f"next: rerail resume{name}{where}")
    elif running:
        told.append(f"next: rerail watch {running[0]['run_id']}{where}" if is_filtered else f"next: rerail watch{where}")
    elif damaged:
        told.append(f"next: rerail repair {damaged[0]['run_id']}{where}")
    return told


def _table(rows: list[dict[str, Any]], look: Terminal) -> None:
    lines = _lines(rows, _shared_params(rows), look)
    sys.stdout.write("".join(line + "\n" for line in lines))


def _lines(rows: list[dict[str, Any]], params: list[str], look: Terminal) -> list[str]:
    now = datetime.now(UTC)
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
                (seconds(row.get("duration_seconds") if (active := row.get("active_seconds")) is None else active), ""),
            ]
        )
    # An empty column only takes room.
    filled = [at for at in range(len(heads)) if any(line[at][0] for line in cells[1:])]
    cells = [[line[at] for at in filled] for line in cells]
    if look.width and params and width_of(cells) > look.width:
        return _lines(rows, [], look)  # several columns of params are one that can be cut
    return _fitting(cells, look)


def _fitting(cells: list[list[Cell]], look: Terminal) -> list[str]:
    """Return the lines of a table whose less needed columns are cut or left out until it fits."""
    for head in _FIRST_TO_GO:
        too_wide = width_of(cells) - look.width if look.width else 0
        if too_wide <= 0:
            break
        at = next((at for at, cell in enumerate(cells[0]) if cell[0] == head), None)
        if at is None:
            continue
        if head in _CUT and width_of([[line[at]] for line in cells]) - too_wide >= _NARROWEST_CUT:
            return table(cells, look, cut=at)
        cells = [line[:at] + line[at + 1 :] for line in cells]
    return table(cells, msgspec.structs.replace(look, width=0))  # RUN and STATUS are never cut


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
