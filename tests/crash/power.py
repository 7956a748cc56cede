"""A model of what a power cut leaves: records what durable.py asks of the system, and rebuilds what would survive.

Two models. Strict: a file keeps what it had at its last sync, a directory the names it had at its own last sync.
Names first: names persist as soon as they change, data only when synced (what ext4 and XFS may do).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from rerail import durable
from rerail.durable import files


class Op(msgspec.Struct, frozen=True):
    """One thing that happened: a system call, or an acknowledgement to the world."""

    kind: str
    path: str = ""
    target: str = ""
    data: bytes = b""
    offset: int = 0
    site: str = ""  # for syncs: which call in the product asked for it


class SimulatedCrash(BaseException):
    """The process is gone; nothing it still tries has any effect."""


class RecordingOS:
    """Stands in for the `os` module inside durable.py: does everything for real, and writes it down."""

    def __init__(self, root: Path, crash_at_sync: int = 0) -> None:
        self.ops: list[Op] = []
        self.syncs = 0
        self._root = str(root)
        self._paths: dict[int, str] = {}
        self._ends: dict[int, int] = {}  # how far a file was written in a row
        self._crash_at_sync = crash_at_sync
        self._dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _note(self, op: Op) -> None:
        if self._dead:
            raise SimulatedCrash
        self.ops.append(op)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        if self._dead and flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            raise SimulatedCrash
        fd = os.open(path, flags, mode)
        self._paths[fd] = path
        self._ends.pop(fd, None)
        if new:
            self._note(Op("create", path))
        return fd

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._note(Op("write", self._paths[fd], data=bytes(data), offset=offset))
        return os.pwrite(fd, data, offset)

    def write(self, fd: int, data: bytes) -> int:
        at = self._ends.get(fd, 0)
        self._note(Op("write", self._paths[fd], data=bytes(data), offset=at))
        self._ends[fd] = at + len(data)
        return os.write(fd, data)

    def ftruncate(self, fd: int, length: int) -> None:
        self._note(Op("truncate", self._paths[fd], offset=length))
        os.ftruncate(fd, length)

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        os.posix_fallocate(fd, offset, length)

    def fsync(self, fd: int) -> None:
        self._sync(fd)

    def fdatasync(self, fd: int) -> None:
        self._sync(fd)

    def _sync(self, fd: int) -> None:
        self.syncs += 1
        if self.syncs == self._crash_at_sync:
            self._dead = True
        self._note(Op("sync", self._paths[fd], site=_site(sys._getframe(2))))

    def rename(self, path: str, target: str) -> None:
        self._note(Op("rename", path, target))
        os.rename(path, target)

    def link(self, path: str, target: str, *, follow_symlinks: bool = True) -> None:
        os.link(path, target, follow_symlinks=follow_symlinks)
        self._note(Op("link", path, target))

    def unlink(self, path: str) -> None:
        os.unlink(path)
        self._note(Op("unlink", path))

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        os.mkdir(path, mode)
        self._note(Op("mkdir", path))

    def acknowledge(self, what: str) -> None:
        self._note(Op("ack", what))


def _site(frame: FrameType | None) -> str:
    """The chain of functions from durable.py up to the first outside it: names a sync by its purpose."""
    names = []
    while frame is not None:
        names.append(frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name)
        if not str(frame.f_globals.get("__name__")).startswith(durable.__name__):
            return f"{frame.f_globals['__name__']}.{names[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


class _Inode:
    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""


class Disk:
    """Files and directories as they are, and as they would come back."""

    def __init__(self, top: str, *, names_first: bool) -> None:
        self._names_first = names_first
        self._now: dict[str, dict[str, _Inode | None]] = {top: {}}  # directory → name → inode (None: a directory)
        self._kept: dict[str, dict[str, _Inode | None]] = {top: {}}
        self._top = top

    def apply(self, op: Op) -> None:
        match op.kind:
            case "create":
                self._bind(op.path, _Inode())
            case "mkdir":
                self._bind(op.path, None)
                self._now[op.path] = {}
                self._kept[op.path] = {}
            case "write":
                data = self._inode(op.path).data
                data.extend(b"\0" * (op.offset + len(op.data) - len(data)))
                data[op.offset : op.offset + len(op.data)] = op.data
            case "truncate":
                del self._inode(op.path).data[op.offset :]
            case "sync" if op.path in self._now:
                self._kept[op.path] = dict(self._now[op.path])
            case "sync":
                inode = self._inode(op.path)
                inode.synced = bytes(inode.data)
            case "rename":
                self._rename(op.path, op.target)
            case "link":
                self._bind(op.target, self._inode(op.path))
            case "unlink":
                del self._now[os.path.dirname(op.path)][os.path.basename(op.path)]
                self._persist_names(os.path.dirname(op.path))
            case _:
                pass

    def _rename(self, path: str, target: str) -> None:
        inode = self._now[os.path.dirname(path)].pop(os.path.basename(path))
        if inode is None:
            for table in (self._now, self._kept):
                for old in [name for name in table if name == path or name.startswith(path + "/")]:
                    table[target + old[len(path) :]] = table.pop(old)
        self._persist_names(os.path.dirname(path))
        self._bind(target, inode)

    def _bind(self, path: str, inode: _Inode | None) -> None:
        self._now[os.path.dirname(path)][os.path.basename(path)] = inode
        self._persist_names(os.path.dirname(path))

    def _persist_names(self, directory: str) -> None:
        if self._names_first:
            self._kept[directory] = dict(self._now[directory])

    def _inode(self, path: str) -> _Inode:
        inode = self._now[os.path.dirname(path)][os.path.basename(path)]
        assert inode is not None
        return inode

    def survivors(self) -> Iterator[tuple[str, bytes | None]]:
        """What is there after the power comes back: relative path and content, None for a directory."""
        stack = [self._top]
        while stack:
            directory = stack.pop()
            for name, inode in self._kept[directory].items():
                path = os.path.join(directory, name)
                yield os.path.relpath(path, self._top), None if inode is None else inode.synced
                if inode is None and path in self._kept:
                    stack.append(path)


def recorded(root: Path, work: Callable[[RecordingOS], None], crash_at_sync: int = 0) -> RecordingOS:
    """Do some work with durable.py under observation."""
    recorder = RecordingOS(root, crash_at_sync)
    modules: tuple[Any, ...] = (durable, files)
    for module in modules:
        module.os = recorder
    try:
        work(recorder)
    except SimulatedCrash:
        pass
    finally:
        for module in modules:
            module.os = os
        for lock in list(durable._held):
            lock.release()
    return recorder
