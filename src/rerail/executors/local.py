"""Attempts on this machine: child processes in sessions of their own, and functions of this process.

No thread watches a child: `wait` polls one descriptor per process and its output pipes. Functions run in place when only
one attempt may run at a time, because a hand-over between threads costs more than the journal record; else in daemon
threads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Container, Mapping
from functools import cache, partial
from typing import Any, Protocol

import msgspec

from rerail.core.masking import Mask
from rerail.core.values import MAX_BYTES
from rerail.executors import channels, outcomes
from rerail.executors.logs import READ_BYTES, AttemptLog, ItemLogs, LogTimeline
from rerail.executors.orphans import OrphanReaper
from rerail.executors.threads import FunctionThreads, call
from rerail.executors.watchdog import Watchdogs
from rerail.ports import Attempt, Capabilities, ExecutorSetup, Outcome, OutputListener, ProcessWork, Work
from rerail.text import one_line

KILL_GRACE = 5.0
TERM_AFTER = 0.5
MAX_TIMEOUT = 3600.0
HURRY_SECONDS = 0.001  # after which a function that waits for another one gets a thread of its own
MAX_LEFT = 10  # commands of processes left running that are named
MAX_LEFT_CHARS = 100
DRAIN_BYTES = 4 * 1024 * 1024


class _Course(msgspec.Struct, kw_only=True):
    """Attempt in progress, through its own process and then its checks."""

    attempt: Attempt
    began: float
    logs: tuple[AttemptLog, AttemptLog]
    checks: list[ProcessWork]  # still to pass
    checking: str = ""  # the check that runs now
    outputs: dict[str, Any] = {}  # of a function, before its checks
    slot: str = ""  # of an item: the name of its log files
    left: dict[int, str] = {}  # processes that it left running, and their commands


class _Child(msgspec.Struct, kw_only=True):
    course: _Course
    process: Process
    watched: int  # readable once the process has ended
    pipes: dict[int, AttemptLog]
    files: tuple[str, ...]
    deadline: float | None
    signals: list[tuple[float, int]] = []  # (time, signal) to send, soonest last
    timed_out: bool = False
    stopped: bool = False


def open_executor(setup: ExecutorSetup) -> LocalExecutor:
    """Make the executor of an invocation."""
    return LocalExecutor(
        setup.open_log,
        inline=not setup.concurrent,
        environ=setup.environ,
        mask=setup.mask,
        invocation=setup.tag,
        listener=setup.listener,
    )


class LocalExecutor:
    """Executor of attempts on this machine. Not thread-safe: one loop starts and waits."""

    def __init__(
        self,
        open_log: Callable[[str], int],
        *,
        inline: bool,
        environ: Mapping[str, str],
        mask: Mask,
        invocation: str,
        listener: OutputListener | None = None,
    ) -> None:
        self._open_log = open_log
        self._inline = inline
        self._environ = {os.fsencode(name): os.fsencode(value) for name, value in environ.items()}
        self._mask = mask
        self._listener = listener
        self._order = LogTimeline(open_log)
        self._pool = ItemLogs(open_log)
        self._invocation = invocation  # the process tag of everything this invocation starts
        self._children: dict[int, _Child] = {}  # by the descriptor that is watched
        self._pipes: dict[int, AttemptLog] = {}
        self._calls = FunctionThreads(self.wake)
        self._done: list[Outcome] = []
        self._poll = select.poll()
        self._wake_read, self._wake_write = _pipe()
        os.set_blocking(self._wake_write, False)
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._poll.register(self._wake_read, select.POLLIN)
        self._closing = threading.RLock()  # a signal is handled at any instruction of this thread, and wakes us
        self._leftovers: OrphanReaper | None = None
        self.watchdogs = Watchdogs(invocation)
        self._watched: set[int] = set()  # descriptors that become readable when a watchdog dies

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(shares_files=True, measures=True, suspends=True, guards=True)

    @property
    def signal_pipes(self) -> tuple[int, int]:
        return self.watchdogs.signals, self.watchdogs.leave

    def start(self, attempt: Attempt, work: Work) -> None:
        if isinstance(work, ProcessWork):
            self._spawn(self._course(attempt), work)
        elif self._inline and attempt.timeout is None and not attempt.checks:
            self._done.append(call(attempt, work))
        else:
            self._calls.submit(attempt, work)

    def wait(self, patience: Callable[[], float]) -> list[Outcome]:
        if not self._done:
            until = time.monotonic() + min(patience(), MAX_TIMEOUT)
            while not self._done and not self._block(until):
                pass  # only output came, which is the log's business
        done, self._done = self._done, []
        return done

    def wake(self) -> None:
        # Under a lock: after closing, the number may belong to another file.
        with self._closing, contextlib.suppress(OSError):
            if self._wake_write >= 0:
                os.write(self._wake_write, b"\0")

    def stop(self, grace: float = KILL_GRACE, spare: Container[str] = ()) -> None:
        now = time.monotonic()
        for child in self._children.values():
            if child.course.attempt.unit.step in spare:
                continue
            term = min(TERM_AFTER, grace)
            plan: list[tuple[float, int]] = [
                (now + grace, signal.SIGKILL),
                (now + term, signal.SIGTERM),
                (now, signal.SIGINT),
            ]
            if child.stopped:  # asked before: only the end may come sooner
                plan = plan[:1] if not child.signals or child.signals[0][0] > plan[0][0] else []
            child.signals = plan or child.signals
            child.stopped = True
            child.deadline = None
        self._send_due(now)
        self._done += self._calls.give_up(now, spare)

    def suspend(self, number: int) -> None:
        """Suspend or continue all running processes, as the terminal asked."""
        for child in self._children.values():
            _signal_group(child.process.pid, number)

    def shift_deadlines(self, seconds: float) -> None:
        """Extend the deadlines by a time during which nothing could run."""
        for child in self._children.values():
            if child.deadline is not None:
                child.deadline += seconds

    def close(self) -> None:
        if self._wake_write < 0:
            return
        for child in list(self._children.values()):
            _signal_group(child.process.pid, signal.SIGKILL)
            child.process.wait()
            self._forget(child)
        if self._leftovers is not None:
            self._leftovers.end(self.watchdogs.pids, set())
            self._leftovers.close()
        self.watchdogs.close()
        self._calls.close()
        self._order.close()
        self._pool.close()
        with self._closing:
            ends, self._wake_write = (self._wake_read, self._wake_write, self._null), -1
        for fd in ends:
            os.close(fd)

    # Processes

    def guard(self) -> None:
        """Start the watchdogs that do not run; raise OSError. Done before each process in any case."""
        if self.watchdogs.start():
            self._watch_watchdogs()

    def _watch_watchdogs(self) -> None:
        now = set(self.watchdogs.ends)
        for fd in self._watched - now:
            self._poll.unregister(fd)
        for fd in now:
            self._poll.register(fd, select.POLLIN)
        self._watched = now

    def _spawn(self, course: _Course, work: ProcessWork) -> None:
        """Start a process of an attempt: its own, or one of its checks."""
        attempt = course.attempt
        ends: list[int] = []
        process: Process | None = None
        try:
            self.guard()
            if self._leftovers is None:
                self.watchdogs.note_at(os.path.dirname(attempt.channel))
                self._leftovers = OrphanReaper(self._invocation)
            channels.put(work.files)
            ends += _pipe()
            ends += _pipe()
            self.watchdogs.begins(ends[1])
            process = spawn(
                [_bytes(word) for word in work.argv],
                {**self._environ, **_all_bytes(attempt.env), **_all_bytes(work.env)},
                attempt.cwd,
                (self._null, ends[1], ends[3]),
            )
            self.watchdogs.began(process.pid)
            watched = self._watch(process)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            if process is not None:  # it runs, but its end would not be seen: it must not run beside the next attempt
                _signal_group(process.pid, signal.SIGKILL)
                process.wait()
                self.watchdogs.ended(process.pid)  # the number may soon be another's
            for fd in ends:
                os.close(fd)
            channels.drop(work.files)
            self._end_logs(course)
            logs = course.logs if course.checking else None
            self._done.append(outcomes.could_not_start(attempt, error, time.monotonic() - course.began, logs))
            return
        os.close(ends[1])
        os.close(ends[3])
        child = _Child(
            course=course,
            process=process,
            watched=watched,
            pipes={ends[0]: course.logs[0], ends[2]: course.logs[1]},
            files=tuple(work.files),
            deadline=None if attempt.timeout is None else course.began + attempt.timeout,
        )
        self._children[watched] = child
        for fd, log in child.pipes.items():
            self._pipes[fd] = log
            self._poll.register(fd, select.POLLIN)

    def _course(self, attempt: Attempt) -> _Course:
        capture = (attempt.most_captured or MAX_BYTES) + 1 if attempt.capture else 0
        pooled = attempt.unit.item is not None
        name = self._pool.take(attempt.unit.step) if pooled else attempt.log_name
        out = AttemptLog(self._open_log, name + ".out", self._mask, capture, self._order)
        err = AttemptLog(self._open_log, name + ".err", self._mask, 0, self._order)
        if pooled:
            out.shared = err.shared = partial(self._pool.note, unit=attempt.unit, attempt=attempt.number)
        if self._listener is not None:
            out.listener = partial(self._listener.take, attempt.unit, attempt.number, "out")
            err.listener = partial(self._listener.take, attempt.unit, attempt.number, "err")
        slot = name if pooled else ""
        return _Course(attempt=attempt, began=time.monotonic(), logs=(out, err), checks=list(attempt.checks), slot=slot)

    def _end_logs(self, course: _Course) -> None:
        for log in course.logs:
            log.end()
        if course.slot:
            self._pool.give_back(course.attempt.unit.step, course.slot)

    def _next_check(self, course: _Course) -> None:
        check = course.checks.pop(0)
        course.checking = check.label
        self._spawn(course, check)

    def _watch(self, process: Process) -> int:
        """Return a descriptor that becomes readable when the process ends."""
        try:
            fd = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            # No pidfd here (macOS, an old kernel): a thread waits and closes the far end of a pipe.
            fd, far = os.pipe()

            def wait() -> None:
                wait_for_end(process.pid)
                os.close(far)

            threading.Thread(target=wait, daemon=True).start()
        self._poll.register(fd, select.POLLIN | select.POLLHUP)
        return fd

    def _block(self, until: float) -> bool:
        """Wait for any event and handle it; return True if the engine is wanted: woken, or the time is over."""
        began = time.monotonic()
        times = [child.deadline for child in self._children.values() if child.deadline is not None]
        times += [child.signals[-1][0] for child in self._children.values() if child.signals]
        times += self._calls.deadlines()
        times += self.watchdogs.due
        patience = max(min(until, *times) - began, 0.0) if times else max(until - began, 0.0)
        if self._calls.waiting:
            patience = min(patience, HURRY_SECONDS)
        ended, woken, killed = [], False, False
        for fd, _ in self._poll.poll(patience * 1000 + 1):
            if fd == self._wake_read:
                woken = True
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 4096)
            elif fd in self._pipes:
                self._pump(fd, READ_BYTES)
            elif fd in self._children:
                ended.append(self._children[fd])
            elif fd in self._watched:
                killed = True
        if (killed or self.watchdogs.due) and self.watchdogs.replace():
            self._watch_watchdogs()
        for child in ended:
            self._reap(child)
        now = time.monotonic()
        returned = self._calls.returned(now)
        for attempt, outcome in returned:
            self._after_call(attempt, outcome)
        if not returned and self._calls.waiting:
            self._calls.expedite()
        self._check_deadlines(now)
        self._send_due(now)
        return woken or now >= until

    def _after_call(self, attempt: Attempt, outcome: Outcome) -> None:
        if outcome.status != "ok" or not attempt.checks:
            self._done.append(outcome)
            return
        course = self._course(attempt)
        course.outputs = outcome.outputs
        self._next_check(course)

    def _pump(self, fd: int, most: int) -> None:
        """Read the content of a pipe; forget the pipe when its writers are gone."""
        while most > 0:
            try:
                data = os.read(fd, READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._close_pipe(fd)
                return
            self._pipes[fd].feed(data)
            most -= len(data)

    def _close_pipe(self, fd: int) -> None:
        if self._pipes.pop(fd, None) is not None:
            self._poll.unregister(fd)
            os.close(fd)

    def _check_deadlines(self, now: float) -> None:
        for child in self._children.values():
            if child.deadline is not None and now >= child.deadline:
                child.deadline = None
                child.timed_out = True
                child.signals = [(now + KILL_GRACE, signal.SIGKILL), (now, signal.SIGTERM)]

    def _send_due(self, now: float) -> None:
        for child in self._children.values():
            while child.signals and child.signals[-1][0] <= now:
                _signal_group(child.process.pid, child.signals.pop()[1])

    def _reap(self, child: _Child) -> None:
        course = child.course
        if self._leftovers is not None and not child.stopped and not child.timed_out:
            course.left |= self._leftovers.in_group(child.process.pid, self._known())
        # Before the leader is reaped its group cannot be another's: end its remaining processes.
        _signal_group(child.process.pid, signal.SIGKILL)
        code = child.process.wait()
        for fd, log in child.pipes.items():
            if self._pipes.get(fd) is log:  # its present content; a process that still holds it is not waited for
                self._pump(fd, DRAIN_BYTES)
        self._forget(child)
        if code == 0 and course.checks and not child.stopped and not child.timed_out:
            self._next_check(course)
            return
        self._end_logs(course)
        ended = self._end_leftovers()
        course.left = ended | course.left if not child.stopped and not child.timed_out else {}
        ending = outcomes.ProcessEnd(
            code=code,
            duration=time.monotonic() - course.began,
            stopped=child.stopped,
            timed_out=child.timed_out,
            check=course.checking,
            outputs=course.outputs,
            left=tuple(self._shortened(command) for command in list(course.left.values())[:MAX_LEFT]),
        )
        self._done.append(outcomes.of_process(course.attempt, ending, course.logs))

    def _shortened(self, command: str) -> str:
        """Return a command line for a record: without secrets, which are hidden before it is cut."""
        return one_line(self._mask.text(command), MAX_LEFT_CHARS)

    def _known(self) -> set[int]:
        return {child.process.pid for child in self._children.values()} | self.watchdogs.pids

    def _end_leftovers(self) -> dict[int, str]:
        if self._leftovers is None:
            return {}
        running = {child.course.attempt.unit.step for child in self._children.values()}
        return self._leftovers.end(self._known(), running)

    def _forget(self, child: _Child) -> None:
        self.watchdogs.ended(child.process.pid)
        for fd, log in child.pipes.items():
            if self._pipes.get(fd) is log:  # the number may be another child's by now
                self._close_pipe(fd)
        del self._children[child.watched]
        self._poll.unregister(child.watched)
        os.close(child.watched)
        channels.drop(child.files)


def _pipe() -> tuple[int, int]:
    """Return a pipe that is not inherited, and that is read without waiting."""
    ends = os.pipe()
    os.set_blocking(ends[0], False)
    return ends


def _bytes(text: str) -> bytes:
    """Encode as UTF-8 in any locale; odd bytes of file names come out as they came in."""
    return text.encode(errors="surrogateescape")


def _all_bytes(variables: Mapping[str, str]) -> dict[bytes, bytes]:
    return {_bytes(name): _bytes(value) for name, value in variables.items()}


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them; child processes must not


class Process(Protocol):
    """Child process that has not been waited for."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int:
        """Return the exit code, negative for a signal."""


class _Spawned:
    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def spawn(argv: list[bytes], env: Mapping[bytes, bytes], cwd: str, streams: tuple[int, int, int]) -> Process:
    """Start a process that leads a new session, with these standard streams and no other descriptor; raise OSError."""
    if sys.platform == "linux" and min(streams) > 2 and _is_here(cwd):
        actions: list[Any] = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(streams)]
        actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in _inherited()]
        try:
            return _Spawned(os.posix_spawn(argv[0], argv, env, file_actions=actions, setsid=True, setsigdef=_RESTORED))
        except NotImplementedError:  # a C library that cannot make sessions
            pass
        except OSError as error:  # or that will not close a descriptor beyond a limit that was lowered since
            if error.errno != errno.EBADF:
                raise
    null, out, err = streams
    return subprocess.Popen(argv, cwd=cwd, env=env, stdin=null, stdout=out, stderr=err, start_new_session=True)


def wait_for_end(pid: int) -> None:
    """Wait until a child has ended, and leave it to be reaped."""
    if sys.platform == "darwin":
        import select

        queue = select.kqueue()
        try:
            event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
            with contextlib.suppress(ProcessLookupError):  # it is over
                queue.control([event], 1)
        finally:
            queue.close()
    else:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _is_here(path: str) -> bool:
    try:
        return os.getcwd() == path
    except OSError:  # the current directory is gone
        return False


@cache
def _inherited() -> tuple[int, ...]:
    """Return the descriptors that were inherited from our parent: ours are all closed on exec, as Python does it."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own, closed by now
            if int(entry) > 2 and os.get_inheritable(int(entry)):
                found.append(int(entry))
    return tuple(found)
