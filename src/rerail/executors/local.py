"""Attempts on this machine: child processes in sessions of their own, and functions of this process.

No thread watches a child: `wait` polls one descriptor per process. Functions run in place when only one attempt may
run at a time, because a hand-over between threads costs more than the journal record; else in daemon threads.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rerail.core.state import Unit
from rerail.core.values import problem
from rerail.executors import channels
from rerail.ports import Attempt, FunctionWork, Outcome, ProcessWork, Work

KILL_GRACE = 5.0
TERM_AFTER = 0.5
TAIL_BYTES = 4096
TAIL_LINES = 20


class _Child(msgspec.Struct, kw_only=True):
    attempt: Attempt
    process: subprocess.Popen[bytes]
    pidfd: int
    out: int
    err: int
    began: float
    deadline: float | None
    files: tuple[str, ...]
    signals: list[tuple[float, int]]  # what to send when, soonest last
    timed_out: bool = False
    stopped: bool = False


class _Call(msgspec.Struct, kw_only=True):
    attempt: Attempt
    began: float
    deadline: float | None


class LocalExecutor:
    """Runs attempts here. Not thread-safe: one loop starts and waits."""

    def __init__(self, open_log: Callable[[str], int], *, parallel: int, environ: Mapping[str, str]) -> None:
        self._open_log = open_log
        self._inline = parallel == 1
        self._environ = dict(environ)
        self._children: dict[int, _Child] = {}  # by the descriptor that is polled
        self._calls: dict[Unit, _Call] = {}
        self._done: list[Outcome] = []
        self._tasks: queue.SimpleQueue[tuple[Attempt, FunctionWork]] = queue.SimpleQueue()
        self._returned: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._idle_threads = 0
        self._poll = select.poll()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._poll.register(self._wake_read, select.POLLIN)

    def start(self, attempt: Attempt, work: Work) -> None:
        if isinstance(work, ProcessWork):
            self._spawn(attempt, work)
        elif self._inline and attempt.timeout is None:
            self._done.append(_call(attempt, work))
        else:
            self._hand_over(attempt, work)

    def wait(self, timeout: float | None) -> list[Outcome]:
        if not self._done:
            self._block(timeout)
        done, self._done = self._done, []
        return done

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")

    def stop(self, grace: float = KILL_GRACE) -> None:
        now = time.monotonic()
        for child in self._children.values():
            if not child.stopped:
                child.stopped = True
                child.deadline = None
                term = min(TERM_AFTER, grace)
                child.signals = [
                    (now + grace, signal.SIGKILL),
                    (now + term, signal.SIGTERM),
                    (now, signal.SIGINT),
                ]
        self._send_due(now)
        for unit, call in list(self._calls.items()):
            # A thread cannot be ended; its result no longer counts.
            del self._calls[unit]
            self._done.append(Outcome(unit=unit, status="stopped", duration=now - call.began))

    def close(self) -> None:
        for child in list(self._children.values()):
            _signal_group(child.process.pid, signal.SIGKILL)
            child.process.wait()
            self._forget(child)
        for fd in (self._wake_read, self._wake_write, self._null):
            os.close(fd)

    # Processes

    def _spawn(self, attempt: Attempt, work: ProcessWork) -> None:
        began = time.monotonic()
        opened: list[int] = []
        try:
            opened = [self._log_or_null(attempt.log_name + ending) for ending in (".out", ".err")]
            channels.put(work.files)
            process = subprocess.Popen(
                work.argv,
                cwd=attempt.cwd,
                env={**self._environ, **attempt.env, **work.env},
                stdin=self._null,
                stdout=opened[0],
                stderr=opened[1],
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            for fd in opened:
                os.close(fd)
            channels.drop(work.files)
            self._done.append(_could_not_start(attempt, error, time.monotonic() - began))
            return
        deadline = None if attempt.timeout is None else began + attempt.timeout
        child = _Child(
            attempt=attempt,
            process=process,
            pidfd=self._watch(process),
            out=opened[0],
            err=opened[1],
            began=began,
            deadline=deadline,
            signals=[],
            files=tuple(work.files),
        )
        self._children[child.pidfd] = child

    def _log_or_null(self, name: str) -> int:
        """A log that cannot be opened costs the log, not the step."""
        try:
            return self._open_log(name)
        except OSError:
            return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    def _watch(self, process: subprocess.Popen[bytes]) -> int:
        """A descriptor that becomes readable when the process ends."""
        try:
            fd = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            # No pidfd here (macOS, an old kernel): a thread waits and closes the far end of a pipe.
            fd, far = os.pipe()

            def wait() -> None:
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
                os.close(far)

            threading.Thread(target=wait, daemon=True).start()
        self._poll.register(fd, select.POLLIN | select.POLLHUP)
        return fd

    def _block(self, timeout: float | None) -> None:
        now = time.monotonic()
        times = [child.deadline for child in self._children.values() if child.deadline is not None]
        times += [child.signals[-1][0] for child in self._children.values() if child.signals]
        times += [call.deadline for call in self._calls.values() if call.deadline is not None]
        if times:
            soonest = max(min(times) - now, 0.0)
            timeout = soonest if timeout is None else min(timeout, soonest)
        for fd, _ in self._poll.poll(None if timeout is None else timeout * 1000 + 1):
            if fd == self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 4096)
            elif child := self._children.get(fd):
                self._done.append(self._reap(child))
        self._take_returned()
        now = time.monotonic()
        self._check_deadlines(now)
        self._send_due(now)

    def _check_deadlines(self, now: float) -> None:
        for child in self._children.values():
            if child.deadline is not None and now >= child.deadline:
                child.deadline = None
                child.timed_out = True
                child.signals = [(now + KILL_GRACE, signal.SIGKILL), (now, signal.SIGTERM)]
        for unit, call in list(self._calls.items()):
            if call.deadline is not None and now >= call.deadline:
                del self._calls[unit]
                self._done.append(_timed_out(call.attempt, now - call.began))

    def _send_due(self, now: float) -> None:
        for child in self._children.values():
            while child.signals and child.signals[-1][0] <= now:
                _signal_group(child.process.pid, child.signals.pop()[1])

    def _reap(self, child: _Child) -> Outcome:
        # Before the leader is reaped its group cannot be another's: end what it left behind.
        _signal_group(child.process.pid, signal.SIGKILL)
        code = child.process.wait()
        duration = time.monotonic() - child.began
        output, stderr_tail = _tail(child.out), _tail(child.err)
        channels.drop(child.files)
        self._forget(child)
        return _process_outcome(child, code, duration, output, stderr_tail)

    def _forget(self, child: _Child) -> None:
        del self._children[child.pidfd]
        self._poll.unregister(child.pidfd)
        for fd in (child.pidfd, child.out, child.err):
            os.close(fd)

    # Functions

    def _hand_over(self, attempt: Attempt, work: FunctionWork) -> None:
        began = time.monotonic()
        deadline = None if attempt.timeout is None else began + attempt.timeout
        self._calls[attempt.unit] = _Call(attempt=attempt, began=began, deadline=deadline)
        if self._idle_threads == 0:
            threading.Thread(target=self._serve, daemon=True).start()
        else:
            self._idle_threads -= 1
        self._tasks.put((attempt, work))

    def _serve(self) -> None:
        while True:
            attempt, work = self._tasks.get()
            self._returned.put((attempt.number, _call(attempt, work)))
            self.wake()

    def _take_returned(self) -> None:
        while True:
            try:
                number, outcome = self._returned.get_nowait()
            except queue.Empty:
                return
            self._idle_threads += 1
            call = self._calls.get(outcome.unit)
            if call is not None and call.attempt.number == number:
                del self._calls[outcome.unit]
                self._done.append(outcome)


def _call(attempt: Attempt, work: FunctionWork) -> Outcome:
    began = time.monotonic()
    try:
        outputs: dict[str, Any] = work.function() or {}
        wrong = problem(outputs) if type(outputs) is dict else f"it returned a {type(outputs).__name__}, not a dict"
    except BaseException as error:  # noqa: BLE001 - user code: whatever it raises is the attempt's failure
        return Outcome(
            unit=attempt.unit,
            status="failed",
            duration=time.monotonic() - began,
            type=type(error).__name__,
            message=str(error) or type(error).__name__,
            traceback="".join(traceback.format_exception(error)),
        )
    duration = time.monotonic() - began
    if wrong:
        return Outcome(
            unit=attempt.unit,
            status="failed",
            duration=duration,
            type="OutputsInvalid",
            message=wrong,
            retryable=False,
        )
    return Outcome(unit=attempt.unit, status="ok", duration=duration, outputs=outputs)


def _process_outcome(child: _Child, code: int, duration: float, output: str, stderr_tail: str) -> Outcome:
    attempt = child.attempt
    try:
        outputs, metrics, raised = channels.collect(attempt.channel)
        wrong = ""
    except (ValueError, msgspec.DecodeError) as error:
        outputs, metrics, raised, wrong = {}, {}, None, str(error)
    common: dict[str, Any] = {
        "unit": attempt.unit,
        "duration": duration,
        "output": output,
        "stderr_tail": stderr_tail,
        "metrics": metrics,
        "exit_code": code if code >= 0 else None,
        "signal": _signal_name(-code) if code < 0 else None,
    }
    if child.stopped:
        return Outcome(status="stopped", **common)
    if child.timed_out:
        return Outcome(status="failed", type="Timeout", message=f"timed out after {attempt.timeout:g} s", **common)
    if code == 0 and not wrong:
        return Outcome(status="ok", outputs=outputs, **common)
    if code == 0:
        return Outcome(status="failed", type="OutputsInvalid", message=wrong, **common)
    if raised is not None:
        return Outcome(
            status="failed",
            type=raised.type,
            message=raised.message or raised.type,
            traceback=raised.traceback,
            **common,
        )
    if code < 0:
        return Outcome(status="failed", type="Killed", message=f"killed by {_signal_name(-code)}", **common)
    return Outcome(status="failed", type="ExitCode", message=f"exited with code {code}", **common)


def _could_not_start(attempt: Attempt, error: OSError | ValueError, duration: float) -> Outcome:
    if isinstance(error, OSError):
        at_fault = f": {error.filename}" if error.filename else ""
        message = f"could not start{at_fault}: {error.strerror}"
    else:
        message = f"could not start: {error}"
    return Outcome(unit=attempt.unit, status="failed", duration=duration, type="CouldNotStart", message=message)


def _timed_out(attempt: Attempt, duration: float) -> Outcome:
    message = f"timed out after {attempt.timeout:g} s"
    return Outcome(unit=attempt.unit, status="failed", duration=duration, type="Timeout", message=message)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(fd: int) -> str:
    """The last lines of a log."""
    try:
        size = os.fstat(fd).st_size
        if size == 0:
            return ""
        data = os.pread(fd, TAIL_BYTES, max(size - TAIL_BYTES, 0))
    except OSError:
        return ""
    lines = data.decode(errors="replace").splitlines()
    if size > TAIL_BYTES and len(lines) > 1:
        lines = lines[1:]
    return "\n".join(lines[-TAIL_LINES:])
