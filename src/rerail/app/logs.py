"""Reader of the log files of a run, in the order of time: those of steps, and those that items share."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal

import msgspec

from rerail.core.unit_id import UnitId, is_item_within, is_step_within
from rerail.executors.logs import LOG_BYTES, ORDER, ORDER_SECONDS, RESTS, LogIndexEntry, begun, is_pooled, lines_of
from rerail.ports import LogFile, RunLogs

PIECE = 1 << 20

_NAME = re.compile(r"(?P<step>.+)\.(?P<attempt>\d+)\.(?P<stream>out|err)(?P<rest>\.rest2?)?")


class LogSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Selection of output by step, item and attempt; an empty member selects any."""

    step: str = ""
    item: str | None = None
    attempt: int | None = None
    units: frozenset[UnitId] | None = None  # exactly these

    def takes(self, step: str, item: str | None, attempt: int) -> bool:
        inside = not self.step or is_step_within(step, self.step)
        mine = is_item_within(item, self.item)
        listed = self.units is None or UnitId(step, item) in self.units
        return inside and mine and listed and self.attempt in (None, attempt)


class LogOrigin(msgspec.Struct, frozen=True):
    """Stream of an attempt, as far as it stands in one place: its output is one sequence of lines."""

    source: str  # tells one sequence of lines from another
    unit: UnitId
    attempt: int
    stream: Literal["stdout", "stderr"]
    title: str  # the unit for people


class Piece(msgspec.Struct, frozen=True):
    """Piece of output, with the time at which it was written: as recorded, else when its file was last written."""

    origin: LogOrigin
    at: float  # seconds since 1970
    data: bytes


class LogLine(msgspec.Struct, frozen=True):
    """Line of output without its newline, with the time at which it was complete."""

    origin: LogOrigin
    at: float
    text: bytes


def assembled(pieces: Iterable[Piece]) -> Iterator[LogLine]:
    """Yield the whole lines of pieces; in the end also those without a newline. Holds the unfinished lines only."""
    unfinished: dict[str, LogLine] = {}
    for piece in pieces:
        origin, at = piece.origin, piece.at
        source = origin.source
        for other in [other for other in unfinished if source != other and source.startswith(other)]:
            yield unfinished.pop(other)  # a long log goes on in another file
        begun_line = unfinished.pop(source, None)
        *lines, rest = ((begun_line.text if begun_line else b"") + piece.data).split(b"\n")
        for line in lines:
            yield LogLine(origin, at, line)
        if rest:
            unfinished[source] = LogLine(origin, at, rest)
    yield from unfinished.values()


def last_lines(lines: Iterator[LogLine], total: int, wanted: int) -> Iterator[LogLine]:
    """Yield the last `wanted` of lines of which there were `total` when they were counted, and those since."""
    return islice(lines, max(total - wanted, 0), None)


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

    def ordered(self, *, ended: bool = False) -> Iterator[Piece]:
        """Yield the output that has a recorded order of time.

        Of a run that has ended also the rest, where its file was last written: what was not recorded any more before
        a kill, and the ends of long logs.
        """
        rests = deque(sorted([*self._files(), *self._rests()], key=_modified) if ended else [])
        left = self._recorded() if ended else {}  # bytes of each file that are still to come
        due: dict[str, list[list[LogFile]]] = {}  # rests of files with more to come: the clock was put back
        for at, count, file in self._timeline():
            while rests and _modified(rests[0]) + ORDER_SECONDS < at:
                rest = rests.popleft()
                log = _beginning(rest[0].name)
                if left.get(log):
                    due.setdefault(log, []).append(rest)
                else:
                    yield from self._take_files(rest)
            if self._is_wanted(file):
                yield from self._take(file, count, at)
            if file in left:
                left[file] -= count
                if not left[file]:
                    for rest in due.pop(file, ()):
                        yield from self._take_files(rest)

    def _timeline(self) -> Iterator[tuple[float, int, str]]:
        """Yield the time, the number of bytes and the file of each write."""
        for line in lines_of(self._logs, ORDER):
            words = line.split(b" ", 2)
            if len(words) == 3 and words[1].isdigit() and line.endswith(b"\n"):
                yield _seconds(words[0]), int(words[1]), words[2][:-1].decode(errors="replace")

    def _recorded(self) -> dict[str, int]:
        """Return the number of bytes of each file that the timeline has."""
        found: dict[str, int] = {}
        for _, count, file in self._timeline():
            found[file] = found.get(file, 0) + count
        return found

    def new(self) -> Iterator[Piece]:
        """Yield the other output so far: its order is not recorded yet, or never will be."""
        self._index()
        for logs in self._files():
            yield from self._take_files(logs)

    def rests(self) -> Iterator[Piece]:
        """Yield the ends of logs that were too long to be kept whole."""
        for logs in self._rests():
            yield from self._take_files(logs)

    def _files(self) -> list[list[LogFile]]:
        """Return the files with the beginnings of logs, each alone, in the order in which they were last written."""
        return [[log] for log in self._logs.files() if self._is_wanted(log.name) and not log.name.endswith(RESTS)]

    def _rests(self) -> list[list[LogFile]]:
        """Return the files with the ends of each log, by the time at which the log ended; its last file is the last."""
        of_log: dict[str, list[LogFile]] = {}
        for log in self._logs.files():  # in the order of time
            if self._is_wanted(log.name) and log.name.endswith(RESTS):
                of_log.setdefault(log.name.rpartition(".")[0], []).append(log)
        return sorted(of_log.values(), key=_modified)

    def _take_files(self, logs: Sequence[LogFile]) -> Iterator[Piece]:
        """Yield the rest of a file, or of the files with the end of a log."""
        for log in sorted(logs, key=lambda log: self._continues_at(log.name)) if len(logs) > 1 else logs:
            most = 1 << 60 if is_pooled(log.name) else LOG_BYTES * 2 if log.name.endswith(RESTS) else LOG_BYTES
            yield from self._take(log.name, most, log.modified / 1e9)

    def _continues_at(self, file: str) -> int:
        found = re.search(rb"after byte (\d+)", self._logs.read(file, 0, 200).partition(b"\n")[0])
        return int(found[1]) if found else 0

    def _take(self, file: str, most: int, written_at: float) -> Iterator[Piece]:
        while most > 0 and (data := self._logs.read(file, self._read.get(file, 0), min(most, PIECE))):
            most -= len(data)
            at = self._read.get(file, 0)
            self._read[file] = at + len(data)
            shared = is_pooled(file)
            yield from self._shared(file, at, data, written_at) if shared else self._own(file, data, written_at)

    @staticmethod
    def _own(file: str, data: bytes, written_at: float) -> Iterator[Piece]:
        match = _NAME.fullmatch(file)
        if match is not None:  # of any other file nothing is wanted
            unit = UnitId(match["step"].replace("~", "/"))
            yield Piece(
                LogOrigin(file, unit, int(match["attempt"]), _stream(match["stream"]), str(unit)), written_at, data
            )

    def _shared(self, file: str, at: int, data: bytes, written_at: float) -> Iterator[Piece]:
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
                unit, stream = UnitId(entry.step, entry.item), _stream(file.rpartition(".")[2])
                yield Piece(LogOrigin(f"{file}#{number}", unit, entry.attempt, stream, str(unit)), written_at, part)
            number += 1


def _beginning(file: str) -> str:
    """Return the file that a log begins in."""
    return file.rpartition(".")[0] if file.endswith(RESTS) else file


def _modified(logs: Sequence[LogFile]) -> float:
    return logs[-1].modified / 1e9


def _stream(ending: str) -> Literal["stdout", "stderr"]:
    return "stderr" if ending == "err" else "stdout"


def _seconds(word: bytes) -> float:
    """Return the time of a line of the timeline; 0 if it is damaged."""
    try:
        return float(word)
    except ValueError:
        return 0.0
