"""`rerail repair`: salvage the provable part of a damaged run; recorded in the journal."""

from __future__ import annotations

import click

from rerail.cli.options import find_run, open_store, run_argument, store_flag, store_option
from rerail.cli.render.streams import say


@click.command(epilog="Example: rerail repair last")
@run_argument()
@store_option()
def repair(run_name: str, store_url: str | None) -> int:
    """Recover what is intact of a damaged run; keep the damaged files as evidence."""
    store = open_store(store_url)
    run_id = find_run(store, run_name)
    done = store.repair(run_id)
    if not done.reason:
        say(f"rerail: run {run_id} is not damaged; nothing to repair")
        return 0
    say(f"rerail: {done.reason}")
    say(f"rerail: run {run_id} continues from record {done.seq}, proved by {done.source}")
    say(f"rerail: later work will run again; the damaged files are in {done.evidence}")
    say(f"  next: rerail resume {run_id}{store_flag(store)} --dry-run")
    return 0
