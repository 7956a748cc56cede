"""The content store: copies of what steps produced, by SHA-256, shared by all runs of a state directory.

A copy is never a hard link: what a step writes later must not reach it. It is proved each time before it is used.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator

import msgspec

from rerail.core.audit import AuditEntry
from rerail.core.model import Artifact
from rerail.durable import copies as durable_files
from rerail.durable import create_file, make_dir, remove_file

DEFAULT_KEEP = 256 << 20  # bytes of a file up to which it is kept without being asked for
MOST = 20 << 30  # bytes of the whole store
SPARE = 1 << 30  # bytes of the disk that are left to others
_NAME = re.compile(r"[0-9a-f]{62}")
_encode = msgspec.json.Encoder().encode


class ContentStore:
    """The content store of a state directory."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._size: int | None = None
        self._lock: durable_files.SharedLock | None = None

    def path(self, sha256: str) -> str:
        return os.path.join(self.root, sha256[:2], sha256[2:])

    def has(self, sha256: str) -> bool:
        return os.path.isfile(self.path(sha256))

    def is_sound(self, sha256: str) -> bool:
        """Whether a copy is there, and is what it should be: one that rots is replaced, not counted on."""
        return self.has(sha256) and not self.rotten(sha256)

    def hold(self) -> None:
        """From here on nothing is collected, until this process ends or lets go."""
        if self._lock is None:
            make_dir(self.root)
            self._lock = durable_files.SharedLock(os.path.join(self.root, "lock"))

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def room(self, size: int) -> bool:
        """Whether so many bytes more may be kept: the store is bounded, and the disk is not ours alone."""
        if self._size is None:
            self._size = sum(os.lstat(self.path(sha256)).st_size for sha256 in self.all())
        try:
            status = os.statvfs(self.root)
        except OSError:
            return False
        if self._size + size > MOST or status.f_bavail * status.f_frsize - size < SPARE:
            return False
        self._size += size
        return True

    def wanted(self, declared: Artifact, size: int) -> bool:
        """Whether a file of this artifact is to be kept."""
        match declared.keep:
            case bool():
                return declared.keep
            case None:
                return size <= DEFAULT_KEEP
            case most:
                return size <= most

    def publish(self, staged: Iterable[tuple[str, str]]) -> None:
        """Take finished copies in: pairs of where they are and their digest. Durable on return."""
        durable_files.publish([(path, self.path(sha256)) for path, sha256 in staged])

    def rotten(self, sha256: str) -> str:
        """Why a copy cannot be used: it is not there, or not what it should be; '' if it can."""
        try:
            fd = durable_files.open_regular(self.path(sha256))
        except OSError as error:
            return "not in the content store" if isinstance(error, FileNotFoundError) else f"{error.strerror}"
        digest = hashlib.sha256()
        try:
            while chunk := os.read(fd, durable_files.CHUNK):
                digest.update(chunk)
        except OSError as error:
            return f"the copy in the content store cannot be read: {error.strerror}"
        finally:
            os.close(fd)
        return "" if digest.hexdigest() == sha256 else "the copy in the content store is rotten"

    def all(self) -> Iterator[str]:
        """The digests of everything that is kept."""
        try:
            shards = sorted(os.listdir(self.root))
        except FileNotFoundError:
            return
        for shard in shards:
            if len(shard) == 2:
                for name in sorted(os.listdir(os.path.join(self.root, shard))):
                    if _NAME.fullmatch(name):
                        yield shard + name

    def write_manifest(self, data: bytes, staged: str) -> str:
        """Keep the manifest of a tree; its digest. Durable on return."""
        sha256 = hashlib.sha256(data).hexdigest()
        if not self.is_sound(sha256):
            fd = create_file(staged)
            try:
                durable_files.write_on(fd, data)
            finally:
                os.close(fd)
            self.publish([(staged, sha256)])
        return sha256

    def manifest(self, sha256: str) -> list[AuditEntry] | None:
        """The entries of a tree; None if its manifest is gone or rotten."""
        try:
            fd = durable_files.open_regular(self.path(sha256))
        except OSError:
            return None
        with open(fd, "rb") as file:
            data = file.read()
        if hashlib.sha256(data).hexdigest() != sha256:
            return None
        return msgspec.json.decode(data, type=list[AuditEntry])

    def collect(self, find_live: Callable[[], Container[str]], *, dry_run: bool) -> tuple[int, int]:
        """Remove what no run refers to; how many, and how many bytes. Raises BlockingIOError while a run relies on it.

        What runs refer to is asked for under the lock: a run that begins, seals and completes meanwhile has to wait
        before it seals, so none can refer to something that the answer does not name.
        """
        if not os.path.isdir(self.root):
            return 0, 0
        lock = None if dry_run else durable_files.SharedLock(os.path.join(self.root, "lock"), alone=True)
        count = total = 0
        try:
            live = find_live()
            for sha256 in self.all():
                if sha256 not in live:
                    count += 1
                    total += os.lstat(self.path(sha256)).st_size
                    if not dry_run:
                        remove_file(self.path(sha256))
        finally:
            if lock is not None:
                lock.release()
        return count, total


def objects_of(run_dir: str) -> ContentStore | None:
    """The content store that a run shares; None if it has no directory."""
    return ContentStore(os.path.join(os.path.dirname(os.path.dirname(run_dir)), "objects")) if run_dir else None


def manifest_bytes(entries: Iterable[AuditEntry]) -> bytes:
    """The manifest of a tree: its entries in the order of their paths, a line each."""
    lines = [_encode(entry) for entry in sorted(entries, key=lambda entry: entry.path)]
    return b"[\n" + b",\n".join(lines) + b"\n]\n"
