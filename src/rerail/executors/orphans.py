"""Nothing survives: what a step leaves behind is ended with it, and all steps are ended with rerail, however it dies.

Processes are known by a mark in their environment, which children inherit whatever session they hide in. On Linux what
loses its parent becomes ours (a subreaper), so that leftovers of a step are found without searching the whole system;
and a small process waits for rerail's death, which it sees as the end of a pipe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from rerail import processes
from rerail.executors import channels

_PR_SET_CHILD_SUBREAPER = 36
_AGAIN = (0.005, 0.02, 0.1, 0.3)  # seconds after which it is looked again for what was being started when rerail died


class Leftovers:
    """Processes of ended steps that live on as children of this process."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self.active = sys.platform == "linux" and os.path.exists(f"/proc/self/task/{os.getpid()}/children")
        self.active = self.active and _set_subreaper(1)
        # Kept open: this is looked at after every step. The kernel gives orphans to the first thread of a process.
        self._list = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC) if self.active else -1

    def end(self, known: set[int], running: set[str]) -> None:
        """End every marked child that is not known and whose step is not running; reap what is dead.

        Where all our children are of steps, those without a mark (some overwrite their environment) are ended too, as
        soon as no step runs that they might belong to.
        """
        if not self.active:
            return
        everything = processes.only_steps and not running
        for _ in range(100):  # what it leaves behind becomes ours in turn
            strangers = [pid for pid in self._children() if pid not in known]
            found = [pid for pid in strangers if self._is_leftover(pid, running) or everything]
            if not found:
                return
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _is_leftover(self, pid: int, running: set[str]) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            return False
        if not environment:
            # A zombie has no environment left; one that is our child and not known is nobody's but ours to reap.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            return False
        if not processes.bears(environment, self._mark):
            return False
        variables = environment.split(b"\0")
        step = next((name[12:].decode() for name in variables if name.startswith(b"RERAIL_STEP=")), "")
        return step not in running

    def _children(self) -> list[int]:
        found = piece = os.pread(self._list, 4096, 0)
        while len(piece) > 4000:  # the kernel hands out a page at a time, and whole numbers
            piece = os.pread(self._list, 4096, len(found))
            found += piece
        return [int(pid) for pid in found.split()]

    def close(self) -> None:
        if self.active:
            _set_subreaper(0)
            os.close(self._list)


def _set_subreaper(value: int) -> bool:
    import ctypes

    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, value, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


class Watchdog:
    """A forked process that ends everything bearing the mark once this process is gone, and notes when that was."""

    def __init__(self, mark: str, notes: str = "") -> None:
        self._held = b""
        read, self._write = os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            os.close(read)
            os.close(self._write)
            raise
        if self.pid == 0:
            _watch(read, self._write, mark, notes)
        os.close(read)

    def begins(self, output: int) -> None:
        """A process is about to be started that will write to this pipe: should we die before `began` is said."""
        self._held += b"?%d\n" % os.fstat(output).st_ino
        self.tell()

    def began(self, session: int) -> None:
        """It leads a session that must not outlive us."""
        self._held += b"+%d\n" % session
        self.tell()

    def ended(self, session: int) -> None:
        """It has been waited for: its number may soon be another's. Told with the next start, or by `tell`."""
        self._held += b"-%d\n" % session

    def tell(self) -> None:
        """Tell what is held back: each word wakes the watchdog, which takes its time."""
        if self._held:
            held, self._held = self._held, b""
            with contextlib.suppress(OSError):  # somebody killed the watchdog: marks are what is left
                os.write(self._write, held)

    def close(self) -> None:
        """Nothing is left to watch."""
        if self._write >= 0:
            with contextlib.suppress(OSError):
                os.write(self._write, b"x\n")
            os.close(self._write)
            self._write = -1
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)


def _watch(read: int, write: int, mark: str, notes: str) -> None:
    since, began = time.time(), time.monotonic()
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        os.close(write)
        # Everything else is let go: whoever reads rerail's output must not wait for us.
        os.closerange(0, read)
        os.closerange(read + 1, 65536)
        known = processes.Known()
        with open(read, "rb", closefd=False) as messages:
            for message in messages:
                if message == b"x\n":
                    return
                known = _told(known, message[:1], frozenset([int(message[1:])]))
        if os.path.isdir(notes):
            channels.note_death(notes, since + time.monotonic() - began)  # whatever clock was set meanwhile
        processes.end_marked(mark, known, pauses=_AGAIN)
    finally:
        os._exit(0)


def _told(known: processes.Known, about: bytes, number: frozenset[int]) -> processes.Known:
    if about == b"?":
        return processes.Known(known.sessions, number)  # one starts at a time: the one before is known by its session
    return processes.Known(known.sessions | number if about == b"+" else known.sessions - number)
