"""The content store of a state directory: one file for each copy, below `objects/`, named by its SHA-256.

A copy is never a hard link: what a step writes later must not reach it. It is proved each time before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator

from rerail.durable import SharedLock, copies, make_dir, remove_file

MAX_SIZE = 20 << 30  # bytes of the whole store
SPARE = 1 << 30  # bytes of the disk that are left to others
_NAME = re.compile(r"[0-9a-f]{62}")


class DirectoryContentStore:
    """Copies as files below a directory."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._size: int | None = None

    def has(self, sha256: str) -> bool:
        return os.path.isfile(self._path(sha256))

    @contextlib.contextmanager
    def pinned(self) -> Iterator[None]:
        lock = SharedLock(os.path.join(self._root, "lock")) if os.path.isdir(self._root) else None
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def prepare(self) -> None:
        """Make the directory: before it is there, there is nothing to pin."""
        make_dir(self._root)

    def has_room(self, size: int) -> bool:
        if self._size is None:
            self._size = sum(os.lstat(self._path(sha256)).st_size for sha256 in self.digests())
        try:
            status = os.statvfs(self._root)
        except OSError:
            return False
        if self._size + size > MAX_SIZE or status.f_bavail * status.f_frsize - size < SPARE:
            return False
        self._size += size
        return True

    def publish(self, staged: Iterable[tuple[str, str]]) -> None:
        copies.publish([(path, self._path(sha256)) for path, sha256 in staged])

    def open(self, sha256: str) -> int:
        return copies.open_regular(self._path(sha256))

    def defect(self, sha256: str) -> str:
        try:
            fd = self.open(sha256)
        except OSError as error:
            return "not in the content store" if isinstance(error, FileNotFoundError) else f"{error.strerror}"
        digest = hashlib.sha256()
        try:
            while chunk := os.read(fd, copies.CHUNK):
                digest.update(chunk)
        except OSError as error:
            return f"the copy in the content store cannot be read: {error.strerror}"
        finally:
            os.close(fd)
        return "" if digest.hexdigest() == sha256 else "the copy in the content store is corrupt"

    def digests(self) -> Iterator[str]:
        try:
            shards = sorted(os.listdir(self._root))
        except FileNotFoundError:
            return
        for shard in shards:
            if len(shard) == 2:
                for name in sorted(os.listdir(os.path.join(self._root, shard))):
                    if _NAME.fullmatch(name):
                        yield shard + name

    def read(self, sha256: str) -> bytes | None:
        try:
            fd = self.open(sha256)
        except OSError:
            return None
        with open(fd, "rb") as file:
            data = file.read()
        return data if hashlib.sha256(data).hexdigest() == sha256 else None

    def collect(self, find_live: Callable[[], Container[str]], *, dry_run: bool) -> tuple[int, int]:
        if not os.path.isdir(self._root):
            return 0, 0
        lock = None if dry_run else SharedLock(os.path.join(self._root, "lock"), alone=True)
        count = total = 0
        try:
            live = find_live()
            for sha256 in self.digests():
                if sha256 not in live:
                    count += 1
                    total += os.lstat(self._path(sha256)).st_size
                    if not dry_run:
                        remove_file(self._path(sha256))
        finally:
            self._size = None
            if lock is not None:
                lock.release()
        return count, total

    def _path(self, sha256: str) -> str:
        return os.path.join(self._root, sha256[:2], sha256[2:])
