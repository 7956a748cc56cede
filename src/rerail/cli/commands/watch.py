"""`rerail watch`: the live view of a run that another process executes."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import click

from rerail.app.traces import process_tag_in
from rerail.cli.options import find_run, find_run_or_newest, open_store, run_argument, store_option
from rerail.cli.render.events import sentence
from rerail.cli.render.probe import AttemptProbe
from rerail.cli.render.streams import STDERR, say
from rerail.cli.render.terminal import terminal_of
from rerail.cli.render.units import clock
from rerail.core.plan import ExecuteOptions
from rerail.core.state import RunState, shown_status
from rerail.ports import LoadedRun, Store

POLL_SECONDS = 0.1
IDLE_FACTOR = 5  # reading takes at most a fifth of the time


@click.command(epilog="Example: rerail watch last")
@run_argument(required=False)
@store_option()
def watch(run_name: str | None, store_url: str | None) -> int:
    """Watch a live run of another process, by default the newest; Ctrl-C leaves the run alone."""
    gc.enable()
    store = open_store(store_url)
    run_id = find_run(store, run_name) if run_name is not None else _live_or_newest(store)
    try:
        recording = _draw(store, run_id) if terminal_of(STDERR).live else _tell(store, run_id)
    except KeyboardInterrupt:
        say(f"rerail: run {run_id} is still running\n  next: rerail watch {run_id}")
        return 0
    status = shown_status(recording.state, owner_alive=store.ownership(run_id).alive)
    hint = "" if status == "completed" else f"\n  next: rerail {'show' if status == 'failed' else 'resume'} {run_id}"
    say(f"rerail: run {run_id} is {status}{hint}")
    return 0


def _live_or_newest(store: Store) -> str:
    """Return the newest run that has an owner, or else the newest run."""
    from rerail.app.runs import newest_live  # only if no run is named

    return newest_live(store) or find_run_or_newest(store, None)


def _draw(store: Store, run_id: str) -> LoadedRun:
    from rerail import api  # planning and loading: not for all of this command
    from rerail.cli.render.live import LiveView

    ready = api.prepare(store, run_id, api.ResumeRequest(execute=ExecuteOptions(verify=None)), base_dir=store.base_dir)
    probe = AttemptProbe(store.logs(run_id), lambda: process_tag_in(store, run_id))
    view = LiveView(run_id, probe, terminal_of(STDERR))
    view.attach(ready.pipeline, ready.recording.state)
    try:
        for recording in _changes(store, run_id):
            view.replace(recording.state)
    finally:
        view.close()
    return recording


def _tell(store: Store, run_id: str) -> LoadedRun:
    """Print one line per event, where nothing can be drawn."""
    told = 0
    for latest in _changes(store, run_id):
        for seq, event in store.history(run_id) if latest.state.seq > told else ():
            if seq > told:
                say(f"{clock(event.at)}  {sentence(event)}")
                told = seq
    return latest


def _changes(store: Store, run_id: str) -> Iterator[LoadedRun]:
    """Yield the run each time it has changed, until it has no owner any more."""
    state, stamp = RunState(), ""
    while True:
        alive = store.ownership(run_id).alive
        began = time.monotonic()
        newest = store.stamp(run_id)
        if newest != stamp or state.seq == 0:
            recording = store.read(run_id)
            stamp, state = newest, recording.state
            yield recording
        if not alive:
            yield store.read(run_id)
            return
        time.sleep(max(POLL_SECONDS, (time.monotonic() - began) * IDLE_FACTOR))
