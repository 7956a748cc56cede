"""What a power cut can leave of a directory: from what was asked of the file system to every state it may come back in.

A change is *pending* until a sync covers it. Three models of what happens to what is pending:

- strict: any of it may be on the disk, in any order; only a sync of the directory saves a name. What POSIX promises.
- ordered: names become durable in the order they changed, and with any sync of any file; data only with its own sync.
  What ext4, XFS and btrfs do with their journals.
- size first: as ordered, and a file may have its new length without the data: zeros, or whatever stood there before.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from tests.lab.faults import Op

Model = Literal["strict", "ordered", "size-first"]
MODELS: tuple[Model, ...] = ("strict", "ordered", "size-first")
Files = dict[str, bytes | None]  # relative path → content, None for a directory

_TOP = 0
_SECTORS = (512, 4096)


class Data(NamedTuple):
    """Bytes of a file changed, or (`content` None) it was cut to a length."""

    inode: int
    offset: int
    content: bytes | None


class Names(NamedTuple):
    """Names of directories changed, all at once: (directory, name, inode or None)."""

    changes: tuple[tuple[int, str, int | None], ...]


Change = Data | Names


class CrashState(NamedTuple):
    """What one power cut can leave."""

    after: int  # how many operations had been asked for
    label: str
    files: Files
    notes: tuple[str, ...]  # what had happened outside by then


class Disk:
    """Follows operations; knows what is durable, what is pending, and what can come of it."""

    def __init__(self, top: str, model: Model, files: Mapping[str, bytes | None] | None = None) -> None:
        """`files` are there from the start, and durable."""
        self._top = top
        self.model = model
        self._next = _TOP + 1
        self._now: dict[int, dict[str, int]] = {_TOP: {}}  # directories as a process sees them
        self._names: dict[int, dict[str, int]] = {_TOP: {}}  # as they would come back
        self._content: dict[int, bytes] = {}
        self.pending: list[Change] = []
        for path in sorted(files or {}):
            self._add(path, (files or {})[path])

    def _add(self, path: str, content: bytes | None) -> None:
        inode = self._new(None if content is None else b"")
        directory, name = self._place(os.path.join(self._top, path))
        self._now[directory][name] = self._names[directory][name] = inode
        if content is not None:
            self._content[inode] = content

    def _new(self, content: bytes | None) -> int:
        inode, self._next = self._next, self._next + 1
        if content is None:
            self._now[inode], self._names[inode] = {}, {}
        else:
            self._content[inode] = content
        return inode

    def _place(self, path: str) -> tuple[int, str]:
        """The directory of a path, and its name there."""
        *above, name = os.path.relpath(path, self._top).split(os.sep)
        directory = _TOP
        for part in above:
            directory = self._now[directory][part]
        return directory, name

    def _inode(self, path: str) -> int:
        if path == self._top:
            return _TOP
        directory, name = self._place(path)
        return self._now[directory][name]

    def apply(self, op: Op) -> None:
        """Follow one operation."""
        if not (op.path == self._top or op.path.startswith(self._top + os.sep)):
            return  # above what is watched, or not a file at all
        match op.kind:
            case "create" | "mkdir":
                self._bind(op.path, self._new(b"" if op.kind == "create" else None))
            case "write":
                self.pending.append(Data(self._inode(op.path), op.offset, op.data))
            case "truncate":
                self.pending.append(Data(self._inode(op.path), op.offset, None))
            case "link":
                self._bind(op.target, self._inode(op.path))
            case "unlink" | "rmtree":
                self._rename((*self._place(op.path), None))
            case "rename":
                self._rename((*self._place(op.path), None), (*self._place(op.target), self._inode(op.path)))
            case "sync":
                self._sync(self._inode(op.path))
            case "lost":
                self._lose(self._inode(op.path))

    def _bind(self, path: str, inode: int) -> None:
        self._rename((*self._place(path), inode))

    def _rename(self, *changes: tuple[int, str, int | None]) -> None:
        _apply_names(self._now, changes)
        self.pending.append(Names(changes))

    def _sync(self, inode: int) -> None:
        """Make durable what this sync covers."""
        kept: list[Change] = []
        for change in self.pending:
            if isinstance(change, Data):
                covered = change.inode == inode
            else:  # a rename is durable with the directory it leads to
                covered = self.model != "strict" or change.changes[-1][0] == inode
            if covered:
                _apply(self._names, self._content, change)
            else:
                kept.append(change)
        self.pending = kept

    def _lose(self, inode: int) -> None:
        """A sync failed: what it should have written counts as written from now on, and never is."""
        self.pending = [change for change in self.pending if not (isinstance(change, Data) and change.inode == inode)]

    def outcome(self, changes: Iterable[Change]) -> Files:
        """What is there if of all that is pending just these changes reached the disk."""
        names, content = dict(self._names), dict(self._content)
        for change in changes:
            if isinstance(change, Names):
                for directory, _, _ in change.changes:
                    names[directory] = dict(names.get(directory, {}))
            _apply(names, content, change)
        found: Files = {}
        stack = [(_TOP, "")]
        while stack:
            directory, prefix = stack.pop()
            for name, inode in names.get(directory, {}).items():
                path = prefix + name
                if inode in content:
                    found[path] = content[inode]
                else:
                    found[path] = None
                    stack.append((inode, path + os.sep))
        return found

    def choices(self, dice: random.Random) -> Iterator[tuple[str, Sequence[Change]]]:
        """Which of the pending changes may have reached the disk, and in what form."""
        if self.model == "strict":
            yield from _any_subset(self.pending, dice)
        else:
            yield from _in_order(self.pending, dice, size_first=self.model == "size-first")


def _apply_names(names: dict[int, dict[str, int]], changes: Iterable[tuple[int, str, int | None]]) -> None:
    for directory, name, inode in changes:
        if inode is None:
            names.setdefault(directory, {}).pop(name, None)
        else:
            names.setdefault(directory, {})[name] = inode


def _apply(names: dict[int, dict[str, int]], content: dict[int, bytes], change: Change) -> None:
    if isinstance(change, Names):
        _apply_names(names, change.changes)
        return
    old = content.get(change.inode, b"")
    if change.content is None:
        content[change.inode] = old[: change.offset]
    else:
        head = old[: change.offset].ljust(change.offset, b"\0")
        content[change.inode] = head + change.content + old[change.offset + len(change.content) :]


def _any_subset(pending: Sequence[Change], dice: random.Random) -> Iterator[tuple[str, Sequence[Change]]]:
    count = len(pending)
    yield "none", ()
    yield "all", pending
    for number in range(1, count):
        yield f"the first {number}", pending[:number]
    for number in range(count):
        if count > 1:
            yield f"all but change {number}", [*pending[:number], *pending[number + 1 :]]
            yield f"only change {number}", [pending[number]]
        change = pending[number]
        if isinstance(change, Data) and change.content:
            others = [*pending[:number], *pending[number + 1 :]]
            for label, torn in _torn(change, dice):
                yield f"the first {number} and change {number} {label}", [*pending[:number], torn]
                if others != pending[:number]:
                    yield f"all, change {number} {label}", [*pending[:number], torn, *pending[number + 1 :]]
    for _ in range(min(count, 4) if count > 2 else 0):
        chosen = [change for change in pending if dice.random() < 0.5]
        yield "some", chosen


def _in_order(
    pending: Sequence[Change], dice: random.Random, *, size_first: bool
) -> Iterator[tuple[str, Sequence[Change]]]:
    names = [change for change in pending if isinstance(change, Names)]
    data = [change for change in pending if isinstance(change, Data)]
    for number in range(len(names) + 1):
        first = names[:number]
        yield f"{number} names", first
        if not data:
            continue
        yield f"{number} names and all data", [*first, *data]
        for index, change in enumerate(data):
            yield f"{number} names and data {index}", [*first, change]
            if size_first and change.content:
                for label, torn in _unwritten(change, dice):
                    yield f"{number} names, data {index} {label}", [*first, *data[:index], torn]


def _unwritten(change: Data, dice: random.Random) -> Iterator[tuple[str, Data]]:
    """The file has its length, and of the data none or the first sectors."""
    content = change.content or b""
    yield "of zeros", change._replace(content=bytes(len(content)))
    yield "of garbage", change._replace(content=dice.randbytes(len(content)))
    for sector in _SECTORS:
        cut = sector - change.offset % sector
        if 0 < cut < len(content):
            rest = len(content) - cut
            yield f"zeros after a sector of {sector}", change._replace(content=content[:cut] + bytes(rest))
            yield f"garbage after a sector of {sector}", change._replace(content=content[:cut] + dice.randbytes(rest))


def _torn(change: Data, dice: random.Random) -> Iterator[tuple[str, Data]]:
    """A write that was under way: its beginning, its end, or something else in its place."""
    content = change.content or b""
    size = len(content)
    for cut in sorted({1, size // 2, size - 1, dice.randrange(size)} - {0, size}):
        yield f"cut at {cut}", change._replace(content=content[:cut])
    yield "of zeros", change._replace(content=bytes(size))
    yield "of garbage", change._replace(content=dice.randbytes(size))
    half = size // 2
    if half:
        yield "half and zeros", change._replace(content=content[:half] + bytes(size - half))
        yield "its second half", change._replace(offset=change.offset + half, content=content[half:])
    for sector in _SECTORS:
        cut = sector - change.offset % sector
        if 0 < cut < size:
            yield f"to a sector of {sector}", change._replace(content=content[:cut])
            yield f"from a sector of {sector} on", change._replace(offset=change.offset + cut, content=content[cut:])
            if cut + sector < size:
                middle = content[:cut] + bytes(sector) + content[cut + sector :]
                yield f"without a sector of {sector}", change._replace(content=middle)


def crash_states(
    disk: Disk, ops: Sequence[Op], seed: int, *, since: int = 0, notes: Sequence[str] = (), share: float = 1.0
) -> Iterator[CrashState]:
    """Every state a power cut after any of the operations (from `since` on) can leave; some of them more than once.

    With a `share` below 1 so many of them, chosen by the seed.
    """
    told = tuple(notes)
    dice = random.Random(seed)
    for number, op in enumerate(ops):
        if op.kind == "note":
            told = (*told, op.path)
        disk.apply(op)
        if number >= since:
            for label, chosen in disk.choices(dice):
                if share < 1 and dice.random() >= share:
                    continue
                yield CrashState(number + 1, f"{disk.model}: {label}", disk.outcome(chosen), told)
