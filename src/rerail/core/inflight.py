"""Attempts in flight when their invocation ended: how far each was, and its usage, from all traces of it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec

from rerail.core.events import AttemptProgress, Cause, Reason, StepInterrupted
from rerail.core.money import COST, amount
from rerail.core.run_state import RunState, UnitState
from rerail.core.unit_id import UnitId
from rerail.core.values import Progress, Usage


class AttemptTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Trace of an attempt outside the journal: its reported usage and progress, and when it was last seen."""

    usage: Usage = Usage()
    progress: Progress | None = None
    last: datetime | None = None  # when it, or the owner of the run, was last seen
    most: float | None = None  # seconds that the invocation had lasted by then: an upper bound


def in_flight(state: RunState) -> list[tuple[UnitId, UnitState]]:
    """Return the units that are recorded as running."""
    return [(unit, unit_state) for unit, unit_state in state.units.items() if unit_state.status == "running"]


def last_seen(state: RunState, left_by: Callable[[UnitId, int], AttemptTrace]) -> dict[UnitId, AttemptProgress | None]:
    """Return the last known progress of every unit recorded as running, in a run without an owner."""
    running = in_flight(state)
    outer = {above for unit, _ in running for above in unit.ancestors()}
    seen = {}
    for unit, unit_state in running:
        trace = left_by(unit, unit_state.attempts)
        if unit_state.items is not None or unit in outer:  # the units inside it have their own traces
            trace = msgspec.structs.replace(trace, last=None)
        seen[unit] = _last_seen(unit_state, trace)
    return seen


def _last_seen(unit: UnitState, trace: AttemptTrace) -> AttemptProgress | None:
    """Combine the trace of an attempt with its saved progress, whichever is more; None if there is neither."""
    saved = unit.progress
    if trace.last is None and trace.usage.metrics:
        trace = msgspec.structs.replace(trace, last=unit.started_at)
    if saved is None and trace.last is None:
        return None
    elapsed = saved.elapsed if saved is not None else 0.0
    if trace.last is not None and unit.started_at is not None:
        apart = (trace.last - unit.started_at).total_seconds()  # by the wall clock, which may have been set in between
        elapsed = max(elapsed, apart if trace.most is None else min(apart, trace.most))
    usage = trace.usage
    if not usage.metrics and saved is not None:  # its metrics file was lost with the machine
        usage = Usage(metrics=saved.metrics, models=saved.models)
    at = max(moment for moment in (trace.last, saved.at if saved else None) if moment is not None)
    progress = trace.progress or saved
    return AttemptProgress(
        at=at,
        elapsed=round(elapsed, 3),
        metrics=usage.metrics,
        models=usage.models,
        done=progress.done if progress else None,
        total=progress.total if progress else None,
    )


def interrupted_event(
    unit: UnitId, unit_state: UnitState, seen: AttemptProgress | None, now: datetime
) -> StepInterrupted:
    """Return the event that ends an attempt which its invocation did not end."""
    return StepInterrupted(
        at=now,
        step=unit.step,
        item=unit.item,
        attempt=unit_state.attempts,
        reason="crash",
        crash=True,
        metrics=seen.metrics if seen else {},
        models=seen.models if seen else {},
        elapsed=seen.elapsed if seen else 0.0,
    )


def crashes_in_a_row(unit: UnitState, definition: str) -> int:
    """Return the crashes in a row that interrupted a unit, before anything of the present invocation is recorded.

    An attempt that is recorded as running in a run without an owner is one of them. Those of another definition of the
    step do not count.
    """
    if unit.status not in ("running", "interrupted") or (unit.fingerprint and unit.fingerprint != definition):
        return 0
    return unit.crashes + (unit.status == "running")


def describe_crashes(crashes: int) -> str:
    """Describe the crashes in a row that interrupted a unit."""
    return f"rerail was killed during it {crashes} times in a row"


def how_far(progress: AttemptProgress | None) -> str:
    """Format the last known progress of an attempt: `after 12 min 00 s, 7 of 18, $0.42`; '' if unknown."""
    if progress is None:
        return ""
    if progress.elapsed < 1 and progress.done is None and not progress.metrics:
        return ""  # it had hardly begun
    parts = [f"after {amount('time', progress.elapsed)}"]
    if progress.done is not None:
        parts.append(f"{progress.done:g} of {progress.total:g}" if progress.total else f"{progress.done:g} done")
    if COST in progress.metrics:
        parts.append(amount(COST, progress.metrics[COST]))
    return ", ".join(parts)


def interruption_reason(unit: UnitState, progress: AttemptProgress | None) -> Reason:
    """Return the reason of a unit that was interrupted, with its last known progress; or whose record was lost."""
    if unit.because is not None and unit.because.kind == "record-lost":
        return Reason(unit.reason, unit.because)
    progress_text = how_far(progress)
    text = f"interrupted during attempt {unit.attempts}{f' ({progress_text})' if progress_text else ''}"
    return Reason(text, Cause(kind="interrupted"))


def failure_reason(unit: UnitState) -> Reason:
    """Return the reason of a unit that failed: the failure, or the retry that was due."""
    if unit.allowed:
        return Reason("failed, and is no longer allowed to fail", Cause(kind="not-allowed"))
    if unit.retry_at is not None:
        if unit.refusals:
            return Reason(f"attempt {unit.attempts} was refused: {unit.reason}", Cause(kind="refused"))
        return Reason(f"attempt {unit.attempts} failed; its retry is pending", Cause(kind="retry-pending"))
    if unit.because is not None and unit.because.kind == "marked":
        return Reason(unit.reason, unit.because)
    message = unit.error.message.splitlines()[0] if unit.error and unit.error.message else "failed"
    return Reason(f"failed: {message}", Cause(kind="failed"))
