"""Audit of artifacts: the files on disk compared with the recorded ones. Values only; the disk is read elsewhere."""

from __future__ import annotations

from typing import Literal

import msgspec

from rerail.core.events import InputRecord
from rerail.core.unit_id import UnitId

Condition = Literal["missing", "empty", "truncated", "changed", "wrong type", "fails its checks", "unverifiable"]


EDITED: tuple[Condition, ...] = ("changed", "truncated")  # a person may want to keep such a file

Depth = Literal["full", "fast"]


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Expected entry at a path: a file, or in a tree also a link or a directory."""

    path: str
    kind: Literal["file", "link", "dir"] = "file"
    size: int = 0
    sha256: str = ""
    mode: int = 0
    target: str = ""  # of a link
    empty: bool = False  # an empty directory: part of the product


class Flaw(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Path at which the product of a step is missing or different."""

    entry: AuditEntry
    artifact: str  # the recorded path it belongs to
    condition: Condition
    detail: str = ""
    restorable: bool = False
    temporary: bool = False
    later: tuple[str, ...] = ()  # steps that completed later and claim the same path: theirs while they count

    @property
    def path(self) -> str:
        return self.entry.path

    @property
    def words(self) -> str:
        """The flaw as text for people."""
        return f"{self.path} {self.condition}" + (f" ({self.detail})" if self.detail else "")


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """Findings about the artifacts and inputs of all completed units."""

    flaws: dict[UnitId, tuple[Flaw, ...]] = {}
    intact: dict[UnitId, tuple[str, ...]] = {}  # recorded paths that are unchanged
    inputs: dict[UnitId, tuple[InputRecord, ...]] = {}  # the declared inputs as they are now

    @property
    def taken_over(self) -> frozenset[str]:
        """Paths that a completed step claims and a later one has taken over."""
        return frozenset(flaw.path for found in self.flaws.values() for flaw in found if flaw.later)


def after_restore(audit: Audit, restored: set[str], failed: dict[str, str]) -> Audit:
    """Return the audit after a restore: `restored` paths are intact, `failed` maps the others to the cause."""
    flaws: dict[UnitId, tuple[Flaw, ...]] = {}
    for unit, found in audit.flaws.items():
        remaining = tuple(
            msgspec.structs.replace(flaw, restorable=False, detail=failed[flaw.path]) if flaw.path in failed else flaw
            for flaw in found
            if flaw.path not in restored
        )
        if remaining:
            flaws[unit] = remaining
    return msgspec.structs.replace(audit, flaws=flaws)
