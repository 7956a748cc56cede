"""The default store: one directory per run under `.rerail/runs/`.

The journal is the truth; checkpoint.json is a cache of it. Readers take no lock and change nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import msgspec

from rerail import durable, processes
from rerail.core import formats
from rerail.core.checkpoint import Checkpoint, state_of
from rerail.core.events import ApprovalGiven, Event, Owner
from rerail.core.model import RunHeader
from rerail.core.state import RunState
from rerail.errors import (
    BadRunId,
    RunBusy,
    RunExists,
    RunNotFound,
    StateDamaged,
    StateError,
    StateUnreadable,
    StateUnwritable,
)
from rerail.ports import LoadedRun, Ownership, Proof, Repair
from rerail.stores import housekeeping, segments, snapshots
from rerail.stores.housekeeping import HEADER, release
from rerail.stores.segments import Chain, Coverage

if TYPE_CHECKING:
    from rerail.stores.claims import DirectoryClaims
    from rerail.stores.content_store import DirectoryContentStore
    from rerail.stores.index import DirectoryIndex
    from rerail.stores.logs import DirectoryLogs
    from rerail.stores.writer import DirectoryRunWriter

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_LABEL = 65536  # bytes of the lock file that say whose it is
RESERVED_IDS = frozenset({"last"})
PIPELINE = "pipeline.yaml"

_PATIENCE_SECONDS = 0.5
_LOOKS = 20
_T = TypeVar("_T")
_header = msgspec.json.Decoder(RunHeader)
_owner = msgspec.json.Decoder(Owner)


def check_run_id(run_id: str) -> str:
    """Return the id if it is valid. Raises BadRunId."""
    if not RUN_ID.fullmatch(run_id):
        raise BadRunId(run_id, "use letters, digits, . _ -; at most 64, and a letter or digit first")
    if run_id in RESERVED_IDS:
        raise BadRunId(run_id, "the name is reserved")
    return run_id


def open_store(url: str) -> DirectoryStore:
    """Open the store of a URL such as `dir:state` or `file:///srv/state`."""
    path = url.partition(":")[2]
    return DirectoryStore(path.removeprefix("//"))


class DirectoryStore:
    """Runs as directories below `root` (a `.rerail` directory)."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._runs = os.path.join(self.root, "runs")
        self._is_tidy = False  # of what died deleting runs: not looked for once more with each of thousands
        self._shown: dict[str, segments.SegmentEnd] = {}  # run → as far as what readers were shown is on the disk

    @property
    def url(self) -> str:
        return self.root

    @property
    def base_dir(self) -> str:
        return os.path.dirname(self.root)

    @cached_property
    def claims(self) -> DirectoryClaims:
        from rerail.stores.claims import DirectoryClaims  # only for pipelines that say which files they write

        return DirectoryClaims(housekeeping.claims_dir(self.root))

    @cached_property
    def content(self) -> DirectoryContentStore:
        from rerail.stores.content_store import DirectoryContentStore  # commands that list and show start without it

        return DirectoryContentStore(housekeeping.content_dir(self.root))

    def create(self, header: RunHeader, pipeline: bytes) -> DirectoryRunWriter:
        path = self.path(header.run_id)
        try:
            return self._create(header, pipeline, path)
        except FileExistsError:
            raise RunExists(header.run_id, live=self._is_live(header.run_id)) from None
        except OSError as error:
            raise StateUnwritable(
                f"cannot create a run in {self.root}: {error.strerror}",
                hint="make it writable, then: rerail run",
            ) from error

    def _is_live(self, run_id: str) -> bool:
        """Return whether a run has a live owner; not if it was deleted meanwhile."""
        try:
            return self.ownership(run_id).alive
        except RunNotFound:
            return False

    def _create(self, header: RunHeader, pipeline: bytes, path: str) -> DirectoryRunWriter:
        from rerail.stores.writer import DirectoryRunWriter  # only to own a run: readers start without it

        self._prepare()
        if os.path.lexists(path):
            raise FileExistsError(path)
        # Built under a name that is never listed and owned from the start, so that a run is there whole or not at all.
        building = os.path.join(self._runs, f"{housekeeping.NEW}{header.run_id}-{os.urandom(4).hex()}")
        durable.new_dir(building)
        lock = None
        try:
            lock = durable.Lock(os.path.join(building, "lock"))
            lock.label(_label())
            durable.write_new(os.path.join(building, HEADER), msgspec.json.format(msgspec.json.encode(header)))
            durable.write_new(os.path.join(building, PIPELINE), pipeline)
            for name in ("logs", "history"):
                durable.new_dir(os.path.join(building, name))
            durable.publish_dir(building, path)
            lock.moved_to(os.path.join(path, "lock"))
        except BaseException:
            if lock is not None:
                lock.release()
            with contextlib.suppress(OSError):
                durable.remove_tree(building)
            raise
        recording = LoadedRun(header=header, state=RunState())
        return DirectoryRunWriter(path, lock, recording, Chain(lines=[], end=None, newest=0, notices=[]))

    def _anchor(self, run: str = "") -> None:
        """Make the way to the runs durable: the process that created it may have died before doing so."""
        shared = [self._runs, housekeeping.content_dir(self.root), housekeeping.claims_dir(self.root)]
        inside = [os.path.join(run, name) for name in ("", *housekeeping.PARTS)] if run else []
        housekeeping.check_permissions(self.root, *shared, *inside)
        with contextlib.suppress(PermissionError):  # one may be allowed to pass a directory and not to open it
            durable.sync_dir(os.path.dirname(self.root))
        durable.sync_dir(self.root)
        durable.sync_dir(self._runs)

    def _prepare(self) -> None:
        durable.make_dir(self._runs)
        self._anchor()
        ignore = os.path.join(self.root, ".gitignore")
        if not os.path.lexists(ignore):
            with contextlib.suppress(FileExistsError):
                durable.write_new(ignore, b"*\n")
        housekeeping.remove_abandoned(self.root, self._runs)

    def own(self, run_id: str) -> DirectoryRunWriter:
        from rerail.stores.writer import DirectoryRunWriter  # only to own a run: readers start without it

        path = self._existing(run_id)
        lock = self._locked(run_id, path)
        try:
            lock.label(_label())  # first of all: a process that is refused is told the owner
            housekeeping.check_real_directory(path)
            found = self._load(run_id)
            run = DirectoryRunWriter(path, lock, found.recording, found.chain, found.snapshot_seq)
            self._anchor(path)
            run.settle_past(found.bad_files)
        except OSError as error:
            release(lock, synced=False)
            raise StateUnwritable(
                f"cannot take over {path}: {error.strerror}",
                hint=f"make it writable, then: rerail resume {run_id}",
            ) from error
        except BaseException:
            release(lock, synced=False)
            raise
        return run

    def _locked(self, run_id: str, path: str) -> durable.Lock:
        """Take the lock of a run. A child of a dead owner may hold it between fork and exec: wait for that moment."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return durable.Lock(os.path.join(path, "lock"), unshare=True)
            except BlockingIOError:
                if self.ownership(run_id).alive or time.monotonic() > deadline:
                    raise self._busy(run_id) from None
                time.sleep(0.005)
            except OSError as error:
                raise StateUnwritable(
                    f"cannot lock {path}: {error.strerror}",
                    hint=f"make it writable, then: rerail resume {run_id}",
                ) from error

    def read(self, run_id: str) -> LoadedRun:
        self._existing(run_id)

        def read() -> LoadedRun:
            found = self._load(run_id)
            warning = self._make_durable(run_id, found.chain, at_rest=found.recording.state.status != "running")
            if warning:
                found.recording.notices += (warning,)
            return found.recording

        return self._beside_an_owner(run_id, read)

    def history(self, run_id: str) -> Iterable[tuple[int, Event]]:
        path = self._existing(run_id)

        def read() -> list[tuple[int, Event]]:
            chain = segments.load(path, run_id, None)
            found = list(segments.decoded(chain, run_id))
            self._make_durable(run_id, chain)
            return found

        return self._beside_an_owner(run_id, read)

    def find(self, run_id: str, tags: Collection[str], step: str) -> Iterator[Event]:
        path = self._existing(run_id)
        found = self._beside_an_owner(run_id, lambda: self._load(run_id))  # proves the bytes that are searched
        self._make_durable(run_id, found.chain)
        return segments.find(path, run_id, segments.SearchRange(found.chain.lengths), tags, step)

    def _make_durable(self, run_id: str, chain: Chain, *, at_rest: bool = False) -> str:
        """Sync the records that a reader is about to show; return why that cannot be done, or ''.

        The owner may have written it and not synced it yet, or have died before it could. Shown and then lost in a
        power cut, a step that a person knew to be complete would run again. A run that its owner released after its
        last record was synced is durable already, and needs none of this.
        """
        end = chain.end
        if end is None or self._shown.get(run_id) == end or (at_rest and self._is_released(run_id)):
            return ""
        path = self.path(run_id)
        try:
            durable.sync_existing(os.path.join(path, segments.file_name(end.segment)))
            durable.sync_dir(path)  # the name of the segment, too
        except FileNotFoundError:
            return ""  # moved or deleted meanwhile: there is nothing to lose any more
        except OSError as error:
            return f"the latest events may not be on the disk yet: sync failed ({error.strerror})"
        self._shown[run_id] = end
        return ""

    def _is_released(self, run_id: str) -> bool:
        """Say whether the last owner released a run with all its records on the disk."""
        try:
            data = durable.read_start(os.path.join(self.path(run_id), "lock"), _MAX_LABEL)
        except OSError:
            return False
        return data.partition(b"\n")[2].strip() == housekeeping.RELEASED

    def _beside_an_owner(self, run_id: str, read: Callable[[], _T]) -> _T:
        """Read beside an owner that may be writing: a half-written record looks damaged, and is read again."""
        for _ in range(_LOOKS):
            try:
                found = read()
            except StateDamaged:
                if not self.ownership(run_id).alive:
                    raise
            else:
                if not (isinstance(found, LoadedRun) and found.notices and self.ownership(run_id).alive):
                    return found
            time.sleep(0.002)
        return read()

    def pipeline(self, run_id: str, sha256: str) -> bytes:
        path = self._existing(run_id)
        # Numbered copies are newer than the first, which has no number.
        later = sorted(entry for entry in os.listdir(path) if re.fullmatch(r"pipeline-\d+\.yaml", entry))
        copies = [PIPELINE, *later]
        texts = [self._read_file(run_id, copy) for copy in copies]
        for text in reversed(texts):
            if not sha256 or hashlib.sha256(text).hexdigest() == sha256:
                return text
        raise StateDamaged(
            f"{os.path.join(path, PIPELINE)}: not the pipeline the journal vouches for",
            hint=f"rerail resume {run_id}, with the pipeline file back in its place",
        )

    def ownership(self, run_id: str) -> Ownership:
        try:
            path = os.path.join(self._existing(run_id), "lock")
            label, _, more = durable.read_start(path, _MAX_LABEL).partition(b"\n")
            owner = _owner.decode(label)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return Ownership(owner=None, alive=False)
        alive = not more.startswith(housekeeping.RELEASED) and processes.is_alive(owner)
        if alive and processes.is_hidden(owner):  # in a container, say: only the lock can tell
            with contextlib.suppress(OSError):
                alive = _is_locked(path)
        return Ownership(owner=owner, alive=alive)

    def identity(self, run_id: str) -> str:
        try:
            status = os.stat(os.path.join(self.path(run_id), "lock"))
        except OSError:
            return ""
        return f"{status.st_dev}:{status.st_ino}"

    def runs(self) -> list[str]:
        try:
            with os.scandir(self._runs) as entries:
                return [entry.name for entry in entries if RUN_ID.fullmatch(entry.name) and entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StateUnreadable(
                f"{self._runs}: {error.strerror}", hint="make it readable, then: rerail list"
            ) from error

    def index(self) -> DirectoryIndex:
        from rerail.stores.index import DirectoryIndex  # only for commands about many runs

        return DirectoryIndex(self.root)

    def header(self, run_id: str) -> RunHeader | None:
        try:
            return self._header_file(run_id) or self._load(run_id).recording.header
        except StateError:
            return None

    def delete(self, run_id: str, check: Callable[[], None] = lambda: None) -> None:
        path = self._existing(run_id)
        lock = self._locked(run_id, path)
        try:
            check()
            # Out of sight at once: half of a run would look like one that has hardly begun, and would be run again.
            gone = os.path.join(self._runs, f"{housekeeping.GONE}{run_id}-{os.urandom(4).hex()}")
            durable.move_file(path, gone)
            durable.remove_tree(gone)
        finally:
            lock.release()
        if not self._is_tidy:
            housekeeping.remove_abandoned(self.root, self._runs)
            self._is_tidy = True

    def is_owned(self, run_id: str) -> bool:
        try:
            return _is_locked(os.path.join(self._existing(run_id), "lock"))
        except OSError:
            return self.ownership(run_id).alive

    def _load(self, run_id: str) -> _Found:
        path = self.path(run_id)
        bad: dict[str, str] = {}  # file → what is wrong with it
        checkpoint, covered = None, None
        try:
            checkpoint, covered = snapshots.decode(durable.read_file(os.path.join(path, snapshots.FILE_NAME)))
        except FileNotFoundError:
            if segments.numbers(path):
                bad[snapshots.FILE_NAME] = "is missing"
        except OSError as error:
            bad[snapshots.FILE_NAME] = f"cannot be read ({error.strerror})"
        except (ValueError, MemoryError) as error:
            bad[snapshots.FILE_NAME] = f"is damaged ({error or 'it is too large'})"
        known = checkpoint
        if checkpoint is None:
            known, covered = self._known_from_history(path)
        chain = segments.load(path, run_id, covered)
        if chain.covered and known is not None:
            state = segments.folded(chain, run_id, state_of(known))
        else:
            if checkpoint is not None:
                bad[snapshots.FILE_NAME] = "does not match the journal"
            state = segments.folded(chain, run_id, state_of(chain.base) if chain.base else None)
        header = chain.header or self._read_header(run_id)
        if chain.header is not None and self._header_file(run_id) != chain.header:
            bad[HEADER] = "is damaged"
        notices = [f"{name} {what}; rebuilt from the journal" for name, what in bad.items()] + chain.notices
        if chain.uneven and state.status == "running":
            notices.append(chain.uneven)
        seq = checkpoint.internal.seq if checkpoint is not None and chain.covered else 0
        recording = LoadedRun(header=header, state=state, notices=tuple(notices), is_cached=seq == state.seq)
        return _Found(recording=recording, chain=chain, snapshot_seq=seq, bad_files=tuple(bad))

    def _known_from_history(self, path: str) -> tuple[Checkpoint | None, Coverage | None]:
        """Return the newest whole checkpoint of the history, where the present one is lost: the journal must reach it."""
        with contextlib.suppress(OSError):
            for entry in sorted(os.listdir(os.path.join(path, "history")), reverse=True):
                with contextlib.suppress(OSError, ValueError):
                    return snapshots.decode(durable.read_file(os.path.join(path, "history", entry)))
        return None, None

    def _header_file(self, run_id: str) -> RunHeader | None:
        try:
            return _header.decode(durable.read_file(os.path.join(self.path(run_id), HEADER)))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _read_header(self, run_id: str) -> RunHeader:
        data = self._read_file(run_id, HEADER)
        try:
            version = msgspec.json.decode(data, type=_HeaderVersion).format
            formats.check_version(formats.HEADER, version, where=f"run {run_id}")
            return _header.decode(formats.upgraded(formats.HEADER, version, data))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            where = os.path.join(self.path(run_id), HEADER)
            raise StateDamaged(f"{where}: {error}", hint=f"rerail repair {run_id}") from error

    def _read_file(self, run_id: str, name: str) -> bytes:
        path = os.path.join(self.path(run_id), name)
        try:
            return durable.read_file(path)
        except OSError as error:
            raise StateUnreadable(
                f"{path}: cannot be read: {error.strerror}", hint=f"make it readable, then: rerail show {run_id}"
            ) from error

    def stamp(self, run_id: str) -> str:
        newest = (0, 0)
        with os.scandir(self._existing(run_id)) as entries:
            for entry in entries:
                if entry.name.startswith("journal-"):
                    status = entry.stat()
                    newest = max(newest, (status.st_mtime_ns, status.st_size))
        return "{}:{}".format(*newest)

    def logs(self, run_id: str) -> DirectoryLogs:
        from rerail.stores.logs import DirectoryLogs  # only for commands that show what steps print

        return DirectoryLogs(os.path.join(self.path(run_id), "logs"))

    def results(self, run_id: str, name: str) -> bytes:
        with durable.open_to_read(housekeeping.results_file(self._existing(run_id), name)) as file:
            return file.read()

    def results_path(self, run_id: str, name: str) -> str:
        return housekeeping.results_file(self.path(run_id), name)

    def send(self, run_id: str, message: ApprovalGiven) -> None:
        from rerail.stores import inbox  # only for commands by which people talk to a run

        inbox.put(self._existing(run_id), message)

    def size(self, run_id: str = "") -> int:
        return housekeeping.tree_bytes(self._existing(run_id) if run_id else self.root)

    def verify(self, run_id: str) -> Proof:
        from rerail.stores import verify  # it needs this module

        return verify.verify(self, run_id)

    def repair(self, run_id: str) -> Repair:
        from rerail.stores import repair  # likewise

        return repair.repair(self, run_id)

    def directory(self, run_id: str) -> str:
        return self.path(run_id)

    def path(self, run_id: str) -> str:
        """Return the directory of a run, whether it exists or not. Raises BadRunId."""
        return os.path.join(self._runs, check_run_id(run_id))

    def _existing(self, run_id: str) -> str:
        path = self.path(run_id)
        if not os.path.isdir(path):
            raise RunNotFound(f"no run {run_id!r} in {self.root}", hint="rerail list")
        return path

    def _busy(self, run_id: str) -> RunBusy:
        ownership = self.ownership(run_id)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not ownership.alive and time.monotonic() < deadline:
            # Locked, and the name inside is a dead one's: the new owner is just about to write its own.
            time.sleep(0.005)
            ownership = self.ownership(run_id)
        owner = ownership.owner if ownership.alive else None
        who = "another process"
        if owner is not None:
            since = owner.since.astimezone().strftime("%Y-%m-%d %H:%M:%S")
            who = f"process {owner.pid} on {owner.host} since {since}"
        return RunBusy(f"run {run_id} is owned by {who}", hint=f"rerail watch {run_id}, or rerail stop {run_id}")


class _HeaderVersion(msgspec.Struct):
    format: int


class _Found(msgspec.Struct, kw_only=True):
    recording: LoadedRun
    chain: Chain
    snapshot_seq: int  # the record the present checkpoint.json stands for
    bad_files: tuple[str, ...]


def _is_locked(path: str) -> bool:
    """Say whether a process holds a lock. Raises OSError if that cannot be found out."""
    try:
        durable.Lock(path).release()
    except BlockingIOError:
        return True
    return False


def _label() -> bytes:
    return msgspec.json.encode(processes.identity(datetime.now(UTC))) + b"\n"
