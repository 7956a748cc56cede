"""A store that forgets: for tests, and for programs that want rerail's engine without its disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from rerail import processes
from rerail.core.checkpoint import Checkpoint
from rerail.core.events import Event, Owner
from rerail.core.model import RunHeader
from rerail.core.state import fold
from rerail.errors import RunBusy, RunExists, RunNotFound, StateDamaged, StateUnwritable
from rerail.ports import LoadedRun, Ownership


class _Kept:
    def __init__(self, header: RunHeader, pipeline: bytes) -> None:
        self.header = header
        self.pipelines = [pipeline]
        self.events: list[Event] = []
        self.owner: Owner | None = None
        self.log: MemoryRunWriter | None = None
        self.checkpoint: Checkpoint | None = None


def found(events: Sequence[Event], tags: Collection[str], step: str) -> Iterator[Event]:
    """The events of these kinds about a step."""
    return (event for event in events if event.__struct_config__.tag in tags and getattr(event, "step", "") == step)


class MemoryRunWriter:
    """A run in memory, owned."""

    def __init__(self, kept: _Kept) -> None:
        self._kept = kept
        self._recording = LoadedRun(header=kept.header, state=fold(enumerate(kept.events, 1)))
        kept.owner = processes.identity(datetime.now(UTC))
        kept.log = self

    @property
    def recording(self) -> LoadedRun:
        return self._recording

    @property
    def identity(self) -> str:
        return f"memory:{id(self._kept)}"

    @property
    def former_identity(self) -> str:
        return ""

    @property
    def directory(self) -> str:
        return ""

    @property
    def degraded(self) -> str:
        return ""

    def append(self, events: Sequence[Event]) -> None:
        if self._kept.log is not self:
            raise StateUnwritable(f"this handle no longer owns run {self._kept.header.run_id}")
        self._kept.events.extend(events)

    def save_snapshot(self, checkpoint: Checkpoint, *, keep: int, milestone: bool = True) -> None:  # noqa: ARG002
        self._kept.checkpoint = checkpoint

    def freeze_pipeline(self, text: bytes) -> None:
        self._kept.pipelines.append(text)

    @property
    def position(self) -> tuple[int, int]:
        return (0, len(self._kept.events))

    def find(self, tags: Collection[str], step: str, since: tuple[int, int] = (0, 0)) -> Iterator[Event]:
        return found(self._kept.events[since[1] :], tags, step)

    def save_results(self, name: str, lines: Iterable[bytes]) -> str:  # noqa: ARG002 - there is no place for files
        return ""

    def open_log(self, name: str) -> int:  # noqa: ARG002
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        if self._kept.log is self:
            self._kept.log = None


class MemoryStore:
    """Runs that live as long as this object."""

    def __init__(self) -> None:
        self._runs: dict[str, _Kept] = {}

    def create(self, header: RunHeader, pipeline: bytes) -> MemoryRunWriter:
        if header.run_id in self._runs:
            raise RunExists(header.run_id)
        kept = self._runs[header.run_id] = _Kept(header, pipeline)
        return MemoryRunWriter(kept)

    def own(self, run_id: str) -> MemoryRunWriter:
        kept = self._find(run_id)
        if kept.log is not None:
            raise RunBusy(f"run {run_id} is owned by this process already", hint=f"rerail show {run_id}")
        return MemoryRunWriter(kept)

    def read(self, run_id: str) -> LoadedRun:
        kept = self._find(run_id)
        return LoadedRun(header=kept.header, state=fold(enumerate(kept.events, 1)))

    def history(self, run_id: str) -> Iterable[tuple[int, Event]]:
        return list(enumerate(self._find(run_id).events, 1))

    def find(self, run_id: str, tags: Collection[str], step: str) -> Iterator[Event]:
        return found(self._find(run_id).events, tags, step)

    def pipeline(self, run_id: str, sha256: str) -> bytes:
        for text in reversed(self._find(run_id).pipelines):
            if not sha256 or hashlib.sha256(text).hexdigest() == sha256:
                return text
        raise StateDamaged(f"run {run_id} has no pipeline {sha256}")

    def directory(self, run_id: str) -> str:  # noqa: ARG002 - a store's signature
        return ""

    def ownership(self, run_id: str) -> Ownership:
        kept = self._find(run_id)
        return Ownership(owner=kept.owner, alive=kept.log is not None)

    def runs(self) -> list[str]:
        return list(self._runs)

    def delete(self, run_id: str, check: Callable[[], None] = lambda: None) -> None:
        kept = self._find(run_id)
        if kept.log is not None:
            raise RunBusy(f"run {run_id} is owned by this process", hint=f"rerail show {run_id}")
        check()
        del self._runs[run_id]

    def _find(self, run_id: str) -> _Kept:
        try:
            return self._runs[run_id]
        except KeyError:
            raise RunNotFound(f"no run {run_id!r} in memory", hint="rerail list") from None
