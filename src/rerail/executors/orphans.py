"""Orphans: processes that an ended step left behind are ended with it. `watchdog` ends all steps with rerail.

Processes are recognised by a process tag in their environment, which children inherit in any session. On Linux a process
that loses its parent becomes a child of rerail (a subreaper), so that orphans are found without searching the whole
system.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from rerail import processes

MAX_COMMAND = 4096  # bytes of a command line that are read
_PR_SET_CHILD_SUBREAPER = 36


class OrphanReaper:
    """Processes of ended steps that live on as children of this process."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self.active = sys.platform == "linux" and os.path.exists(f"/proc/self/task/{os.getpid()}/children")
        self.active = self.active and _set_subreaper(1)
        # Kept open: it is read after every step. The kernel gives orphans to the first thread of a process.
        self._list = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC) if self.active else -1

    def in_group(self, leader: int, known: set[int]) -> dict[int, str]:
        """Return the commands of live processes in the group of a leader that has ended and is not reaped yet."""
        if not self.active:
            return {}
        found: dict[int, str] = {}
        for pid in self._children():
            if pid not in known and pid != leader:
                with contextlib.suppress(ProcessLookupError):
                    found |= _command_of(pid) if os.getpgid(pid) == leader else {}
        return found

    def end(self, known: set[int], running: set[str]) -> dict[int, str]:
        """End every tagged child that is not in `known` and whose step is not running; reap the dead.

        Return the commands of those that were alive.
        Where all our children are of steps, those without a tag (some overwrite their environment) are ended too, as
        soon as no step runs that they might belong to.
        """
        ended: dict[int, str] = {}
        if not self.active:
            return ended
        everything = processes.only_steps and not running
        for _ in range(100):  # its own orphans become ours in turn
            strangers = [pid for pid in self._children() if pid not in known]
            found = [pid for pid in strangers if self._is_leftover(pid, running) or everything]
            if not found:
                break
            for pid in found:
                ended |= _command_of(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        return ended

    def _is_leftover(self, pid: int, running: set[str]) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            return False
        if not environment:
            # A zombie has no environment left; one that is our child and not known is ours to reap.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            return False
        if not processes.has_tag(environment, self._mark):
            return False
        variables = environment.split(b"\0")
        step = next((name[12:].decode() for name in variables if name.startswith(b"RERAIL_STEP=")), "")
        return step not in running

    def _children(self) -> list[int]:
        found = piece = os.pread(self._list, 4096, 0)
        while len(piece) > 4000:  # the kernel returns a page at a time, and whole numbers
            piece = os.pread(self._list, 4096, len(found))
            found += piece
        return [int(pid) for pid in found.split()]

    def close(self) -> None:
        if self.active:
            _set_subreaper(0)
            os.close(self._list)


def _command_of(pid: int) -> dict[int, str]:
    """Return the command line of a process, by its number; nothing if it is dead."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(MAX_COMMAND).decode(errors="replace").split("\0")
    except OSError:
        return {}
    return {pid: " ".join(words).strip()} if words[0] else {}


def _set_subreaper(value: int) -> bool:
    import ctypes

    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, value, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
