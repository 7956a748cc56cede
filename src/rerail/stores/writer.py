"""A run this process owns: appending to its journal, saving its snapshots.

What cannot be written is never retried on the same file. The segment is given up where it was last known good, and
everything since goes into a new one; if that fails too, appending raises and the engine stops.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property

import msgspec

from rerail import durable
from rerail.core.checkpoint import Checkpoint
from rerail.core.events import Event
from rerail.core.formats import JOURNAL
from rerail.core.summary import summary_of
from rerail.errors import StateUnwritable
from rerail.ports import LoadedRun
from rerail.stores import journal, segments, snapshots
from rerail.stores.housekeeping import content_dir, release, results_file
from rerail.stores.inbox import DirectoryInbox
from rerail.stores.segments import Chain, Coverage, Opening, SegmentEnd
from rerail.version import VERSION

RESERVE_BYTES = 128 * 1024
PLACE_CHECK_SECONDS = 0.001  # a burst of tiny steps does not ask each time whether its files are still there

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DirectoryRunWriter:
    """The one writer of a run directory, for as long as it holds the lock."""

    def __init__(self, path: str, lock: durable.Lock, recording: LoadedRun, chain: Chain, snapshot_seq: int = 0) -> None:
        self.path = path
        self._shelf = ""  # where this invocation puts what is in quarantine
        self._shelving = threading.Lock()
        self._recording = recording
        self._lock = lock
        self._run_id = recording.header.run_id
        self._newest = chain.newest
        self._inherited = chain.end  # where the durable part of the journal ended when we took it over
        self._acked_length = self._acked_seq = 0  # likewise, of the segment we write
        self._digests = dict(chain.digests)
        self._lengths = dict(chain.lengths)
        self._pending: list[Event] = []  # appended, not synced
        self._file: durable.AppendFile | None = None
        self._segment = 0
        self._sum = ""
        self._seq = chain.end.seq if chain.end else 0
        self._checked = float("-inf")
        self._digest = hashlib.sha256()
        self._ignored = chain.ignored
        self._snapshot_seq = snapshot_seq
        self._is_milestone = True
        self._history: deque[str] = deque()
        self._degraded = ""
        self._bad_files: tuple[str, ...] = ()
        self._reserve = os.path.join(path, "reserve")
        with contextlib.suppress(OSError):
            durable.reserve_space(self._reserve, RESERVE_BYTES)

    @property
    def recording(self) -> LoadedRun:
        return self._recording

    @property
    def degraded(self) -> str:
        return self._degraded

    @property
    def identity(self) -> str:
        return self._lock.identity

    @property
    def former_identity(self) -> str:
        return self._lock.former

    @property
    def identity_file(self) -> str:
        return os.path.join(self.path, "lock")

    @property
    def directory(self) -> str:
        return self.path

    @cached_property
    def inbox(self) -> DirectoryInbox:
        return DirectoryInbox(self.path)

    def settle_past(self, bad_files: Sequence[str]) -> None:
        """Sync the records that were read before anything is built on them.

        Bad files are put aside with the first write: an owner that fails before has changed nothing.
        """
        self._bad_files = tuple(bad_files)
        if self._acked is not None:
            durable.sync_existing(os.path.join(self.path, segments.file_name(self._acked.segment)))
            durable.sync_dir(self.path)  # its name too: the next segment must never be there without it
        durable.remove_temporaries(self.path)
        durable.remove_temporaries(os.path.join(self.path, "results"))
        durable.make_dir(os.path.join(self.path, "history"))
        durable.make_dir(os.path.join(self.path, "logs"))
        kept = [entry for entry in os.listdir(os.path.join(self.path, "history")) if entry.endswith(".json")]
        self._history.extend(sorted(kept))

    def _put_aside(self) -> None:
        for name in self._bad_files:
            path = os.path.join(self.path, name)
            if os.path.lexists(path):
                durable.move_file(path, f"{path}.bad-{self._newest + 1}")
            if name == "run.json":
                header = msgspec.json.format(msgspec.json.encode(self._recording.header))
                durable.replace_file(path, header)
        self._bad_files = ()

    def append(self, events: Sequence[Event]) -> None:
        if not self._lock.held:
            raise StateUnwritable(f"this process does not own run {self._run_id}", hint=f"rerail show {self._run_id}")
        now = time.monotonic()
        if now - self._checked > PLACE_CHECK_SECONDS:
            self._check_place()
            self._checked = now
        first = self._seq + 1
        self._seq += len(events)
        self._pending.extend(events)
        try:
            if self._file is None:
                self._open_segment(reason="")
            else:
                self._write(self._file, events, first)
        except OSError as error:
            self._move(error)

    def _check_place(self) -> None:
        """Raise StateUnwritable if the journal or the lock file is gone: the system would let us write on."""
        gone = self._file is not None and self._file.is_gone()
        if gone or self._lock.is_gone():
            what = "journal" if gone else "lock file"
            raise StateUnwritable(
                f"{self.path}: the {what} was removed or replaced while the run was running",
                hint="rerail list",
            )

    def _write(self, file: durable.AppendFile, events: Sequence[Event], first: int) -> None:
        data, last = journal.encode(events, self._sum, first, first - 1)
        file.append(data)
        file.sync()
        self._digest.update(data)
        self._sum = last
        self._acked_length, self._acked_seq = file.length, self._seq
        self._pending.clear()

    @property
    def _acked(self) -> SegmentEnd | None:
        """Where the durable part of the journal ends. Made on demand: it changes with every record."""
        if not self._segment:
            return self._inherited
        return SegmentEnd(segment=self._segment, length=self._acked_length, seq=self._acked_seq, sum=self._sum)

    def _open_segment(self, reason: str) -> None:
        """Start a new segment with everything that is pending; all of it is durable on return."""
        self._put_aside()
        self._newest += 1
        after = self._acked
        opening = Opening(
            format=JOURNAL.version,
            rerail=VERSION,
            segment=self._newest,
            header=self._recording.header,
            after=after,
            reason=reason,
            ignored=self._ignored,
        )
        before = after.sum if after else journal.first_sum(self._run_id)
        seq = after.seq if after else 0
        head, first_sum = journal.encode_line(msgspec.json.encode(opening), before, seq, seq)
        body, last_sum = journal.encode(self._pending, first_sum, seq + 1, seq)
        path = os.path.join(self.path, segments.file_name(self._newest))
        file = None
        try:
            file = durable.AppendFile(path, head + body)
            durable.sync_dir(self.path)
        except OSError:
            if file is not None:
                file.close()
            with contextlib.suppress(OSError):  # never acknowledged, so it must not speak for anything
                durable.remove_file(path)
            raise
        segments.record_newest(self.path, self._newest)
        if after is not None and self._segment == after.segment:
            self._digests[after.segment] = self._acked_digest(after)
            self._lengths[after.segment] = after.length
        self._file, self._segment, self._sum = file, self._newest, last_sum
        self._digest = hashlib.sha256(head + body)
        self._acked_length, self._acked_seq = file.length, self._seq
        self._pending.clear()

    def _acked_digest(self, end: SegmentEnd) -> str:
        """Return the digest of the part of a given-up segment that counts; read back, as the rest was lost."""
        data = durable.read_file(os.path.join(self.path, segments.file_name(end.segment)))
        return hashlib.sha256(data[: end.length]).hexdigest()

    def _move(self, error: OSError) -> None:
        """Give the present segment up and go on in a new one; raise StateUnwritable if that fails too."""
        self._give_up_segment()
        self._ignored = -1  # whatever the failed write left there is not worth a word each time
        cause = error
        for _ in range(2):
            if cause.errno in _FULL and not self._degraded:
                with contextlib.suppress(OSError):
                    durable.remove_file(self._reserve)
                self._degraded = f"the disk is full ({os.strerror(cause.errno or 0)})"
            try:
                self._open_segment(reason=f"{os.strerror(error.errno or 0)}")
            except OSError as again:
                cause = again
                continue
            return
        where = os.path.join(self.path, segments.file_name(self._newest))
        raise StateUnwritable(
            f"cannot write {where}: {os.strerror(cause.errno or 0)}",
            hint=f"make the state writable, then: rerail resume {self._run_id}",
        ) from cause

    def _give_up_segment(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def save_snapshot(self, checkpoint: Checkpoint, *, keep: int, milestone: bool = True) -> None:
        if self._pending:
            return  # only what is durable may be cached
        digests = {str(number): digest for number, digest in self._digests.items()}
        if self._file is not None:
            covered = Coverage(
                segment=self._segment,
                seq=self._seq,
                sum=self._sum,
                offset=self._file.length,
                sha256=digests | {str(self._segment): self._digest.copy().hexdigest()},
            )
        elif self._inherited is not None and self._seq == self._inherited.seq:  # nothing was added to what was taken over
            end = self._inherited
            covered = Coverage(segment=end.segment, seq=end.seq, sum=end.sum, offset=end.length, sha256=digests)
            self._put_aside()
        else:
            return
        keep_as = ""
        if keep and self._snapshot_seq and self._snapshot_seq != self._seq and self._is_milestone:
            keep_as = f"checkpoint-{self._snapshot_seq:012d}.json"
        path = os.path.join(self.path, snapshots.FILE_NAME)
        old = os.path.join(self.path, "history", keep_as) if keep_as else ""
        durable.replace_file(path, snapshots.encode(checkpoint, covered), keep_as=old)
        self._snapshot_seq, self._is_milestone = self._seq, milestone
        if keep_as and keep_as not in self._history:
            self._history.append(keep_as)
        while len(self._history) > keep:
            durable.remove_file(os.path.join(self.path, "history", self._history.popleft()))

    def _note_in_index(self) -> None:
        from rerail.stores import index  # only at the end of a run

        root = os.path.dirname(os.path.dirname(self.path))
        index.append(root, self.path, self._segment, summary_of(self._recording.header, self._recording.state))

    def freeze_pipeline(self, text: bytes) -> None:
        path = os.path.join(self.path, f"pipeline-{self._newest + 1:04d}.yaml")
        try:
            durable.replace_file(path, text)
        except OSError as error:
            raise StateUnwritable(
                f"cannot write {path}: {error.strerror}",
                hint=f"make it writable, then: rerail resume {self._run_id}",
            ) from error

    @property
    def position(self) -> tuple[int, int]:
        return (self._segment, self._acked_length)

    def find(self, tags: Collection[str], step: str, since: tuple[int, int] = (0, 0)) -> Iterator[Event]:
        lengths = self._lengths | ({self._segment: self._acked_length} if self._segment else {})
        return segments.find(self.path, self._run_id, segments.SearchRange(lengths, since), tags, step)

    @contextlib.contextmanager
    def staging(self) -> Iterator[str]:
        from rerail.stores.content_store import DirectoryContentStore  # most runs have no artifacts

        content = DirectoryContentStore(content_dir(os.path.dirname(os.path.dirname(self.path))))
        content.prepare()
        staging = os.path.join(self.path, "staging")
        with content.pinned():
            try:
                if os.path.isdir(staging):  # left by an invocation that was killed
                    durable.remove_tree(staging)
                durable.new_dir(staging)
                yield staging
            finally:
                with contextlib.suppress(OSError):
                    durable.remove_tree(staging)

    def quarantine(self, path: str, name: str) -> str:
        from rerail.durable.copies import quarantine  # most runs have nothing to move

        with self._shelving:
            if not self._shelf:
                shelves = os.path.join(self.path, "quarantine")
                taken = len(os.listdir(shelves)) if os.path.isdir(shelves) else 0
                self._shelf = os.path.join(shelves, f"{taken + 1:04d}")
            inside = "/".join(part for part in name.split("/") if part not in ("", ".", ".."))
            target = os.path.join(self._shelf, inside)
            number = 1
            while os.path.lexists(target):
                number += 1
                target = os.path.join(self._shelf, f"{inside}.{number}")
            quarantine(path, target)
        return os.path.relpath(target, self.path)

    def save_results(self, name: str, lines: Iterable[bytes]) -> str:
        path = results_file(self.path, name)
        durable.make_dir(os.path.dirname(path))
        durable.replace_file(path, b"".join(lines))
        return path

    def open_log(self, name: str) -> int:
        return durable.open_log(os.path.join(self.path, "logs", name))

    def close(self) -> None:
        if not self._lock.held:
            return
        try:
            lived = self._file is not None
            self._give_up_segment()
            with contextlib.suppress(OSError):
                durable.remove_file(self._reserve)
                if lived:
                    self._note_in_index()
        finally:
            release(self._lock, synced=not self._pending)
