"""Durability of files that are not state: artifacts where steps left them, and their copies in the content store.

The rules of the package hold here too. Artifacts can be many, so a whole file system is synced at once where that is
cheaper than one file after the other.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from rerail.durable import (
    TEMPORARY_SUFFIX,
    create_file,
    make_dir,
    marked_temporary,
    remove_file,
    remove_tree,
    sync,
    sync_dir,
)

MANY = 48  # files from which on one sync of the file system is cheaper than one of each
CHUNK = 1 << 20
_CLONE = 0x40049409  # FICLONE: share the blocks until one side is written to
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_CLONES = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM, errno.EISDIR)


def open_regular(path: str) -> int:
    """Open a file to read; a link, FIFO, device or directory is an error, never a wait."""
    fd = os.open(path, _READ)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


def sync_files(paths: Sequence[str], top: str = "", names: Sequence[str] = ()) -> None:
    """Make the content of files durable that other processes wrote, and the names of all of them; and further names.

    With `top`, also the names of the directories on the way there from it: who wrote the files may have made those.
    """
    directories = {os.path.dirname(path) for path in (*paths, *names)}
    if top:
        directories |= {above for directory in directories for above in _between(directory, top)}
    _sync_all(paths, sorted(directories))


def _between(directory: str, top: str) -> Iterator[str]:
    """The directories above one, up to `top`, or to the root if it is not in there."""
    while directory != top and directory != os.path.dirname(directory):
        directory = os.path.dirname(directory)
        yield directory


def _sync_all(paths: Sequence[str], directories: Sequence[str]) -> None:
    if len(paths) + len(directories) > MANY and _sync_file_systems(directories):
        return
    for path in paths:
        fd = open_regular(path)
        try:
            sync(fd)
        finally:
            os.close(fd)
    for directory in directories:
        sync_dir(directory)


def _sync_file_systems(directories: Sequence[str]) -> bool:
    """Sync every file system these are on; False where that cannot be asked for. Raises OSError if one fails."""
    syncfs = _syncfs()
    if syncfs is None:
        return False
    import ctypes

    done: set[int] = set()
    for directory in directories:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            device = os.fstat(fd).st_dev
            if device not in done and syncfs(fd) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), directory)
            done.add(device)
        finally:
            os.close(fd)
    return True


@functools.cache
def _syncfs() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    import ctypes  # costs more to import than the rest of this module

    try:
        return ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None


def clone(source: int, target: int) -> bool:
    """Make an empty file share the blocks of another, where the file system can."""
    try:
        fcntl.ioctl(target, _CLONE, source)
    except OSError as error:
        if error.errno in _NO_CLONES:
            return False
        raise
    return True


def write_on(fd: int, data: bytes | memoryview) -> None:
    """Write all of it at the present position."""
    view = memoryview(data)
    while view:
        written = os.write(fd, view)
        if written == 0:
            raise OSError(errno.EIO, "the operating system wrote nothing")
        view = view[written:]


def publish(pairs: Iterable[tuple[str, str]]) -> None:
    """Give finished files their names in the content store; contents first, then names, each durable before the next."""
    moves = list(pairs)
    if not moves:
        return
    sync_files([staged for staged, _ in moves])
    directories = sorted({os.path.dirname(target) for _, target in moves})
    for directory in directories:
        make_dir(directory)
    for staged, target in moves:
        os.rename(staged, target)
    if len(directories) <= MANY or not _sync_file_systems(directories):
        for directory in directories:
            sync_dir(directory)


def place_copy(source: int, target: str, mode: int, sha256: str, mark: str) -> None:
    """Put a copy of an open file at a path where nothing stands, durable on return; ValueError if its digest is another.

    `mark` tells apart who is writing; what a killed one left behind is replaced.
    """
    directory = os.path.dirname(target)
    made = make_user_dir(directory)
    temporary = marked_temporary(target, mark)
    remove_file(temporary)
    fd = create_file(temporary, 0o600)
    try:
        digest = hashlib.sha256()
        cloned = clone(source, fd)
        os.lseek(source, 0, os.SEEK_SET)
        while chunk := os.read(source, CHUNK):
            digest.update(chunk)
            if not cloned:
                write_on(fd, chunk)
        if digest.hexdigest() != sha256:
            raise ValueError("the copy in the content store is not what it should be")
        os.fchmod(fd, mode or 0o644)
        sync(fd)
        os.rename(temporary, target)
    except BaseException:
        remove_file(temporary)
        raise
    finally:
        os.close(fd)
    for parent in (directory, *made):
        sync_dir(parent)


def place_link(target: str, points_to: str) -> None:
    """Put a symbolic link at a path where nothing stands."""
    made = make_user_dir(os.path.dirname(target))
    os.symlink(points_to, target)
    for parent in (os.path.dirname(target), *made):
        sync_dir(parent)


def set_mode(path: str, mode: int) -> None:
    """Say again who may read and change something."""
    os.chmod(path, mode)


def make_user_dir(path: str) -> list[str]:
    """Create the directories of a file as its step would have; the parents that got a new name."""
    made = []
    missing = path
    while not os.path.isdir(missing):
        missing = os.path.dirname(missing)
        made.append(missing)
    os.makedirs(path, exist_ok=True)
    return made


def set_aside(path: str, target: str) -> None:
    """Move whatever stands at a path, across file systems if need be; durable on return, and never in neither place."""
    make_dir(os.path.dirname(target))
    try:
        os.rename(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy_over(path, target)
    sync_dir(os.path.dirname(target))
    with contextlib.suppress(FileNotFoundError):
        sync_dir(os.path.dirname(path))


def _copy_over(path: str, target: str) -> None:
    import shutil

    copy = target + TEMPORARY_SUFFIX  # what is half copied must not look like the whole
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.copytree(path, copy, symlinks=True)
        copied = [os.path.join(where, name) for where, _, names in os.walk(copy) for name in names]
    else:
        shutil.copy2(path, copy, follow_symlinks=False)
        copied = [copy]
    sync_files([one for one in copied if not os.path.islink(one)])
    os.rename(copy, target)
    sync_dir(os.path.dirname(target))
    if os.path.isdir(path) and not os.path.islink(path):
        remove_tree(path)
    else:
        remove_file(path)


class SharedLock:
    """Held by everybody who relies on files staying where they are; whoever wants to remove some asks for all of it."""

    def __init__(self, path: str, *, alone: bool = False, wait: bool = False) -> None:
        """Take it, together with others or alone; raises BlockingIOError if it cannot be had now and is not awaited."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)) if alone else fcntl.LOCK_SH)
        except BaseException:
            os.close(self._fd)
            raise

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
