"""Reporters: lines for people on stderr, JSON lines for programs on stdout. Output can never fail a run."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from rerail.core import events as ev
from rerail.core.state import RunState, name

if TYPE_CHECKING:
    from rerail.core.plan import Plan

STDOUT, STDERR = 1, 2
FLUSH_SECONDS = 2.0

_encode = msgspec.json.Encoder().encode


class _Outlet:
    """Writes in a thread of its own: whoever does not read what we print cannot hold the run up."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def put(self, fd: int, data: bytes) -> None:
        self._lines.put((fd, data))

    def close(self) -> None:
        """Let out what is left, for as long as somebody seems to read."""
        self._lines.put(None)
        self._thread.join(FLUSH_SECONDS)

    def _serve(self) -> None:
        while (line := self._lines.get()) is not None:
            _write(*line)


_outlets: list[_Outlet] = []


@contextlib.contextmanager
def outlet() -> Iterator[None]:
    """While active, nothing that is printed can block."""
    _outlets.append(_Outlet())
    try:
        yield
    finally:
        _outlets.pop().close()


def _emit(fd: int, data: bytes) -> None:
    if _outlets:
        _outlets[-1].put(fd, data)
    else:
        _write(fd, data)


def _write(fd: int, data: bytes) -> None:
    """Write to a stream that may be gone, full or closed: none of that is an error of the run."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(fd, data) :]


def say(text: str) -> None:
    """Write a line to stderr."""
    _emit(STDERR, (printable(text) + "\n").encode(errors="backslashreplace"))


def printable(text: str) -> str:
    """Text without control characters, so that what a step prints cannot steer the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def seconds(value: float | None) -> str:
    """A duration for people."""
    if value is None:
        return ""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


class JsonReporter:
    """One event per line on stdout, written only once durable."""

    def show(self, seq: int, event: ev.Event, state: RunState) -> None:  # noqa: ARG002 - the port's signature
        _emit(STDOUT, b'{"seq":%d,%b\n' % (seq, _encode(event)[1:]))

    def warn(self, message: str) -> None:
        say(f"rerail: {message}")


class LineReporter:
    """One line per event on stderr."""

    def __init__(self, run_id: str, *, quiet: bool, verbose: bool) -> None:
        self._run_id = run_id
        self._quiet = quiet
        self._verbose = verbose

    def show(self, seq: int, event: ev.Event, state: RunState) -> None:  # noqa: ARG002 - the port's signature
        if isinstance(event, ev.RunStarted) and not self._quiet:
            say(f"rerail: run {self._run_id}, {event.steps} steps, up to {event.options.parallel} at once")
        line = sentence(event) if self._verbose or not _is_detail(event) else ""
        if line and not (self._quiet and not isinstance(event, ev.StepFailed)):
            say(f"{clock(event.at)}  {line}")

    def warn(self, message: str) -> None:
        if not self._quiet:
            say(f"rerail: {message}")


def clock(at: datetime) -> str:
    return at.astimezone().strftime("%H:%M:%S")


def _is_detail(event: ev.Event) -> bool:
    return isinstance(event, ev.RunStarted | ev.RunResumed | ev.RunFinished | ev.RunInterrupted | ev.RunPaused)


def sentence(event: ev.Event) -> str:
    """An event in words."""
    if isinstance(event, ev.UnitEvent):
        return _unit_sentence(event)
    match event:
        case ev.RunStarted(owner=owner):
            return f"run started by process {owner.pid} on {owner.host}"
        case ev.RunResumed(owner=owner, notices=notices):
            noticed = "".join(f"; {notice}" for notice in notices)
            return f"run resumed by process {owner.pid} on {owner.host}{noticed}"
        case ev.RunRepaired(reason=reason, evidence=evidence):
            return f"run repaired: {reason}; evidence kept in {evidence}"
        case ev.RunInterrupted(reason=reason):
            return f"run interrupted: {reason}"
        case ev.RunPaused(reason=reason):
            return f"run paused: {reason}"
        case ev.RunFinished(status=status):
            return f"run {status}"


def _unit_sentence(event: ev.UnitEvent) -> str:
    unit = name(event.unit)
    match event:
        case ev.StepStarted(attempt=attempt):
            return f"started      {unit}" + (f" (attempt {attempt})" if attempt > 1 else "")
        case ev.StepCompleted(duration=duration):
            return f"completed    {unit}  {seconds(duration)}"
        case ev.StepFailed(error=error, retry_in=retry_in, allowed=allowed):
            after = f", again in {seconds(retry_in)}" if retry_in is not None else ", which is allowed" if allowed else ""
            return f"failed       {unit}: {error.message}{after}"
        case ev.StepInterrupted(reason=reason, attempt=attempt):
            how = "found cut off by a crash" if reason == "crash" else f"cut off by {reason}"
            return f"interrupted  {unit}: attempt {attempt} {how}"
        case ev.StepSkipped(reason=reason):
            return f"skipped      {unit}: {reason}"
        case ev.StepInvalidated(reason=reason):
            return f"to run again {unit}: {reason}"
        case ev.StepMarked(status=status, by=by):
            return f"marked       {unit} as {status} by {by}"


def say_plan(plan: Plan, state: RunState, notices: tuple[str, ...]) -> None:
    """The plan before anything runs: decision, step, reason; then what is saved."""
    for notice in notices:
        say(f"rerail: {notice}")
    width = max((len(decision.step) for decision in plan.decisions + plan.hooks), default=0)
    for decision in plan.decisions + plan.hooks:
        unless = ", unless it comes out the same" if decision.unless_same else ""
        say(f"  {decision.decision:<6} {decision.step:<{width}}  {decision.reason}{unless}")
    for step in plan.removed:
        say(f"  {'gone':<6} {step:<{width}}  no longer in the pipeline; its record is kept")
    reused = [decision for decision in plan.decisions if decision.decision == "reuse"]
    if reused:
        saved = sum(decision.saved_seconds for decision in reused)
        cost = sum(state.unit((step.step, None)).metrics.get("cost_usd", 0) for step in reused)
        money = f" and ${cost:.2f}" if cost else ""
        say(f"rerail: {len(reused)} of {len(plan.decisions)} steps reused, saving {seconds(saved)}{money}")


def say_failure(error: ev.Failure, output: str, logs: str) -> None:
    """Everything about a failure that helps to fix it."""
    say(f"rerail: step {error.step} failed: {error.message}")
    command = error.command.splitlines()
    if command:
        more = f" (+{len(command) - 1} lines)" if len(command) > 1 else ""
        say(f"  command: {command[0]}{more}")
    for line in (error.traceback or error.stderr_tail or output).splitlines()[-12:]:
        say(f"  | {line}")
    say(f"  logs: {logs}.out and .err, where it printed anything")
