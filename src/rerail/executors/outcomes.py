"""Outcomes of attempts, from the end of their processes."""

from __future__ import annotations

import errno
import os
import signal
from typing import Any

import msgspec

from rerail.core.model import Run
from rerail.core.shell.programs import started_files
from rerail.core.values import MAX_BYTES, clean, parse_captured
from rerail.executors import channels
from rerail.executors.logs import AttemptLog
from rerail.ports import Attempt, Outcome
from rerail.scripts import script_problem

# Lack of resources that may pass in a moment: memory, processes, descriptors.
_PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)

_HINTS = {126: " (cannot be executed)", 127: " (command not found)"}  # as shells use them


class ProcessEnd(msgspec.Struct, frozen=True, kw_only=True):
    """End of the last process of an attempt."""

    code: int
    duration: float
    stopped: bool
    timed_out: bool
    check: str  # the check it belonged to, or ''
    outputs: dict[str, Any] = {}  # of a function, whose checks the processes were
    left: tuple[str, ...] = ()  # commands of processes that were left running, and ended


def of_process(attempt: Attempt, ending: ProcessEnd, logs: tuple[AttemptLog, AttemptLog]) -> Outcome:
    """Return the outcome of an attempt whose processes have all ended."""
    handed = channels.collect(attempt.channel)
    code = ending.code
    common: dict[str, Any] = {
        "unit": attempt.unit,
        "duration": ending.duration,
        "output": clean(logs[0].tail()),
        "stderr_tail": clean(logs[1].tail()),
        "metrics": handed.usage.metrics,
        "models": handed.usage.models,
        "warnings": handed.warnings + _incomplete(logs),
        "left": ending.left,
        "exit_code": code if code >= 0 else None,
        "signal": signal_name(-code) if code < 0 else None,
    }
    if ending.stopped:
        return Outcome(status="stopped", **common)
    if ending.timed_out:
        return Outcome(status="failed", type="Timeout", message=f"timed out after {attempt.timeout:g} s", **common)
    if code == 0:
        handed.outputs = {**ending.outputs, **handed.outputs}
        return _completed(attempt, handed, logs[0], common)
    how = f"killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}{_hint(attempt, ending)}"
    if ending.check:
        return Outcome(status="failed", type="CheckFailed", message=f"check {how}: {ending.check}", **common)
    if handed.raised is not None:
        raised = handed.raised
        message = f"{raised.type}: {clean(raised.message)}" if raised.message else raised.type
        return Outcome(status="failed", type=raised.type, message=message, traceback=clean(raised.traceback), **common)
    if code == -signal.SIGKILL:
        how += " (out of memory?)"
    return Outcome(status="failed", type="Killed" if code < 0 else "ExitCode", message=how, **common)


def _hint(attempt: Attempt, ending: ProcessEnd) -> str:
    """Return the meaning of an exit code of a shell; if a file that the script starts is at fault, the reason."""
    hint = _HINTS.get(ending.code, "")
    if not hint or ending.check or not isinstance(attempt.action, Run):
        return hint
    for named in started_files(attempt.action.script):
        problem = script_problem(os.path.join(attempt.cwd, named), named)
        if problem is not None:
            message, fix = problem
            return f": {message}" + (f" ({fix})" if fix else "")
    return hint


def _incomplete(logs: tuple[AttemptLog, AttemptLog]) -> tuple[str, ...]:
    lost = logs[0].lost or logs[1].lost
    return (f"its log is incomplete: {lost}",) if lost else ()


def _completed(attempt: Attempt, handed: channels.ChannelContent, out: AttemptLog, common: dict[str, Any]) -> Outcome:
    wrong, outputs = handed.wrong, dict(handed.outputs)
    for name, form in attempt.capture.items():
        try:
            outputs[name] = parse_captured(
                bytes(out.captured), out.captured_all, form, attempt.most_captured or MAX_BYTES
            )
        except ValueError as error:
            wrong = wrong or f"output `{name}`: {error}"
    if wrong:
        return Outcome(status="failed", type="OutputsInvalid", message=wrong, **common)
    return Outcome(status="ok", outputs=outputs, **common)


def could_not_start(
    attempt: Attempt, error: Exception, duration: float, logs: tuple[AttemptLog, AttemptLog] | None = None
) -> Outcome:
    """Return the outcome of a process that never ran. Whether a repetition is worthwhile depends on the cause.

    With logs it was a check: the attempt itself has run, and reported its usage.
    """
    retryable = False
    if isinstance(error, OSError):
        at_fault = f": {os.fsdecode(error.filename)}" if error.filename else ""
        message = f"could not start{at_fault}: {error.strerror}"
        retryable = error.errno in _PASSING
    else:
        message = f"could not start: {error}"
    outcome = Outcome(
        unit=attempt.unit,
        status="failed",
        duration=duration,
        type="CouldNotStart",
        message=clean(message),
        retryable=retryable,
    )
    if logs is None:
        return outcome
    handed = channels.collect(attempt.channel)
    return msgspec.structs.replace(
        outcome,
        message=f"a check {outcome.message}",
        output=clean(logs[0].tail()),
        stderr_tail=clean(logs[1].tail()),
        metrics=handed.usage.metrics,
        models=handed.usage.models,
        warnings=handed.warnings,
    )


def timed_out(attempt: Attempt, duration: float) -> Outcome:
    message = f"timed out after {attempt.timeout:g} s"
    return Outcome(unit=attempt.unit, status="failed", duration=duration, type="Timeout", message=message)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
