"""History of one unit: its attempts in every invocation, and why each of them ran. Pure, from the events of a run."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, Literal

import msgspec

from rerail.core import events as ev
from rerail.core.events import Event, Failure, Metrics
from rerail.core.run_state import UnitStatus
from rerail.core.unit_id import UnitId

FIRST = "not run before"
Result = Literal["running", "completed", "failed", "interrupted", "not started"]


class AttemptRecord(msgspec.Struct, kw_only=True):
    """One attempt of a unit."""

    attempt: int
    why: str  # why it ran
    started_at: datetime
    outcome: Result = "running"
    finished_at: datetime | None = None
    duration_seconds: float | None = None
    metrics: Metrics = {}
    error: Failure | None = None
    then: str = ""  # of one that failed: when another attempt follows, and why
    allowed: bool = False
    reason: str = ""  # of one that was interrupted: by what


class InvocationRecord(msgspec.Struct, kw_only=True):
    """Part of one invocation of the run in the history of a unit."""

    invocation: int
    started_at: datetime
    entries: list[AttemptRecord | str]  # in order: attempts, and that it was skipped, restored, marked, taken over
    ended: str = ""  # how the invocation ended; '' while it runs, or if it was killed
    settled_before: int = 0  # the invocation in which the unit was settled before this one began; 0 if it was not

    @property
    def attempts(self) -> list[AttemptRecord]:
        return [entry for entry in self.entries if isinstance(entry, AttemptRecord)]

    @property
    def notes(self) -> list[str]:
        return [entry for entry in self.entries if isinstance(entry, str)]


class UnitHistory(msgspec.Struct, kw_only=True):
    """History of a unit in all invocations, and its last product."""

    unit: UnitId
    invocations: list[InvocationRecord] = []
    outputs: dict[str, Any] = {}
    artifacts: tuple[ev.ArtifactRecord, ...] = ()
    output: str = ""  # last lines of stdout
    status: UnitStatus = "pending"

    @property
    def attempts(self) -> list[AttemptRecord]:
        return [attempt for invocation in self.invocations for attempt in invocation.attempts]


def unit_history(records: Iterable[tuple[int, Event]], unit: UnitId) -> UnitHistory:
    """Return the history of a unit from all records of its run."""
    builder = _Builder(unit)
    for _, event in records:
        builder.take(event)
    return builder.history


class RecordsByUnit:
    """Records of a run by unit, so that the histories of all units of a map take one pass over them, not one each."""

    def __init__(self, records: Iterable[tuple[int, Event]]) -> None:
        self._of_run: list[tuple[int, Event]] = []
        self._of_units: dict[UnitId, list[tuple[int, Event]]] = {}
        self._invalidations: dict[UnitId, list[tuple[int, Event]]] = {}
        for record in records:
            event = record[1]
            if not isinstance(event, ev.UnitEvent):
                self._of_run.append(record)
                continue
            self._of_units.setdefault(event.unit, []).append(record)
            if isinstance(event, ev.StepInvalidated):
                self._invalidations.setdefault(event.unit, []).append(record)

    @property
    def units(self) -> list[UnitId]:
        """All units that had events, in the order of their first one."""
        return list(self._of_units)

    def history(self, unit: UnitId) -> UnitHistory:
        """Return the history of a unit."""
        records = [*self._of_run, *self._of_units.get(unit, ())]
        for outer in dict.fromkeys(unit.ancestors()):
            records += self._invalidations.get(outer, ())
        return unit_history(sorted(records, key=itemgetter(0)), unit)


class _Builder:
    """Builder of the history of a unit, event by event."""

    def __init__(self, unit: UnitId) -> None:
        self.history = UnitHistory(unit=unit, invocations=[])
        self._unit = unit
        self._because = ""  # why its record no longer counts
        self._settled_in = 0

    def take(self, event: Event) -> None:
        """Take the next event of the run."""
        match event:
            case ev.RunStarted() | ev.RunResumed():
                number = len(self.history.invocations) + 1
                self.history.invocations.append(
                    InvocationRecord(invocation=number, started_at=event.at, entries=[], settled_before=self._settled_in)
                )
            case ev.RunInterrupted(reason=reason) | ev.RunPaused(reason=reason) if self.history.invocations:
                self.history.invocations[-1].ended = reason
            case ev.RunFinished(status=status) if self.history.invocations:
                self.history.invocations[-1].ended = f"the run {status}"
            case ev.StepInvalidated(reopened=False) if self._unit != event.unit and self._unit.is_within(event.unit):
                self._forget(f"{event.unit}: {event.reason}")
            case _ if isinstance(event, ev.UnitEvent) and event.unit == self._unit:
                self._happened(event)
            case _:
                pass

    def _forget(self, reason: str) -> None:
        self._because = reason
        self._settled_in = 0
        self.history.status = "pending"

    def _note(self, text: str) -> None:
        if self.history.invocations:
            self.history.invocations[-1].entries.append(text)

    def _settle(self, status: UnitStatus) -> None:
        self.history.status = status
        self._settled_in = len(self.history.invocations)

    def _happened(self, event: ev.UnitEvent) -> None:
        match event:
            case ev.StepStarted():
                self._started(event)
            case ev.StepCompleted() | ev.StepFailed() | ev.StepInterrupted():
                self._ended(event)
            case ev.StepInvalidated(reason=reason):
                open_attempt = self._open()
                if open_attempt is not None:
                    open_attempt.outcome = "not started"
                self._forget(reason)
            case ev.StepSkipped(reason=reason):
                self._note(f"skipped: {reason}")
                self._settle("skipped")
            case ev.StepInherited(run=run, skipped=skipped):
                self._note(f"taken over from run {run}" + (f", where it was skipped: {skipped}" if skipped else ""))
                self.history.outputs, self.history.artifacts = event.outputs, event.artifacts
                self._settle("skipped" if skipped else "failed" if event.failed else "completed")
            case ev.StepMarked(status=status, by=by):
                self._note(f"marked {status} by {by}")
                self._forget(f"marked {status} by {by}")
                if status in ("completed", "skipped"):
                    self._because = ""
                    self._settle(status)
            case ev.ArtifactsRestored(found=found):
                self._note("restored " + ", ".join(f"{path} ({condition})" for path, condition in found.items()))
            case ev.ArtifactsAccepted(was=was, by=by):
                self._note(f"accepted {', '.join(was)} as changed by hand, by {by}")
                self.history.artifacts = event.artifacts
            case ev.ApprovalGiven(approved=approved, by=by):
                self._note(f"{'approved' if approved else 'rejected'} by {by}")
                self._because = f"{'approved' if approved else 'rejected'} by {by}"
            case ev.ItemEdited(by=by):
                self._forget(f"edited by {by}")
            case ev.ItemDropped(by=by):
                self._note(f"dropped from the dead letter queue by {by}")
                self._settle("skipped")
            case _:
                pass

    def _started(self, event: ev.StepStarted) -> None:
        attempt = AttemptRecord(attempt=event.attempt, why=self._why(), started_at=event.at)
        if self.history.invocations:
            self.history.invocations[-1].entries.append(attempt)
        self._because = ""
        self.history.status = "running"

    def _why(self) -> str:
        """Return why the next attempt runs."""
        if self._because:
            return self._because
        before = self.history.attempts[-1] if self.history.attempts else None
        if before is None:
            return FIRST
        if before.outcome == "failed" and before.error is not None:
            return f"attempt {before.attempt} failed: {_first_line(before.error.message)}"
        if before.outcome in ("interrupted", "running"):
            return f"attempt {before.attempt} was interrupted" + (f" ({before.reason})" if before.reason else "")
        return "it was to run again"

    def _open(self) -> AttemptRecord | None:
        """Return the attempt that has not ended."""
        attempts = self.history.attempts
        return attempts[-1] if attempts and attempts[-1].outcome == "running" else None

    def _ended(self, event: ev.StepCompleted | ev.StepFailed | ev.StepInterrupted) -> None:
        attempt = self._open()
        if attempt is not None:
            attempt.metrics = event.metrics
            attempt.finished_at = event.at
        match event:
            case ev.StepCompleted(duration=duration):
                self._settle("completed")
                history = self.history
                history.outputs, history.artifacts, history.output = event.outputs, event.artifacts, event.output
                if attempt is not None:
                    attempt.outcome, attempt.duration_seconds = "completed", duration
            case ev.StepFailed(duration=duration):
                self.history.output = event.output
                self.history.status = "failed"
                if event.allowed:
                    self._settle("failed")
                if attempt is not None:
                    attempt.outcome, attempt.duration_seconds = "failed", duration
                    attempt.error, attempt.then, attempt.allowed = event.error, event.why, event.allowed
            case ev.StepInterrupted(reason=reason, elapsed=elapsed):
                self.history.status = "interrupted"
                if attempt is not None:
                    attempt.outcome, attempt.duration_seconds, attempt.reason = "interrupted", elapsed, reason


def sentences(history: UnitHistory) -> list[tuple[int, str]]:
    """Return plain sentences with the number of their invocation: why the unit ran or did not, and how it went."""
    told = []
    for invocation in history.invocations:
        for entry in invocation.entries:
            told.append((invocation.invocation, f"{entry}." if isinstance(entry, str) else _of_attempt(entry)))
        if invocation.entries:
            continue
        if invocation.settled_before:
            told.append((invocation.invocation, f"reused: settled in invocation {invocation.settled_before}."))
        else:
            why = invocation.ended or "the invocation goes on, or was killed"
            told.append((invocation.invocation, f"not reached ({why})."))
    return told


def _of_attempt(attempt: AttemptRecord) -> str:
    because = "it had not run before" if attempt.why == FIRST else attempt.why
    match attempt.outcome:
        case "completed":
            went = "It completed."
        case "failed":
            cause = _first_line(attempt.error.message) if attempt.error else "no reason is recorded"
            went = f"It failed: {cause}" + (" (allowed to fail)" if attempt.allowed else "") + "."
        case "interrupted":
            went = f"It was interrupted{f' ({attempt.reason})' if attempt.reason else ''}."
        case "not started":
            went = "It was not launched."
        case _:
            went = "It has not ended."
    return f"attempt {attempt.attempt} ran: {because}. {went}"


def _first_line(text: str) -> str:
    lines: Sequence[str] = text.splitlines()
    return lines[0] if lines else ""
