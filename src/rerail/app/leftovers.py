"""Left-overs of dead runs in memory-backed storage, removed whenever a run of the same store is executed."""

from __future__ import annotations

import os
import time

from rerail.errors import RerailError
from rerail.ports import Store

MAX_LOOKS = 100  # directories of each place that one start looks at
FORGOTTEN_SECONDS = 24 * 3600.0  # after that the accounts of a run that is gone are removed


def sweep_channels(store: Store) -> None:
    """Remove the raw channel files of dead runs of a store: outputs that nothing will read, and may hold secrets.

    Metrics and progress of a run that can be resumed stay: they are the only record of the cost of attempts that were
    interrupted. Where the run is at rest they are recorded, and of a run that is gone they are kept for a day. Nothing
    of live runs, of other stores or of other users is touched.
    """
    from rerail.executors import channels  # only where something is about to run

    if not store.root:
        return
    runs = os.path.dirname(store.directory("any"))
    index = None
    for place in channels.all_directories(MAX_LOOKS):
        lock = channels.lock_of(place)
        run_id = os.path.basename(os.path.dirname(lock))
        if not lock or os.path.dirname(os.path.dirname(lock)) != runs:
            continue
        try:
            if store.ownership(run_id).alive:
                continue
            index = index or store.index()
            summary = index.get(run_id)
            whole = summary is not None and summary.status != "running"
        except RerailError:  # the run is gone
            whole = _age(place) > FORGOTTEN_SECONDS
        channels.discard(place, whole=whole)


def _age(path: str) -> float:
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return 0.0
