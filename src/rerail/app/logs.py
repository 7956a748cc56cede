"""Reader of the log files of a run, in the order of time: those of steps, and those that items share."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator

import msgspec

from rerail.core.unit_id import UnitId, is_item_within, is_step_within
from rerail.executors.logs import LOG_BYTES, ORDER, RESTS, LogIndexEntry, begun, is_pooled, lines_of
from rerail.ports import RunLogs

PIECE = 1 << 20

_NAME = re.compile(r"(?P<step>.+)\.(?P<attempt>\d+)\.(?P<stream>out|err)(?P<rest>\.rest2?)?")


class LogSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Selection of output by step, item and attempt; an empty member selects any."""

    step: str = ""
    item: str | None = None
    attempt: int | None = None

    def takes(self, step: str, item: str | None, attempt: int) -> bool:
        inside = not self.step or is_step_within(step, self.step)
        mine = is_item_within(item, self.item)
        return inside and mine and self.attempt in (None, attempt)


class Piece(msgspec.Struct, frozen=True):
    """Piece of output: `stream` tells one source of lines from another, `title` is its name for people."""

    stream: str
    title: str
    data: bytes


class LogReader:
    """Reader of the logs of one run."""

    def __init__(self, logs: RunLogs, wanted: LogSelection, lists_of: Collection[str] = ()) -> None:
        """Make a reader; the output of the maps in `lists_of`, the lists of their items, is left out."""
        self._logs = logs
        self._lists_of = lists_of
        self._wanted = wanted
        self._read: dict[str, int] = {}  # bytes of each file that were taken
        self._begun: dict[str, list[LogIndexEntry]] = {}
        self._indexed = -1
        self._index()

    def _index(self) -> None:
        """Read the index of attempts in shared files, if it has grown."""
        entries = list(begun(self._logs))
        if len(entries) != self._indexed:
            self._indexed = len(entries)
            self._begun = {}
            for entry in entries:
                self._begun.setdefault(entry.file, []).append(entry)

    def _is_wanted(self, file: str) -> bool:
        if is_pooled(file):
            return any(self._wanted.takes(one.step, one.item, one.attempt) for one in self._begun.get(file, ()))
        match = _NAME.fullmatch(file)
        if match is not None and match["stream"] == "out" and match["step"].replace("~", "/") in self._lists_of:
            return False
        return match is not None and self._wanted.takes(match["step"].replace("~", "/"), None, int(match["attempt"]))

    def ordered(self) -> Iterator[Piece]:
        """Yield the output that has a recorded order of time."""
        for line in lines_of(self._logs, ORDER):
            words = line.split(b" ", 2)
            if len(words) == 3 and words[1].isdigit() and line.endswith(b"\n"):
                file = words[2][:-1].decode(errors="replace")
                if self._is_wanted(file):
                    yield from self._take(file, int(words[1]))

    def new(self) -> Iterator[Piece]:
        """Yield the other output so far: its order is not recorded yet, or never will be."""
        self._index()
        for log in self._logs.files():
            if self._is_wanted(log.name) and not log.name.endswith(RESTS):
                yield from self._take(log.name, 1 << 60 if is_pooled(log.name) else LOG_BYTES)

    def rests(self) -> Iterator[Piece]:
        """Yield the ends of logs that were too long to be kept whole."""
        names = [log.name for log in self._logs.files()]
        rests = [name for name in names if self._is_wanted(name) and name.endswith(RESTS)]
        for file in sorted(rests, key=self._continues_at):
            yield from self._take(file, LOG_BYTES * 2)

    def _continues_at(self, file: str) -> int:
        found = re.search(rb"after byte (\d+)", self._logs.read(file, 0, 200).partition(b"\n")[0])
        return int(found[1]) if found else 0

    def _take(self, file: str, most: int) -> Iterator[Piece]:
        while most > 0 and (data := self._logs.read(file, self._read.get(file, 0), min(most, PIECE))):
            most -= len(data)
            at = self._read.get(file, 0)
            self._read[file] = at + len(data)
            yield from self._shared(file, at, data) if is_pooled(file) else self._own(file, data)

    @staticmethod
    def _own(file: str, data: bytes) -> Iterator[Piece]:
        match = _NAME.fullmatch(file)
        yield Piece(file, match["step"].replace("~", "/") if match else file, data)

    def _shared(self, file: str, at: int, data: bytes) -> Iterator[Piece]:
        """Yield the parts of a shared file that belong to the selected attempts."""
        entries = self._begun.get(file, [])
        offsets = [entry.offset for entry in entries]
        number = max(bisect_right(offsets, at) - 1, 0)
        while data and number < len(entries):
            entry = entries[number]
            end = offsets[number + 1] if number + 1 < len(entries) else at + len(data)
            part, data = data[: max(end - at, 0)], data[max(end - at, 0) :]
            at += len(part)
            if part and self._wanted.takes(entry.step, entry.item, entry.attempt):
                yield Piece(f"{file}#{number}", str(UnitId(entry.step, entry.item)), part)
            number += 1
