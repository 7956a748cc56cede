"""`rerail prune`: delete old runs."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import click

from rerail.app.runs import STATUSES, collect_copies, prunable, prune_run
from rerail.cli.options import json_option, open_store, store_option
from rerail.cli.render.streams import print_json, say
from rerail.cli.render.table import table
from rerail.cli.render.terminal import STYLES, out_look
from rerail.cli.render.units import age, counted, span
from rerail.errors import RerailError, UsageError
from rerail.ports import Store
from rerail.text import size_text as size

FINISHED = ("completed",)


@click.command(epilog="Example: rerail prune --older-than 30d --keep 50 --dry-run")
@click.option("--older-than", metavar="AGE", help="Only runs created longer ago than this (12h, 30d).")
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Always keep the newest N runs.")
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES),
              help="Runs with this status instead of completed ones; repeatable.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@json_option("The runs, with their bytes.")
@store_option()
def prune(
    older_than: str | None,
    keep: int | None,
    statuses: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
    store_url: str | None,
) -> int:
    """Delete old runs: never live ones, unfinished ones only if --status names them. Asks before, on a terminal."""
    if older_than is None and keep is None:
        raise UsageError("prune needs --older-than or --keep", hint="rerail prune --older-than 30d --dry-run")
    store = open_store(store_url)
    rows = prunable(store, _age(older_than), keep or 0, statuses or FINISHED)
    for row in rows:
        row["bytes"] = store.size(row["run_id"])
    if not dry_run and rows and not (yes or as_json) and sys.stdin.isatty():
        _say_pruned(rows)
        sys.stdout.flush()
        total = size(sum(row["bytes"] for row in rows))
        if not click.confirm(f"delete {counted(len(rows), 'run')}, {total}?", err=True):
            say("rerail: nothing deleted")
            return 0
    kept = [] if dry_run else [row for row in rows if not _prune(store, row["run_id"], statuses or FINISHED)]
    gone = [row for row in rows if row not in kept]
    total = sum(row["bytes"] for row in gone)
    if as_json:
        shown = [{name: row[name] for name in ("run_id", "pipeline", "status", "created_at", "bytes")} for row in gone]
        print_json(shown)
    else:
        _say_pruned(gone)
    say(f"rerail: {'would delete' if dry_run else 'deleted'} {counted(len(gone), 'run')}, {size(total)}")
    _collect(store, {row["run_id"] for row in gone}, dry_run=dry_run)
    return 0


def _prune(store: Store, run_id: str, statuses: tuple[str, ...]) -> bool:
    """Delete a run, or print why it stays; return whether it is gone."""
    try:
        prune_run(store, run_id, statuses)
    except (RerailError, OSError) as error:
        say(f"rerail: run {run_id} is kept: {error}")
        return False
    return True


def _collect(store: Store, gone: set[str], *, dry_run: bool) -> None:
    """Remove copies of artifacts that no run refers to any more, and report it."""
    try:
        count, total = collect_copies(store, gone, dry_run=dry_run)
    except BlockingIOError:
        say("rerail: no copies of artifacts removed: a live run may need them")
        return
    except RerailError as error:
        say(f"rerail: no copies of artifacts removed: a run cannot be read ({error})")
        return
    if count:
        copies = f"{count} {'copy' if count == 1 else 'copies'} of artifacts"
        say(f"rerail: {'would remove' if dry_run else 'removed'} {copies}, {size(total)}")


def _say_pruned(rows: list[dict[str, Any]]) -> None:
    now = datetime.now(UTC)
    cells = [
        ((row["run_id"], ""), (row["status"], STYLES.get(row["status"], "")), (age(row["created_at"], now), "dim"),
         (size(row["bytes"]), ""))
        for row in rows
    ]  # fmt: skip
    sys.stdout.write("".join(line + "\n" for line in table(cells, out_look())))


def _age(text: str | None) -> float | None:
    if text is None:
        return None
    seconds = span(text)
    if seconds is None:
        raise UsageError(f"--older-than {text!r}: not a time such as 12h or 30d", hint="rerail prune --help")
    return seconds
