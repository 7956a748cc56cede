"""Traces of an invocation that was killed: attempts in flight, their progress and their cost.

Reads; changes nothing, but for orphaned processes: the owner of the run ends them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime

import msgspec

from rerail import processes
from rerail.app.masking import secret_names
from rerail.core import inflight
from rerail.core.durations import LastSeen
from rerail.core.events import AttemptProgress
from rerail.core.masking import Mask
from rerail.core.model import RunHeader
from rerail.core.money import COST, OTHER_TOKENS, TOKENS
from rerail.core.unit_id import UnitId
from rerail.ports import LoadedRun, RunWriter, Store

_PLAIN = frozenset((COST, *TOKENS, *OTHER_TOKENS))  # our own names: no secret can be in them


def process_tag(log: RunWriter) -> str:
    """Return the tag in the environment of every process of this run, wherever it is moved; a copy has another."""
    return _mark_text(log.recording.header, log.identity)


def process_tag_in(store: Store, run_id: str) -> str:
    """Return the process tag of a run without owning it; '' if it has none yet."""
    header, identity = store.header(run_id), store.identity(run_id)
    return _mark_text(header, identity) if header and identity else ""


def _mark_text(header: RunHeader, identity: str) -> str:
    return f"{header.run_id}@{header.created_at}@{identity}"


def invocation_of(header: RunHeader, began: datetime | None) -> str:
    """Return the name of an invocation, the same in every copy of the run; '' if there was none."""
    return f"{header.run_id}@{header.created_at}@{began.isoformat()}" if began is not None else ""


def end_processes(log: RunWriter) -> int:
    """End the processes that earlier invocations of an owned run left running; return how many there were.

    Nothing of the run may run then: an orphan could still write files that are checked next.
    """
    # A process that was just being started when its invocation ended is visible a moment later.
    pauses = (0.005,) if log.recording.state.status == "running" else ()
    marks = [_mark_text(log.recording.header, one) for one in (log.identity, log.former_identity) if one]
    return sum(processes.kill_tagged(mark, pauses=pauses) for mark in marks)


def ended_words(count: int) -> str:
    """Describe that processes were ended."""
    return f"ended {count} process{'es' if count > 1 else ''} left over from the previous invocation"


def last_traces(store: Store, recording: LoadedRun, mark: str = "") -> dict[UnitId, AttemptProgress]:
    """Return the progress of attempts in flight that are not recovered yet: by their traces, and by saved progress."""
    if not inflight.in_flight(recording.state):
        return {}
    mark = mark or process_tag_in(store, recording.header.run_id)
    from rerail.engine.spec import attempt_name  # only for runs that were interrupted, or are in flight
    from rerail.executors.channels import DeadChannels

    remains = DeadChannels(mark, invocation_of(recording.header, recording.state.invoked_at))
    found = inflight.last_seen(recording.state, lambda unit, attempt: remains.of(attempt_name(unit, attempt)))
    told = {unit: seen for unit, seen in found.items() if seen is not None}
    if any(seen.models or not seen.metrics.keys() <= _PLAIN for seen in told.values()):
        hide = _hiding(store, recording)
        told = {unit: hide(seen) for unit, seen in told.items()}
    return told


def death_of(store: Store, recording: LoadedRun) -> LastSeen:
    """Return when the last invocation of a run was last seen, as its watchdog noted it; nothing if that is unknown."""
    from rerail.executors.channels import DeadChannels  # only for runs that were killed

    mark = process_tag_in(store, recording.header.run_id)
    remains = DeadChannels(mark, invocation_of(recording.header, recording.state.invoked_at))
    return LastSeen(at=remains.died_at, after=remains.died_after)


def _hiding(store: Store, recording: LoadedRun) -> Callable[[AttemptProgress], AttemptProgress]:
    """Return a function that masks names an attempt chose; if not all secrets are known, it removes them."""
    names, is_whole = secret_names(store, recording)
    values = [os.environ.get(name, "") for name in names]
    mask = Mask(values) if is_whole and all(values) else None
    return lambda seen: _plain(seen) if mask is None else _masked(seen, mask)


def _masked(seen: AttemptProgress, mask: Mask) -> AttemptProgress:
    return mask.struct(seen)


def _plain(seen: AttemptProgress) -> AttemptProgress:
    """Remove names that the attempt chose: a secret may be among them."""
    metrics = {name: value for name, value in seen.metrics.items() if name in _PLAIN}
    return msgspec.structs.replace(seen, metrics=metrics, models={})


__all__ = [
    "death_of",
    "end_processes",
    "ended_words",
    "invocation_of",
    "last_traces",
    "process_tag",
    "process_tag_in",
]
