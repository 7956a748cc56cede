"""`rerail history`: every event of a run."""

from __future__ import annotations

import sys

import click
import msgspec

from rerail.cli.options import find_run_or_newest, json_option, open_store, run_argument, store_option
from rerail.cli.render.events import sentence
from rerail.cli.render.streams import print_json, printable


@click.command(epilog="Example: rerail history last")
@run_argument(required=False)
@json_option("An array of events, newest first.")
@store_option()
def history(run_name: str | None, as_json: bool, store_url: str | None) -> int:
    """Show every event of a run, oldest first."""
    store = open_store(store_url)
    run_id = find_run_or_newest(store, run_name)
    records = list(store.history(run_id))
    if as_json:
        print_json([{"seq": seq, **msgspec.to_builtins(event)} for seq, event in reversed(records)])
        return 0
    for seq, event in records:
        at = event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        sys.stdout.write(printable(f"{seq:>5}  {at}  {sentence(event)}") + "\n")
    return 0
