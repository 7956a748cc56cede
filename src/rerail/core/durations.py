"""Durations of a run: the seconds in which it was executed, and the span from its start to its end. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec

from rerail.core.run_state import RunState


class LastSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Last sign of an invocation that has not recorded its end: the present, if it is alive."""

    at: datetime | None = None
    after: float | None = None  # its measured duration in seconds by then, independent of the wall clock


NEVER = LastSeen()


def open_seconds(state: RunState, seen: LastSeen = NEVER) -> float:
    """Return the duration of the invocation that has not recorded its end, as far as is known; 0 if there is none."""
    began = state.invoked_at
    if state.status != "running" or began is None:
        return 0.0
    if seen.after is not None and seen.at is not None and seen.at >= began:
        return seen.after
    # A sign from before it is that of an earlier invocation: the last one left no trace but its records.
    until = max(filter(None, (state.updated_at, seen.at)), default=began)
    return max((until - began).total_seconds(), 0.0)


def active_seconds(state: RunState, seen: LastSeen = NEVER) -> float:
    """Return the seconds in which a run was executed, in all invocations; the time between them does not count."""
    return state.active_seconds + open_seconds(state, seen)


def span_seconds(state: RunState, seen: LastSeen = NEVER) -> float | None:
    """Return the seconds from the start of a run to its end, or as far as it was seen; None before its start."""
    if state.started_at is None:
        return None
    last = state.finished_at or state.updated_at
    if state.status == "running":
        last = max(filter(None, (last, seen.at)), default=None)
    return max((last - state.started_at).total_seconds(), 0.0) if last is not None else None
