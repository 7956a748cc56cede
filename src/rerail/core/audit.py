"""What is really on disk, compared with what is recorded: values only, the looking is done elsewhere."""

from __future__ import annotations

from typing import Literal

import msgspec

from rerail.core.events import InputRecord
from rerail.core.state import Unit

Condition = Literal["missing", "empty", "truncated", "changed", "wrong type", "fails its checks", "unproved"]


Depth = Literal["full", "fast"]


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that should stand at a path: a file, or in a tree also a link or a directory."""

    path: str
    kind: Literal["file", "link", "dir"] = "file"
    size: int = 0
    sha256: str = ""
    mode: int = 0
    target: str = ""  # of a link
    empty: bool = False  # a directory with nothing in it: part of what was made


class Flaw(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A path at which what a step produced does not stand any more."""

    entry: AuditEntry
    artifact: str  # the recorded path it belongs to
    condition: Condition
    detail: str = ""
    restorable: bool = False
    temporary: bool = False
    later: tuple[str, ...] = ()  # steps that completed later and claim the same path: while they count, it is theirs

    @property
    def path(self) -> str:
        return self.entry.path

    @property
    def words(self) -> str:
        """The flaw as people read it."""
        return f"{self.path} {self.condition}" + (f" ({self.detail})" if self.detail else "")


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What was found about everything that completed units claim."""

    flaws: dict[Unit, tuple[Flaw, ...]] = {}
    intact: dict[Unit, tuple[str, ...]] = {}  # recorded paths that are as they were
    inputs: dict[Unit, tuple[InputRecord, ...]] = {}  # what the declared inputs are now

    @property
    def taken_over(self) -> frozenset[str]:
        """The paths that a completed step claims and a later one has taken over."""
        return frozenset(flaw.path for found in self.flaws.values() for flaw in found if flaw.later)


def after_mending(audit: Audit, restored: set[str], failed: dict[str, str]) -> Audit:
    """The audit once some paths were restored and others turned out not to be restorable (path → why)."""
    flaws: dict[Unit, tuple[Flaw, ...]] = {}
    for unit, found in audit.flaws.items():
        left = tuple(
            msgspec.structs.replace(flaw, restorable=False, detail=failed[flaw.path]) if flaw.path in failed else flaw
            for flaw in found
            if flaw.path not in restored
        )
        if left:
            flaws[unit] = left
    return msgspec.structs.replace(audit, flaws=flaws)
