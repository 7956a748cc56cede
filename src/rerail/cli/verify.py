"""`rerail verify`: prove what resume would rely on, without taking anything over or changing a byte."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from rerail.cli.options import complete_run, find_run, json_option, newest_first, open_store, store_option
from rerail.cli.output import say
from rerail.errors import RerailError, StateError, UsageError
from rerail.stores.directory import DirectoryStore
from rerail.stores.verify import verify as prove


@click.command(epilog="Example: rerail verify --all")
@click.argument("run_name", metavar="[RUN]", required=False, default=None, shell_complete=complete_run)
@click.option("--all", "everything", is_flag=True, help="Every run of the store.")
@json_option("An array of runs with what was found.")
@store_option()
def verify(run_name: str | None, everything: bool, as_json: bool, store_url: str | None) -> int:
    """Prove that what is recorded of a run is intact: every byte of its journal, its checkpoint, its pipeline."""
    store = open_store(store_url)
    if bool(run_name) == everything:
        raise UsageError("verify needs a RUN or --all", hint="rerail verify last")
    runs = newest_first(store) if everything else [find_run(store, run_name or "")]
    found = [_verified(store, run_id) for run_id in runs]
    if as_json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    else:
        for row in found:
            _say(row)
    bad = [row for row in found if not row["intact"]]
    if len(found) > 1 or not found:
        say(f"rerail: {len(found) - len(bad)} of {len(found)} runs are intact")
    return StateError.exit_code if bad else 0


def _verified(store: DirectoryStore, run_id: str) -> dict[str, Any]:
    try:
        proof = prove(store, run_id)
    except RerailError as error:
        return {"run_id": run_id, "intact": False, "problem": error.message, "next": error.hint}
    return {"run_id": run_id, "intact": True, **msgspec.structs.asdict(proof)}


def _say(row: dict[str, Any]) -> None:
    if not row["intact"]:
        say(f"rerail: run {row['run_id']} is NOT intact: {row['problem']}\n  next: {row['next']}")
        return
    lives = f"{row['segments']} segment{'s' if row['segments'] != 1 else ''}"
    say(f"rerail: run {row['run_id']} is intact: {row['records']} records in {lives}, {row['bytes']} bytes")
    for notice in row["notices"]:
        say(f"  {notice}")
