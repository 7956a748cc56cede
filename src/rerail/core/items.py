"""Items of a map and iterations of a loop: the status of each in one byte.

An item is closed when it completed, was skipped, or failed permanently. From then on its controller (the map or loop)
knows only its status: its outputs are in the journal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Final

import msgspec

PENDING, COMPLETED, FAILED, SKIPPED = range(4)
STATUS: Final = ("pending", "completed", "failed", "skipped")


class Items(msgspec.Struct, kw_only=True):
    """Statuses of the items of one controller."""

    marks: bytearray
    known: int = 0  # number of items listed so far; fewer than the total only while the list is being recorded
    digest: str = ""  # of the list
    is_loop: bool = False  # a loop: the next iteration sees the outputs of this one
    kept: int = 0  # closed items with artifacts or inputs to be proved on resume

    @property
    def total(self) -> int:
        return len(self.marks)

    @property
    def completed(self) -> int:
        return self.marks.count(COMPLETED)

    @property
    def failed(self) -> int:
        return self.marks.count(FAILED)

    @property
    def skipped(self) -> int:
        return self.marks.count(SKIPPED)

    @property
    def closed(self) -> int:
        return len(self.marks) - self.marks.count(PENDING)

    def next_pending(self, start: int) -> int:
        """Return the first item from `start` on that is not closed; -1 if there is none."""
        return self.marks.find(PENDING, start)

    def copy(self) -> Items:
        return msgspec.structs.replace(self, marks=bytearray(self.marks))


def ranges(marks: bytes | bytearray, mark: int) -> str:
    """Return the positions with a status, as `0-17,19`."""
    found = re.finditer(re.escape(bytes([mark])) + b"+", marks)
    return ",".join(
        str(run.start()) if run.end() - run.start() == 1 else f"{run.start()}-{run.end() - 1}" for run in found
    )


def set_ranges(marks: bytearray, text: str, mark: int) -> None:
    """Set the status of the positions that `ranges` named; raise ValueError for positions out of range."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first) + 1
        if not 0 <= begin < end <= len(marks):
            raise ValueError(f"no positions {part}")
        marks[begin:end] = bytes([mark]) * (end - begin)


def allowed_failures(total: int, count: int, percent: float | None) -> int:
    """Return how many items of a map may fail."""
    if percent is None:
        return count
    return int(total * Decimal(str(percent)) / 100)  # exactly: 36.8 % of 375 is 138


def first_duplicate(keys: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    return None


class ItemsInternals(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """The part of the record of items that only rerail reads."""

    known: int = 0
    digest: str = ""
    kept: int = 0


class ItemsRecord(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """Record of the items of a map or the iterations of a loop: counts, and the positions of each status."""

    total: int
    completed: int
    failed: int
    skipped: int
    completed_at: str = ""  # positions, as `0-17,19`
    failed_at: str = ""
    skipped_at: str = ""
    is_loop: bool = False
    internal: ItemsInternals = msgspec.field(default_factory=ItemsInternals)


def record_of(items: Items | None) -> ItemsRecord | None:
    """Return the record of the items of a controller."""
    if items is None:
        return None
    return ItemsRecord(
        total=items.total,
        completed=items.completed,
        failed=items.failed,
        skipped=items.skipped,
        completed_at=ranges(items.marks, COMPLETED),
        failed_at=ranges(items.marks, FAILED),
        skipped_at=ranges(items.marks, SKIPPED),
        is_loop=items.is_loop,
        internal=ItemsInternals(known=items.known, digest=items.digest, kept=items.kept),
    )


def items_of(record: ItemsRecord | None) -> Items | None:
    """Return the items that a record was made of."""
    if record is None:
        return None
    marks = bytearray(record.total)
    for text, mark in ((record.completed_at, COMPLETED), (record.failed_at, FAILED), (record.skipped_at, SKIPPED)):
        set_ranges(marks, text, mark)
    own = record.internal
    return Items(marks=marks, known=own.known, digest=own.digest, is_loop=record.is_loop, kept=own.kept)
