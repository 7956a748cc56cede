"""Logs of attempts: masked, capped on disk, with the last lines in memory. A broken log costs the log, not the step."""

from __future__ import annotations

import contextlib
import heapq
import os
import time
from collections.abc import Callable, Iterator

import msgspec

from rerail.core.masking import Mask, StreamMask
from rerail.core.unit_id import UnitId
from rerail.ports import RunLogs

LOG_BYTES = 16 * 1024 * 1024  # of the beginning, and again of the end
TAIL_BYTES = 4096
TAIL_LINES = 20
READ_BYTES = 64 * 1024
RESTS = (".rest2", ".rest")  # endings of the files after the beginning of a long log, in turn
ORDER = "order"  # the name of the file that says in which order the others were written
ORDER_SECONDS = 0.05


class LogTimeline:
    """Order of writes to all logs: a line `time bytes name` each, so that logs can be read in the order of time.

    All writes of one stream within a moment are one line.
    """

    def __init__(self, open_log: Callable[[str], int]) -> None:
        self._open_log = open_log
        self._fd = -1
        self._name = ""
        self._since = 0.0
        self._count = 0

    def note(self, name: str, count: int) -> None:
        now = time.time()
        if name != self._name or not 0 <= now - self._since < ORDER_SECONDS:
            self.flush()
            self._name, self._since = name, now
        self._count += count

    def flush(self) -> None:
        if self._count:
            with contextlib.suppress(OSError):
                if self._fd < 0:
                    self._fd = self._open_log(ORDER)
                os.write(self._fd, f"{self._since:.3f} {self._count} {self._name}\n".encode())
        self._count = 0

    def close(self) -> None:
        self.flush()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class AttemptLog:
    """Log of one stream of an attempt, through all its processes. The file is made with its first byte."""

    def __init__(
        self, open_log: Callable[[str], int], name: str, mask: Mask, capture_bytes: int, order: LogTimeline
    ) -> None:
        self.shared: Callable[[str, int], None] | None = None  # called with this log's offset in a shared file
        self.listener: Callable[[bytes], None] | None = None  # is told what is logged; b'' at its end
        self._order = order
        self._open_log = open_log
        self._name = name
        self._masked = StreamMask(mask)
        self._fd = -1
        self.lost = ""  # why the rest of it is not on disk
        self._written = 0
        self._tail = b""
        self._capture_bytes = capture_bytes
        self.captured = bytearray()
        self.captured_all = 0  # bytes seen, more than are kept

    def feed(self, data: bytes) -> None:
        self._keep(self._masked.feed(data))

    def end(self) -> None:
        """Write the rest and close the file."""
        self._keep(self._masked.end())
        if self.listener is not None:
            self.listener(b"")
        self._order.flush()
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def tail(self) -> str:
        """Return the last lines."""
        lines = self._tail.decode(errors="replace").splitlines()
        if self._written > TAIL_BYTES and len(lines) > 1:
            lines = lines[1:]
        return "\n".join(lines[-TAIL_LINES:])

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        if self.listener is not None:
            self.listener(data)
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        if self._capture_bytes:
            self.captured_all += len(data)
            self.captured += data[: max(self._capture_bytes - len(self.captured), 0)]
        if self.lost:
            return
        try:
            self._write(data)
        except OSError as error:
            self.lost = error.strerror or str(error)

    def _write(self, data: bytes) -> None:
        if self._fd < 0:
            self._fd = self._open_log(self._name)
            if self.shared is not None:
                self.shared(self._name, os.fstat(self._fd).st_size)
        if self.shared is not None:
            self._write_shared(data)
            return
        room = LOG_BYTES - self._written % LOG_BYTES
        while data:
            if self._written and self._written % LOG_BYTES == 0:
                self._turn_over()
            piece, data = data[:room], data[room:]
            view = memoryview(piece)
            while view:
                view = view[os.write(self._fd, view) :]
            if self._written < LOG_BYTES:
                self._order.note(self._name, len(piece))
            self._written += len(piece)
            room = LOG_BYTES

    def _write_shared(self, data: bytes) -> None:
        """Write to a file that items share; only the beginning is kept: others come after it in the file."""
        kept = data[: max(ITEM_BYTES - self._written, 0)]
        if self._written <= ITEM_BYTES < self._written + len(data):
            kept += b"\n[rerail: what follows was not kept]\n"
        self._written += len(data)
        self._order.note(self._name, len(kept))
        view = memoryview(kept)
        while view:
            view = view[os.write(self._fd, view) :]

    def _turn_over(self) -> None:
        """Continue in the next of two files that take turns: the beginning stays, then only the newest parts do."""
        os.close(self._fd)
        self._fd = self._open_log(self._name + RESTS[self._written // LOG_BYTES % 2])
        os.truncate(self._fd, 0)
        os.write(self._fd, b"[rerail: the log continues here after byte %d]\n" % self._written)


INDEX = "items"  # the name of the index
SLOT = "@"  # between the step and the number of the slot, in file names
ITEM_BYTES = 1024 * 1024  # that are kept of one stream of one attempt


class LogIndexEntry(msgspec.Struct, frozen=True, array_like=True):
    """Position at which the output of an attempt begins."""

    file: str
    offset: int
    step: str
    item: str
    attempt: int


_decode = msgspec.json.Decoder(LogIndexEntry).decode


class ItemLogs:
    """Log files that items share: the slots of one invocation."""

    def __init__(self, open_log: Callable[[str], int]) -> None:
        self._open_log = open_log
        self._free: dict[str, list[int]] = {}
        self._used: dict[str, int] = {}
        self._fd = -1

    def take(self, step: str) -> str:
        """Return a free slot for an attempt, as the name of its files without their ending."""
        free = self._free.setdefault(step, [])
        if not free:
            self._used[step] = self._used.get(step, 0) + 1
            free.append(self._used[step] - 1)
        return f"{step.replace('/', '~')}{SLOT}{heapq.heappop(free)}"

    def give_back(self, step: str, slot: str) -> None:
        heapq.heappush(self._free[step], int(slot.rpartition(SLOT)[2]))

    def note(self, file: str, offset: int, unit: UnitId, attempt: int) -> None:
        """Record that an attempt begins to write into a file."""
        step, item = unit
        line = msgspec.json.encode(LogIndexEntry(file, offset, step, item or "", attempt)) + b"\n"
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._fd = self._open_log(INDEX)
            os.write(self._fd, line)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def begun(logs: RunLogs) -> Iterator[LogIndexEntry]:
    """Yield the entries of the index of a run's logs, as far as it can be read."""
    for line in lines_of(logs, INDEX):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            yield _decode(line)


def lines_of(logs: RunLogs, name: str) -> Iterator[bytes]:
    """Yield the lines of a log with their newlines; the last may have none."""
    offset, rest = 0, b""
    while data := logs.read(name, offset, LOG_BYTES):
        offset += len(data)
        *lines, rest = (rest + data).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest


def is_pooled(name: str) -> bool:
    """Return whether a log file holds the output of items."""
    return SLOT in name
