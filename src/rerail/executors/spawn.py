"""One process in a session of its own: by posix_spawn where that can do it, else by subprocess.

posix_spawn spares a small step a tenth of its cost. It cannot change the directory, so it is for processes that start
where we are, which is where most do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them; what we start must not


class Process(Protocol):
    """A child of ours that has not been waited for."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int:
        """The exit code, negative for a signal."""


class _Spawned:
    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def spawn(argv: list[bytes], env: Mapping[bytes, bytes], cwd: str, streams: tuple[int, int, int]) -> Process:
    """Start a process that leads a new session, with these standard streams and no other descriptor; raises OSError."""
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
    """Return when a child has ended, and leave it to be waited for."""
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
    except OSError:  # where we are is gone
        return False


@cache
def _inherited() -> tuple[int, ...]:
    """Descriptors that whoever started us left open: ours are all closed on exec, as Python does it."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own, closed by now
            if int(entry) > 2 and os.get_inheritable(int(entry)):
                found.append(int(entry))
    return tuple(found)
