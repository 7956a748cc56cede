"""`rerail delete` and `rerail prune`: runs that nobody needs any more."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from rerail.app.runs import STATUSES, summaries
from rerail.cli.options import find_run, json_option, open_store, run_argument, store_option
from rerail.cli.render.output import say
from rerail.cli.render.table import table
from rerail.cli.render.terminal import STYLES, out_look
from rerail.cli.render.units import age, span
from rerail.core.state import shown_status
from rerail.errors import RerailError, RunBusy, UsageError
from rerail.stores.directory import DirectoryStore
from rerail.text import size_text as size

FINISHED = ("completed",)


@click.command(epilog="Example: rerail delete 20261115-2005")
@run_argument()
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@store_option()
def delete(run_name: str, yes: bool, store_url: str | None) -> int:
    """Delete a run: its journal, its checkpoints, its logs. A live one is refused."""
    store = open_store(store_url)
    run_id = find_run(store, run_name)
    if store.is_driven(run_id):
        raise RunBusy(f"run {run_id} is alive", hint=f"rerail stop {run_id}")
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("nobody is there to ask", hint=f"rerail delete {run_id} --yes")
        status = next(row["status"] for row in summaries(store, [run_id]))
        sure = click.confirm(f"delete run {run_id} ({status}, {size(tree_bytes(store.path(run_id)))})?", err=True)
        if not sure:
            say("rerail: nothing was deleted")
            return 0
    _remove(store, run_id)
    say(f"rerail: run {run_id} is deleted")
    return 0


@click.command(epilog="Example: rerail prune --older-than 30d --keep 50 --dry-run")
@click.option("--older-than", metavar="AGE", help="Only runs created longer ago than this: 12h, 30d.")
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Keep the newest N runs, whatever they are.")
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES),
              help="Runs with this status instead of completed ones; repeatable.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be deleted and change nothing.")
@json_option("The runs, with their bytes.")
@store_option()
def prune(
    older_than: str | None,
    keep: int | None,
    statuses: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    store_url: str | None,
) -> int:
    """Delete runs that are done with. Live ones never; resumable ones only if their status is named."""
    if older_than is None and keep is None:
        raise UsageError("prune needs --older-than or --keep", hint="rerail prune --older-than 30d --dry-run")
    store = open_store(store_url)
    rows = _prunable(store, _age(older_than), keep or 0, statuses or FINISHED)
    for row in rows:
        row["bytes"] = tree_bytes(store.path(row["run_id"]))
    kept = [] if dry_run else [row for row in rows if not _delete(store, row["run_id"], statuses or FINISHED)]
    gone = [row for row in rows if row not in kept]
    total = sum(row["bytes"] for row in gone)
    if as_json:
        shown = [{name: row[name] for name in ("run_id", "pipeline", "status", "created_at", "bytes")} for row in gone]
        sys.stdout.write(msgspec.json.encode(shown).decode() + "\n")
    else:
        _say_pruned(gone)
    say(f"rerail: {'would delete' if dry_run else 'deleted'} {len(gone)} runs, {size(total)}")
    _collect(store, {row["run_id"] for row in gone}, dry_run=dry_run)
    return 0


def _collect(store: DirectoryStore, gone: set[str], *, dry_run: bool) -> None:
    """Remove copies of artifacts that no run refers to any more."""
    from rerail.artifacts.content_store import ContentStore

    objects = ContentStore(os.path.join(store.root, "objects"))

    def find_live() -> set[str]:
        live: set[str] = set()
        for run_id in store.runs():
            if run_id in gone:
                continue
            for unit in store.read(run_id).state.units.values():
                for record in unit.artifacts:
                    live |= {record.sha256, record.manifest}
                    if record.manifest:
                        live.update(entry.sha256 for entry in objects.manifest(record.manifest) or ())
        return live

    try:
        count, total = objects.collect(find_live, dry_run=dry_run)
    except BlockingIOError:
        say("rerail: no copies of artifacts were removed: a run that is going on may need them")
        return
    except RerailError as error:
        say(f"rerail: no copies of artifacts were removed: a run cannot be read ({error})")
        return
    if count:
        say(f"rerail: {'would remove' if dry_run else 'removed'} {count} copies of artifacts, {size(total)}")


def _say_pruned(rows: list[dict[str, Any]]) -> None:
    now = datetime.now(UTC)
    cells = [
        ((row["run_id"], ""), (row["status"], STYLES.get(row["status"], "")), (age(row["created_at"], now), "dim"),
         (size(row["bytes"]), ""))
        for row in rows
    ]  # fmt: skip
    sys.stdout.write("".join(line + "\n" for line in table(cells, out_look())))


def _prunable(store: DirectoryStore, oldest: float | None, keep: int, statuses: tuple[str, ...]) -> list[dict[str, Any]]:
    now = datetime.now(UTC)
    rows = []
    for row in list(summaries(store))[keep:]:
        alive = bool(row.get("owner") and row["owner"]["alive"])
        if alive or row["status"] not in statuses:
            continue
        created = datetime.fromisoformat(row["created_at"].replace("Z", "+00:00")) if row["created_at"] else None
        if oldest is None or (created is not None and (now - created).total_seconds() > oldest):
            rows.append(row)
    return rows


def _age(text: str | None) -> float | None:
    if text is None:
        return None
    seconds = span(text)
    if seconds is None:
        raise UsageError(f"--older-than {text!r}: not a time such as 12h or 30d", hint="rerail prune --help")
    return seconds


def _delete(store: DirectoryStore, run_id: str, statuses: tuple[str, ...]) -> bool:
    """Delete a run whose status is one of these; whether it was."""

    def reject_other_status() -> None:
        # What the list said is not enough to destroy anything: since then somebody may have marked a step, resumed the
        # run or forked it, and damage is evidence.
        try:
            status = shown_status(store.read(run_id).state, owner_alive=False)  # its lock is ours
        except RerailError:
            if "damaged" not in statuses:
                raise
            return
        if status not in statuses:
            raise UsageError(f"it is {status} now", hint=f"rerail show {run_id}")

    try:
        _remove(store, run_id, reject_other_status)
    except (RerailError, OSError) as error:
        say(f"rerail: run {run_id} stays: {error}")
        return False
    return True


def _remove(store: DirectoryStore, run_id: str, check: Callable[[], None] = lambda: None) -> None:
    """Delete a run, then what its last attempts left in memory, and those of them that still run."""
    from rerail import processes
    from rerail.app.traces import process_tag_in
    from rerail.executors import channels

    mark = process_tag_in(store, run_id)
    store.delete(run_id, check)
    if mark:
        processes.kill_tagged(mark)
        channels.wipe(mark)


def tree_bytes(path: str) -> int:
    """What a directory takes, as far as it can be read."""
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_blocks * 512
            except OSError:
                continue
    return total
