"""`rerail mark`, `repair` and `stop`: what a person does to a run; what changes it is recorded in its journal."""

from __future__ import annotations

import os
import signal
import time

import click

from rerail import api, processes
from rerail.app import interventions
from rerail.app.traces import end_processes, ended_words, process_tag_in
from rerail.cli.options import base_dir, complete_step, find_run, open_store, reach, run_argument, store_option
from rerail.cli.render.output import say
from rerail.cli.render.prompt import who
from rerail.core.state import name
from rerail.errors import UsageError
from rerail.ports import Store


@click.command(epilog="Example: rerail mark last deploy completed")
@run_argument()
@click.argument("step", shell_complete=complete_step)
@click.argument("status", type=click.Choice(["completed", "failed", "pending"]))
@store_option()
def mark(run_name: str, step: str, status: str, store_url: str | None) -> int:
    """Say what is true of a step, where rerail cannot know.

    `failed` and `pending` make it run again: of a map, a loop or a pipeline all of it, of an item all its steps.
    """
    store = open_store(store_url)
    run_id = find_run(store, run_name)
    recording = store.read(run_id)
    known = [name((record.id, record.item)) for record in api.checkpoint(store, recording).steps]
    if step not in known:
        raise UsageError(
            f"run {run_id} has no step {step!r}; it has {', '.join(known[:12])}", hint=f"rerail show {run_id}"
        )
    units = {name(unit): unit for unit in recording.state.units}
    interventions.mark(store, run_id, units.get(step, (step, None)), status, who(), base_dir=base_dir(store))
    say(f"rerail: {step} is marked {status}\n  next: rerail resume {run_id}{reach(store)}")
    return 0


@click.command(epilog="Example: rerail repair last")
@run_argument()
@store_option()
def repair(run_name: str, store_url: str | None) -> int:
    """Salvage what can be proved of a damaged run; the damaged files are kept."""
    from rerail.stores.repair import repair as salvage

    store = open_store(store_url)
    run_id = find_run(store, run_name)
    done = salvage(store, run_id)
    if not done.reason:
        say(f"rerail: run {run_id} is not damaged; there is nothing to repair")
        return 0
    say(f"rerail: {done.reason}")
    say(f"rerail: run {run_id} goes on from record {done.seq}, proved by {done.source}")
    say(f"rerail: what happened after it will be done again; the damaged files are kept in {done.evidence}")
    say(f"  next: rerail resume {run_id}{reach(store)} --dry-run")
    return 0


@click.command(epilog="Example: rerail stop last")
@run_argument()
@click.option("--force", is_flag=True, help="Kill it and its steps at once.")
@store_option()
def stop(run_name: str, force: bool, store_url: str | None) -> int:
    """End a live run from another terminal; it can be resumed."""
    store = open_store(store_url)
    run_id = find_run(store, run_name)
    ownership = store.ownership(run_id)
    owner = ownership.owner
    if owner is None or not ownership.alive:
        ended = _end_left_over(store, run_id)
        more = f"; {ended_words(ended)}" if ended else ""
        say(f"rerail: run {run_id} is not running{more}\n  next: rerail resume {run_id}{reach(store)}")
        return 0
    if not processes.is_here(owner):
        raise UsageError(
            f"run {run_id} is driven by process {owner.pid} on {owner.host}, out of reach from here",
            hint=f"rerail stop {run_id}, on {owner.host}",
        )
    os.kill(owner.pid, signal.SIGKILL if force else signal.SIGTERM)
    while store.ownership(run_id).alive:
        time.sleep(0.02)
    _end_left_over(store, run_id, sure=force)  # one that was just being started may not show itself yet
    say(f"rerail: run {run_id} was stopped\n  next: rerail resume {run_id}{reach(store)}")
    return 0


def _end_left_over(store: Store, run_id: str, *, sure: bool = False) -> int:
    """End what runs of a run that nobody drives; how many processes that were. If none is seen, nothing is touched."""
    if not sure and next(processes.marked(process_tag_in(store, run_id) or "nobody's"), None) is None:
        return 0
    log = store.own(run_id)  # so that nobody begins to drive it meanwhile
    try:
        return end_processes(log)
    finally:
        log.close()
