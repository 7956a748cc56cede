"""Processes of the operating system: the identity of this one, whether another is alive, and the end of orphans.

A pid alone proves nothing: it may be reused, or belong to a zombie. An identity is boot, pid namespace, pid and
start time together.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rerail.core.events import Owner

MARKS = "RERAIL_MARKS"  # process tags of the runs that a process belongs to, outermost first

GUARDS = ("steps-guard", "orphans-guard")  # names of the watchdogs of an invocation

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LEAVING = 3  # that many of them end rerail at once

only_steps = False  # whether all children of this process are those of steps: set by the command line


class KillScope(NamedTuple):
    """Further criteria for processes to kill besides a process tag: their session, the pipe they write to."""

    sessions: frozenset[int] = frozenset()
    pipes: frozenset[int] = frozenset()


NOTHING_MORE = KillScope()


@contextlib.contextmanager
def caught_signals() -> Iterator[list[signal.Signals]]:
    """Collect stop signals in a list while the context is active, instead of being ended by them.

    Those that are still in the list at its end take effect then.
    Those that are ignored stay ignored, as under nohup. In a thread nothing is caught: handlers belong to the main one.
    """
    received: list[signal.Signals] = []

    def note(number: int, _frame: Any) -> None:
        received.append(signal.Signals(number))

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, note)
    try:
        yield received
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)
        for number in received:
            signal.raise_signal(number)


_PROC = "/proc"
_MARKS_PREFIX = MARKS.encode() + b"="


def identity(since: datetime) -> Owner:
    """Return the identity of this process."""
    pid = os.getpid()
    return Owner(
        pid=pid,
        started=_start_time(pid) or "",
        boot=_boot(),
        namespace=_namespace(),
        host=os.uname().nodename,
        since=since,
    )


def is_here(owner: Owner) -> bool:
    """Return whether a process is on this machine and in this pid namespace."""
    return owner.host == os.uname().nodename and owner.boot == _boot() and owner.namespace == _namespace()


def is_hidden(owner: Owner) -> bool:
    """Return whether a process is on this machine, but in another pid namespace."""
    return owner.host == os.uname().nodename and owner.boot == _boot() and owner.namespace != _namespace()


def is_alive(owner: Owner) -> bool:
    """Return whether that very process is still alive, as far as can be told from here.

    A process that cannot be checked (another host, another pid namespace) counts as alive: only the lock can tell.
    """
    if owner.host != os.uname().nodename:
        return True
    if owner.boot != _boot():
        return False
    if owner.namespace != _namespace():
        return True
    if os.path.isdir(_PROC + "/self"):
        return _start_time(owner.pid) == owner.started
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _start_time(pid: int) -> str | None:
    """Return field 22 of /proc/PID/stat, or None if there is no such process or it is a zombie."""
    fields = _stat(pid)
    return fields[19].decode() if fields else None


def _session(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[3]) if fields else 0


def _stat(pid: int) -> list[bytes]:
    """Return /proc/PID/stat from the third field on; empty if there is no such process or it is a zombie."""
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return []
    fields = text[text.rfind(b")") + 2 :].split()
    return [] if fields[0] in (b"Z", b"X") else fields


def _boot() -> str:
    try:
        with open(f"{_PROC}/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink(f"{_PROC}/self/ns/pid")
    except OSError:
        return ""


def marks(*own: str) -> str:
    """Return the process tags for a child process: ours, and those of our own ancestors."""
    return "|".join(filter(None, (os.environ.get(MARKS, ""), *own)))


def has_tag(environment: bytes, mark: str) -> bool:
    """Return whether an environment, as /proc shows it, has this process tag."""
    for variable in environment.split(b"\0"):
        if variable.startswith(_MARKS_PREFIX):
            return mark.encode() in variable[len(_MARKS_PREFIX) :].split(b"|")
    return False


def marked(mark: str) -> Iterator[int]:
    """Yield the live processes with this process tag, this one excepted."""
    for pid in _others():
        try:
            with open(f"{_PROC}/{pid}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            continue
        if has_tag(environment, mark) and _start_time(pid) is not None:
            yield pid


def guard_line(name: str, owner: int) -> str:
    """Return the command line of a watchdog."""
    return f"{name} of {owner}"


def is_guarded(owner: int) -> bool:
    """Return whether a watchdog of a process that is gone is still at work."""
    if _start_time(owner) is not None:
        return False
    lines = {guard_line(name, owner).encode() for name in GUARDS}
    for pid in _others():
        try:
            with open(f"{_PROC}/{pid}/cmdline", "rb") as file:
                line = file.read(64).partition(b"\0")[0]
        except OSError:
            continue
        if line in lines and _start_time(pid) is not None:
            return True
    return False


def _others() -> list[int]:
    try:
        return [int(entry) for entry in os.listdir(_PROC) if entry.isdigit() and int(entry) != os.getpid()]
    except OSError:
        return []


def _writing_to(pipes: Iterable[int]) -> Iterator[int]:
    """Yield the live processes, this one excepted, whose output goes to one of these pipes."""
    names = {f"pipe:[{number}]" for number in pipes}
    for pid in _others() if names else ():
        for stream in (1, 2):
            try:
                if os.readlink(f"{_PROC}/{pid}/fd/{stream}") in names:
                    yield pid
            except OSError:
                continue


def _end_group(leader: int) -> bool:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill_tagged(
    mark: str, known: KillScope = NOTHING_MORE, *, patience: float = 5.0, pauses: Sequence[float] = ()
) -> int:
    """Kill every process with the process tag and wait until they are gone; return how many there were.

    Also those that share a session with one of them or match `known`: a process may have dropped its environment.
    Sweeps until nothing is found: a process may fork while it is being killed. And again after each of `pauses`: one that
    is just being started, or just executes another program, shows no environment for a moment.
    """
    waits = list(pauses)
    ended: set[int] = set()
    own = {0, os.getsid(0)}
    sessions = set(known.sessions) - own
    if not os.path.isdir(_PROC + "/self"):  # macOS: processes cannot be inspected, but known sessions can be killed
        return sum(map(_end_group, sessions))
    deadline = time.monotonic() + patience
    while True:
        found = {*marked(mark), *_writing_to(known.pipes)}
        sessions |= {_session(pid) for pid in found} - own
        if sessions:
            found |= {pid for pid in _others() if _session(pid) in sessions}
        if time.monotonic() > deadline or not (found or waits):
            return len(ended)
        if not found:
            time.sleep(waits.pop(0))
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
            ended.add(pid)
        time.sleep(0.002)
