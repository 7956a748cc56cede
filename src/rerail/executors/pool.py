"""Logs of items, pooled: there may be hundreds of thousands, so attempts that follow each other share a file.

Each item under way has a slot, and each slot a file per stream. An index says where in which file an attempt began; it
ends where the next one in that file begins.
"""

from __future__ import annotations

import contextlib
import heapq
import os
from collections.abc import Callable, Iterator

import msgspec

from rerail import durable
from rerail.core.state import Unit

INDEX = "items"  # the name of the index
SLOT = "@"  # between the step and the number of the slot, in file names
ITEM_BYTES = 1024 * 1024  # that are kept of one stream of one attempt


class Begun(msgspec.Struct, frozen=True, array_like=True):
    """Where the output of an attempt begins."""

    file: str
    offset: int
    step: str
    item: str
    attempt: int


_decode = msgspec.json.Decoder(Begun).decode


class Pool:
    """The slots of one life of a run."""

    def __init__(self, open_log: Callable[[str], int]) -> None:
        self._open_log = open_log
        self._free: dict[str, list[int]] = {}
        self._used: dict[str, int] = {}
        self._fd = -1

    def take(self, step: str) -> str:
        """A slot for an attempt, as the name of its files without their ending."""
        free = self._free.setdefault(step, [])
        if not free:
            self._used[step] = self._used.get(step, 0) + 1
            free.append(self._used[step] - 1)
        return f"{step.replace('/', '~')}{SLOT}{heapq.heappop(free)}"

    def give_back(self, step: str, slot: str) -> None:
        heapq.heappush(self._free[step], int(slot.rpartition(SLOT)[2]))

    def note(self, file: str, offset: int, unit: Unit, attempt: int) -> None:
        """An attempt begins to write into a file."""
        step, item = unit
        line = msgspec.json.encode(Begun(file, offset, step, item or "", attempt)) + b"\n"
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._fd = self._open_log(INDEX)
            os.write(self._fd, line)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def begun(directory: str) -> Iterator[Begun]:
    """The index of a run's logs, as far as it can be read."""
    with contextlib.suppress(OSError), durable.open_to_read(os.path.join(directory, INDEX)) as file:
        for line in file:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                yield _decode(line)


def is_pooled(name: str) -> bool:
    """Whether a log file holds the output of items."""
    return SLOT in name
