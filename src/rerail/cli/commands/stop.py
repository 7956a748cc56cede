"""`rerail stop`: end a live run, or the orphaned processes of a dead one."""

from __future__ import annotations

import signal
import time

import click

from rerail import processes
from rerail.app.stop import signal_owner
from rerail.app.traces import end_processes, ended_words, process_tag_in
from rerail.cli.options import find_run, open_store, run_argument, store_flag, store_option
from rerail.cli.render.streams import say
from rerail.errors import RunNotFound
from rerail.ports import Store


@click.command(epilog="Example: rerail stop last")
@run_argument()
@click.option("--force", is_flag=True, help="Kill the run and its steps at once.")
@store_option()
def stop(run_name: str, force: bool, store_url: str | None) -> int:
    """Stop a live run from another terminal; it can be resumed."""
    store = open_store(store_url)
    run_id = find_run(store, run_name)
    ownership = store.ownership(run_id)
    if ownership.owner is None or not ownership.alive:
        ended = _end_left_over(store, run_id)
        more = f"; {ended_words(ended)}" if ended else ""
        say(f"rerail: run {run_id} is not running{more}\n  next: rerail resume {run_id}{store_flag(store)}")
        return 0
    signal_owner(store, run_id, signal.SIGKILL if force else signal.SIGTERM)
    try:
        while store.ownership(run_id).alive:
            time.sleep(0.02)
    except RunNotFound:
        say(f"rerail: stopped run {run_id}, which had not begun: it is gone")
        return 0
    _end_left_over(store, run_id, sure=force)  # a process that was just being started may not be visible yet
    say(f"rerail: stopped run {run_id}\n  next: rerail resume {run_id}{store_flag(store)}")
    return 0


def _end_left_over(store: Store, run_id: str, *, sure: bool = False) -> int:
    """End the orphaned processes of a run without an owner; return how many there were.

    If none is found, the run is not touched, unless `sure`.
    """
    if not sure and next(processes.marked(process_tag_in(store, run_id) or "nobody's"), None) is None:
        return 0
    log = store.own(run_id)  # so that no other process can own it meanwhile
    try:
        return end_processes(log)
    finally:
        log.close()
