"""A file system with faults, under everything that goes through `rerail.durable`.

What is asked of it is really done, in the directory the test gave; on the way every operation is counted and written
down, and one of them (or all from one on) can fail, write half of what it should, or be the last thing the process does.
A simulated crash latches: no `finally`, no `atexit` and no second thread can change a file any more, as a killed process
could not.

    for fs in crash_points():
        with fs:
            work()          # cut off at the first operation, then at the second, ...
        check()             # what a new process finds
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Literal, Self

import msgspec

from rerail import durable
from rerail.durable import append, copies, files, lock

_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_PLAIN = frozenset({"symlink", "chmod", "fchmod"})  # counted and failing like others, not in crash states
_MODULES: tuple[Any, ...] = (files, append, lock, copies)


class SimulatedCrash(BaseException):
    """The process is gone; nothing it still tries has any effect. Not an Exception, so that nobody handles it."""


class Op(msgspec.Struct, frozen=True):
    """One thing that happened, in the order of everything else."""

    kind: Literal["create", "write", "truncate", "sync", "lost", "rename", "link", "unlink", "mkdir", "rmtree", "note"]
    path: str = ""
    target: str = ""
    data: bytes = b""
    offset: int = 0
    site: str = ""  # of a sync: which line of the product asked for it


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong at the `at`-th operation, and whether it stays so."""

    at: int
    kind: Literal["crash", "torn", "short", "error"] = "crash"
    number: int = 0  # of the error
    forever: bool = False


class FaultFS:
    """Stands in for the operating system while it is entered. One at a time in a process."""

    def __init__(self, fault: Fault | None = None, *, reads: bool = False) -> None:
        """`reads` makes opening and reading count as operations too, so that they can fail."""
        self.ops: list[Op] = []
        self.count = 0
        self.hit = False  # whether the fault was met
        self.crashed = False
        self._fault = fault
        self._reads = reads
        self._lock = threading.RLock()
        self._paths: dict[int, str] = {}
        self._ends: dict[int, int] = {}  # where a file that is written in a row ends

    def __enter__(self) -> Self:
        for module in _MODULES:
            module.os = self
        files._remove_tree = self.rmtree
        copies._remove_tree_at = self.rmtree_at
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        for module in _MODULES:
            module.os = os
        files._remove_tree = _REMOVE_TREE
        copies._remove_tree_at = _REMOVE_TREE_AT
        if self.crashed:
            self._let_go()
        return kind is not None and issubclass(kind, SimulatedCrash)

    def note(self, what: str) -> None:
        """Write down that something happened outside: that the world was told, that a step ran."""
        with self._lock:
            self._live()
            self.ops.append(Op("note", what))

    def crash(self) -> None:
        """Die here and now, between two operations."""
        self._die()

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        if name not in _PLAIN:
            return function

        def counted(*arguments: Any, **more: Any) -> Any:
            with self._lock:
                self._meet(str(arguments[0]))
                return function(*arguments, **more)

        return counted

    # What follows has the names and parameters of the functions of `os` it stands for.

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        with self._lock:
            path = self._whole(path, dir_fd)
            changes = bool(flags & _CHANGES)
            self._meet(path, counts=changes or self._reads)
            new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
            fd = os.open(path, flags, mode)
            self._paths[fd] = path
            self._ends.pop(fd, None)
            if new:
                self.ops.append(Op("create", path))
            elif flags & os.O_TRUNC:
                self.ops.append(Op("truncate", path))
            return fd

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        os.close(fd)

    def read(self, fd: int, size: int) -> bytes:
        with self._lock:
            self._meet(self._paths.get(fd, ""), counts=self._reads)
            return os.read(fd, size)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        with self._lock:
            return self._write(fd, bytes(data), offset)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        with self._lock:
            at = self._ends.get(fd, os.lseek(fd, 0, os.SEEK_END))
            written = self._write(fd, bytes(data), at)
            self._ends[fd] = at + written
            return written

    def _write(self, fd: int, data: bytes, offset: int) -> int:
        path = self._paths[fd]
        half = self._meet(path, writes=len(data) > 1)
        if half:
            data = data[: len(data) // 2]
        written = os.pwrite(fd, data, offset)
        self.ops.append(Op("write", path, data=data[:written], offset=offset))
        if half and self._fault is not None and self._fault.kind == "torn":
            self._die()
        return written

    def ftruncate(self, fd: int, length: int) -> None:
        with self._lock:
            self._meet(self._paths[fd])
            os.ftruncate(fd, length)
            self.ops.append(Op("truncate", self._paths[fd], offset=length))

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        with self._lock:
            self._meet(self._paths[fd])
            os.posix_fallocate(fd, offset, length)

    def fsync(self, fd: int) -> None:
        self._sync(fd)

    def fdatasync(self, fd: int) -> None:
        self._sync(fd)

    def _sync(self, fd: int) -> None:
        with self._lock:
            path = self._paths[fd]
            try:
                self._meet(path)
            except OSError:
                # The system says so once. What it could not write it may have dropped, and the next sync will succeed.
                self.ops.append(Op("lost", path))
                raise
            self.ops.append(Op("sync", path, site=_site(sys._getframe(2))))

    def rename(self, path: str, target: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        with self._lock:
            path, target = self._whole(path, src_dir_fd), self._whole(target, dst_dir_fd)
            self._meet(path)
            os.rename(path, target)
            self.ops.append(Op("rename", path, target))
            for fd, known in self._paths.items():
                if known == path or known.startswith(path + "/"):
                    self._paths[fd] = target + known[len(path) :]

    def link(self, path: str, target: str, *, follow_symlinks: bool = True) -> None:
        with self._lock:
            self._meet(path)
            os.link(path, target, follow_symlinks=follow_symlinks)
            self.ops.append(Op("link", path, target))

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        with self._lock:
            path = self._whole(path, dir_fd)
            self._meet(path)
            os.unlink(path)
            self.ops.append(Op("unlink", path))

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        with self._lock:
            path = self._whole(path, dir_fd)
            self._meet(path)
            os.mkdir(path, mode)
            self.ops.append(Op("mkdir", path))

    def rmtree_at(self, name: str, parent: int) -> None:
        self.rmtree(self._whole(name, parent))

    def rmtree(self, path: str) -> None:
        """Stands for `durable.remove_tree`, which leaves the details to the standard library."""
        with self._lock:
            self._meet(path)
            shutil.rmtree(path)
            self.ops.append(Op("rmtree", path))

    def _whole(self, path: str, dir_fd: int | None) -> str:
        """The path of a name in a directory that is open."""
        return path if dir_fd is None else os.path.normpath(os.path.join(self._paths[dir_fd], path))

    def _meet(self, path: str, *, counts: bool = True, writes: bool = False) -> bool:
        """Count an operation and do to it what was asked for; True if it should do half of it."""
        self._live()
        if not counts:
            return False
        self.count += 1
        fault = self._fault
        if fault is None or not (self.count == fault.at or (fault.forever and self.count > fault.at)):
            return False
        if fault.kind == "short":
            self.hit = self.hit or writes
            return writes
        self.hit = True
        if fault.kind == "error":
            raise OSError(fault.number, os.strerror(fault.number), path)
        if fault.kind == "torn" and writes:
            return True
        self._die()
        return False

    def _live(self) -> None:
        if self.crashed:
            raise SimulatedCrash

    def _die(self) -> None:
        self.crashed = True
        raise SimulatedCrash

    def _let_go(self) -> None:
        """What the kernel does for a dead process: its locks and descriptors are gone."""
        for one in list(lock._held):
            if one._fd in self._paths:
                del self._paths[one._fd]
                one.release()
        for fd in self._paths:
            try:
                os.close(fd)
            except OSError as error:
                if error.errno != errno.EBADF:
                    raise
        self._paths.clear()


_REMOVE_TREE = files._remove_tree
_REMOVE_TREE_AT = copies._remove_tree_at


def crash_at(number: int, *, torn: bool = False) -> FaultFS:
    """A process that dies just before the n-th operation on its files; with `torn`, half-way through it if it writes."""
    return FaultFS(Fault(at=number, kind="torn" if torn else "crash"))


def crash_points(*, torn: bool = False, start: int = 1, step: int = 1) -> Iterator[FaultFS]:
    """One file system after the other, each crashing an operation later; ends once one of them was never reached."""
    return fault_points(Fault(at=start, kind="torn" if torn else "crash"), step=step)


def fault_points(fault: Fault, *, step: int = 1, reads: bool = False) -> Iterator[FaultFS]:
    """One file system after the other, the fault an operation later each time; ends once it was never reached.

    Whoever uses it must enter each before asking for the next.
    """
    while True:
        fs = FaultFS(fault, reads=reads)
        yield fs
        if fs.count < fault.at:
            return
        fault = msgspec.structs.replace(fault, at=fault.at + step)


def _site(frame: FrameType | None) -> str:
    """Which line outside `durable` asked for a sync."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if not module.startswith(durable.__name__):
            name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
            return f"{module}.{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"
