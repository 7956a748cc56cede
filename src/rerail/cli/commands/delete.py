"""`rerail delete`: delete one run."""

from __future__ import annotations

import sys

import click

from rerail.app.runs import delete_run, summaries
from rerail.cli.options import find_run, open_store, run_argument, store_option
from rerail.cli.render.streams import say
from rerail.errors import RunBusy, UsageError
from rerail.text import size_text as size


@click.command(epilog="Example: rerail delete k7f3")
@run_argument()
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@store_option()
def delete(run_name: str, yes: bool, store_url: str | None) -> int:
    """Delete a run: its journal, its checkpoints, its logs. Refuses to delete a live run."""
    store = open_store(store_url)
    run_id = find_run(store, run_name)
    if store.is_owned(run_id):
        raise RunBusy(f"run {run_id} is running", hint=f"rerail stop {run_id}")
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("not a terminal: pass --yes to delete without asking", hint=f"rerail delete {run_id} --yes")
        status = next(row["status"] for row in summaries(store, [run_id]))
        sure = click.confirm(f"delete run {run_id} ({status}, {size(store.size(run_id))})?", err=True)
        if not sure:
            say("rerail: nothing deleted")
            return 0
    delete_run(store, run_id)
    say(f"rerail: deleted run {run_id}")
    return 0
