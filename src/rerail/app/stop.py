"""Stop of a live run from another process: the same signal as Ctrl-C would send, so the run can be resumed."""

from __future__ import annotations

import os
import signal

from rerail import processes
from rerail.errors import UsageError
from rerail.ports import Store


class OutOfReach(UsageError):
    """The owner of a run is a process that cannot be signalled from here."""


def signal_owner(store: Store, run_id: str, number: int = signal.SIGTERM) -> bool:
    """Send a signal to the live owner of a run; return whether there is one. Raise OutOfReach."""
    ownership = store.ownership(run_id)
    owner = ownership.owner
    if owner is None or not ownership.alive:
        return False
    if not processes.is_here(owner):
        raise OutOfReach(
            f"run {run_id} runs as process {owner.pid} on {owner.host}, out of reach from here",
            hint=f"rerail stop {run_id}, on {owner.host}",
        )
    if owner.pid == os.getpid():
        raise OutOfReach(f"run {run_id} is executed by this very process", hint=f"rerail show {run_id}")
    try:
        os.kill(owner.pid, number)
    except ProcessLookupError:
        return False
    return True
