"""A store that forgets: for tests, and for programs that want rerail's engine without its disk."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property

from rerail import durable, processes
from rerail.core.checkpoint import Checkpoint
from rerail.core.claims import ClaimRecord
from rerail.core.events import ApprovalGiven, Event, Owner
from rerail.core.model import RunHeader
from rerail.core.state import fold
from rerail.core.summary import Summary, summary_of
from rerail.durable.copies import quarantine
from rerail.errors import RunBusy, RunExists, RunNotFound, StateDamaged, StateUnwritable
from rerail.ports import LoadedRun, Ownership, Proof, Repair
from rerail.stores.logs import DirectoryLogs

MAX_SIZE = 1 << 30  # bytes of all copies of artifacts


class _Kept:
    """All that is kept of one run."""

    def __init__(self, header: RunHeader, pipeline: bytes, logs: str) -> None:
        self.header = header
        self.pipelines = [pipeline]
        self.events: list[Event] = []
        self.owner: Owner | None = None
        self.writer: MemoryRunWriter | None = None
        self.checkpoint: Checkpoint | None = None
        self.results: dict[str, bytes] = {}
        self.messages: list[ApprovalGiven] = []
        self.logs = logs  # a directory: what attempts print goes through descriptors


def found(events: Sequence[Event], tags: Collection[str], step: str) -> Iterator[Event]:
    """Return the events of these kinds about a step."""
    return (event for event in events if event.__struct_config__.tag in tags and getattr(event, "step", "") == step)


class MemoryContentStore:
    """Copies of files in memory."""

    def __init__(self) -> None:
        self._copies: dict[str, bytes] = {}
        self._pins = 0
        self._lock = threading.Lock()

    def has(self, sha256: str) -> bool:
        return sha256 in self._copies

    def defect(self, sha256: str) -> str:
        if sha256 not in self._copies:
            return "not in the content store"
        is_sound = hashlib.sha256(self._copies[sha256]).hexdigest() == sha256
        return "" if is_sound else "the copy in the content store is rotten"

    def has_room(self, size: int) -> bool:
        return sum(map(len, self._copies.values())) + size <= MAX_SIZE

    def publish(self, staged: Iterable[tuple[str, str]]) -> None:
        for path, sha256 in staged:
            self._copies[sha256] = durable.read_file(path)
            durable.remove_file(path)

    def open(self, sha256: str) -> int:
        if sha256 not in self._copies:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), sha256)
        with tempfile.TemporaryFile() as file:
            file.write(self._copies[sha256])
            file.seek(0)
            return os.dup(file.fileno())

    def read(self, sha256: str) -> bytes | None:
        return None if self.defect(sha256) else self._copies[sha256]

    def digests(self) -> Iterator[str]:
        return iter(sorted(self._copies))

    @contextlib.contextmanager
    def pinned(self) -> Iterator[None]:
        with self._lock:
            self._pins += 1
        try:
            yield
        finally:
            with self._lock:
                self._pins -= 1

    def collect(self, find_live: Callable[[], Container[str]], *, dry_run: bool) -> tuple[int, int]:
        with self._lock:
            if self._pins and not dry_run:
                raise BlockingIOError(errno.EWOULDBLOCK, "a run relies on the content store")
            live = find_live()
            gone = [sha256 for sha256 in self._copies if sha256 not in live]
            total = sum(len(self._copies[sha256]) for sha256 in gone)
            for sha256 in () if dry_run else gone:
                del self._copies[sha256]
            return len(gone), total


class _Scratch:
    """A directory for logs and unfinished copies, which have to be files; made on demand, gone with the store."""

    @cached_property
    def path(self) -> str:
        path = tempfile.mkdtemp(prefix="rerail-memory-")
        weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        return path

    def new(self, name: str) -> str:
        """Name a file or directory that is not there yet."""
        return os.path.join(self.path, f"{name}-{os.urandom(4).hex()}")


class MemoryRunWriter:
    """A run in memory, owned."""

    def __init__(self, kept: _Kept, content: MemoryContentStore, scratch: _Scratch) -> None:
        self._content = content
        self._scratch = scratch
        self._kept = kept
        self._recording = LoadedRun(header=kept.header, state=fold(enumerate(kept.events, 1)))
        self._inbox = MemoryInbox(kept)
        kept.owner = processes.identity(datetime.now(UTC))
        kept.writer = self

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
    def identity_file(self) -> str:
        return ""

    @property
    def inbox(self) -> MemoryInbox:
        return self._inbox

    @property
    def directory(self) -> str:
        return ""

    @property
    def degraded(self) -> str:
        return ""

    def append(self, events: Sequence[Event]) -> None:
        if self._kept.writer is not self:
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

    @contextlib.contextmanager
    def staging(self) -> Iterator[str]:
        staging = self._scratch.new("staging")
        durable.new_dir(staging)
        with self._content.pinned():
            try:
                yield staging
            finally:
                durable.remove_tree(staging)

    def quarantine(self, path: str, name: str) -> str:
        target = os.path.join(self._scratch.new("quarantine"), os.path.basename(name))
        quarantine(path, target)
        return target

    def save_results(self, name: str, lines: Iterable[bytes]) -> str:
        self._kept.results[name] = b"".join(lines)
        return ""

    def open_log(self, name: str) -> int:
        durable.make_dir(self._kept.logs)
        return durable.open_log(os.path.join(self._kept.logs, name))

    def close(self) -> None:
        if self._kept.writer is self:
            self._kept.writer = None


class MemoryInbox:
    """Messages to one run in memory."""

    def __init__(self, kept: _Kept) -> None:
        self._kept = kept
        self._taken = 0

    def take(self) -> list[ApprovalGiven]:
        new = self._kept.messages[self._taken :]
        self._taken += len(new)
        return sorted(new, key=lambda message: (message.seen, message.at))

    def clear(self) -> None:
        del self._kept.messages[: self._taken]
        self._taken = 0


class MemoryIndex:
    """Summaries made when they are asked for."""

    def __init__(self, runs: Mapping[str, _Kept]) -> None:
        self._runs = runs

    def get(self, run_id: str) -> Summary | None:
        kept = self._runs.get(run_id)
        if kept is None or kept.writer is not None:
            return None
        return summary_of(kept.header, fold(enumerate(kept.events, 1)))


class MemoryClaims:
    """Claims in memory."""

    def __init__(self) -> None:
        self._records: dict[str, ClaimRecord] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        with self._lock:
            yield

    def records(self) -> list[ClaimRecord]:
        return [self._records[run_id] for run_id in sorted(self._records)]

    def write(self, record: ClaimRecord) -> None:
        self._records[record.run_id] = record

    def remove(self, run_id: str) -> None:
        self._records.pop(run_id, None)


def open_store(url: str) -> MemoryStore:  # noqa: ARG001 - there is nothing to choose
    """Open a store that is empty, and gone with this process."""
    return MemoryStore()


class MemoryStore:
    """Runs that live as long as this object."""

    url = "memory:"
    root = ""
    base_dir = ""

    def __init__(self) -> None:
        self._runs: dict[str, _Kept] = {}
        self._scratch = _Scratch()
        self.content = MemoryContentStore()
        self.claims = MemoryClaims()

    def create(self, header: RunHeader, pipeline: bytes) -> MemoryRunWriter:
        if header.run_id in self._runs:
            raise RunExists(header.run_id)
        kept = self._runs[header.run_id] = _Kept(header, pipeline, self._scratch.new("logs"))
        return MemoryRunWriter(kept, self.content, self._scratch)

    def own(self, run_id: str) -> MemoryRunWriter:
        kept = self._find(run_id)
        if kept.writer is not None:
            raise RunBusy(f"run {run_id} is owned by this process already", hint=f"rerail show {run_id}")
        return MemoryRunWriter(kept, self.content, self._scratch)

    def send(self, run_id: str, message: ApprovalGiven) -> None:
        self._find(run_id).messages.append(message)

    def delete(self, run_id: str, check: Callable[[], None] = lambda: None) -> None:
        kept = self._find(run_id)
        if kept.writer is not None:
            raise RunBusy(f"run {run_id} is owned by this process", hint=f"rerail show {run_id}")
        check()
        del self._runs[run_id]

    def runs(self) -> list[str]:
        return list(self._runs)

    def index(self) -> MemoryIndex:
        return MemoryIndex(self._runs)

    def header(self, run_id: str) -> RunHeader | None:
        return self._runs[run_id].header if run_id in self._runs else None

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

    def stamp(self, run_id: str) -> str:
        return str(len(self._find(run_id).events))

    def logs(self, run_id: str) -> DirectoryLogs:
        return DirectoryLogs(self._runs[run_id].logs if run_id in self._runs else "")

    def results(self, run_id: str, name: str) -> bytes:
        try:
            return self._find(run_id).results[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None

    def results_path(self, run_id: str, name: str) -> str:  # noqa: ARG002 - steps are given no files
        return ""

    def directory(self, run_id: str) -> str:  # noqa: ARG002 - likewise
        return ""

    def ownership(self, run_id: str) -> Ownership:
        kept = self._find(run_id)
        return Ownership(owner=kept.owner, alive=kept.writer is not None)

    def is_owned(self, run_id: str) -> bool:
        return self._find(run_id).writer is not None

    def identity(self, run_id: str) -> str:
        return f"memory:{id(self._runs[run_id])}" if run_id in self._runs else ""

    def size(self, run_id: str = "") -> int:
        runs = [self._find(run_id)] if run_id else self._runs.values()
        return sum(sum(map(len, kept.pipelines)) + sum(map(len, kept.results.values())) for kept in runs)

    def verify(self, run_id: str) -> Proof:
        return Proof(records=self.read(run_id).state.seq, segments=1, bytes=self.size(run_id), notices=())

    def repair(self, run_id: str) -> Repair:
        if self.is_owned(run_id):
            raise RunBusy(f"run {run_id} is owned by this process", hint=f"rerail show {run_id}")
        return Repair(reason="")

    def _find(self, run_id: str) -> _Kept:
        try:
            return self._runs[run_id]
        except KeyError:
            raise RunNotFound(f"no run {run_id!r} in memory", hint="rerail list") from None
