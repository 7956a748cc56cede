"""Durability of files that are not state: artifacts in the project, and their copies in the content store.

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

from rerail.durable.files import (
    TEMPORARY_SUFFIX,
    create_file,
    make_dir,
    sync,
    sync_dir,
    writer_temporary,
)

MANY = 48  # files from which on one sync of the file system is cheaper than one of each
CHUNK = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSED = _DIRECTORY | getattr(os, "O_PATH", 0)  # a directory may be passable and not readable
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
    """Make files that other processes wrote durable, content and names; and the names of further files.

    With `top`, also the names of the directories on the way there from it: the writers may have created them.
    """
    directories = {os.path.dirname(path) for path in (*paths, *names)}
    if top:
        directories |= {above for directory in directories for above in _between(directory, top)}
    _sync_all(paths, sorted(directories))


def _between(directory: str, top: str) -> Iterator[str]:
    """Yield the directories above one, up to `top`, or to the root if it is not in there."""
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
    """Sync the file systems of these directories; False where there is no such call. Raise OSError if one fails."""
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
    """Make an empty file share the blocks of another; return False where the file system cannot."""
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


class Parent:
    """Parent directory of a path, held open: it stays the same one even if the way there is swapped afterwards.

    The way there is walked name by name and never through a symbolic link, so the path must be a real one. With
    `make`, missing directories are created as a step would have; their names are durable with `sync`.
    """

    def __init__(self, path: str, *, make: bool = False) -> None:
        directory, self.name = os.path.split(path)
        self._changed: list[int] = []  # directories in which names are new
        self.fd = os.open("/", _PASSED)
        try:
            walked = ""
            for part in filter(None, directory.split("/")):
                walked += f"/{part}"
                self._enter(part, walked, make=make)
        except BaseException:
            self.close()
            raise

    def _enter(self, part: str, walked: str, *, make: bool) -> None:
        made = False
        try:
            below = _open_at(part, _PASSED, self.fd, walked)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=self.fd)
            made = True
            below = _open_at(part, _PASSED, self.fd, walked)
        if made:
            self._changed.append(self.fd)
        else:
            os.close(self.fd)
        self.fd = below

    def sync(self) -> None:
        """Make the names in it durable, and those of directories that were created on the way."""
        for passed in (self.fd, *reversed(self._changed)):
            fd = os.open(".", _DIRECTORY, dir_fd=passed)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def close(self) -> None:
        for fd in (self.fd, *self._changed):
            os.close(fd)

    def __enter__(self) -> Parent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_at(name: str, flags: int, parent: int, path: str) -> int:
    """Open an entry of an open directory; the error names the whole path."""
    try:
        return os.open(name, flags, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and stat.S_ISLNK(_mode_at(name, parent)):
            raise OSError(errno.ELOOP, "became a symbolic link meanwhile", path) from None
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None


def _mode_at(name: str, parent: int) -> int:
    """Return the type and permissions of an entry of an open directory; 0 if there is none."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0


def place_copy(source: int, target: str, mode: int, sha256: str, writer: str) -> None:
    """Copy an open file to a real path that is free, durable on return; raise ValueError if its digest differs.

    `writer` identifies the process: the temporary file of a killed one is replaced by its successor.
    """
    with Parent(target, make=True) as parent:
        temporary = writer_temporary(parent.name, writer)
        _remove_at(temporary, parent.fd)
        fd = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent.fd
        )
        try:
            _fill(fd, source, sha256)
            os.fchmod(fd, mode or 0o644)
            sync(fd)
            os.rename(temporary, parent.name, src_dir_fd=parent.fd, dst_dir_fd=parent.fd)
        except BaseException:
            _remove_at(temporary, parent.fd)
            raise
        finally:
            os.close(fd)
        parent.sync()


def _fill(fd: int, source: int, sha256: str) -> None:
    """Copy an open file into an empty one; raise ValueError if its digest differs."""
    digest = hashlib.sha256()
    cloned = clone(source, fd)
    os.lseek(source, 0, os.SEEK_SET)
    while chunk := os.read(source, CHUNK):
        digest.update(chunk)
        if not cloned:
            write_on(fd, chunk)
    if digest.hexdigest() != sha256:
        raise ValueError("the copy in the content store is corrupt")


def _remove_at(name: str, parent: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


def place_link(target: str, points_to: str) -> None:
    """Create a symbolic link at a real path that is free."""
    with Parent(target, make=True) as parent:
        os.symlink(points_to, parent.name, dir_fd=parent.fd)
        parent.sync()


def place_dir(target: str) -> None:
    """Create a directory at a real path, with those above it that are missing, as its step would have."""
    with Parent(os.path.join(target, "."), make=True) as inside:
        inside.sync()


def set_mode(path: str, mode: int) -> None:
    """Set the permissions of a directory, given by its real path."""
    with Parent(os.path.join(path, ".")) as inside:
        os.chmod(".", mode, dir_fd=inside.fd)


def quarantine(path: str, target: str) -> None:
    """Move the file or tree at a real path into quarantine, across file systems if need be.

    Durable on return, and at every moment in at least one of the two places.
    """
    make_dir(os.path.dirname(target))
    with Parent(path) as parent:
        try:
            os.rename(parent.name, target, src_dir_fd=parent.fd)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _move_over(parent, target)
        sync_dir(os.path.dirname(target))
        parent.sync()


def _move_over(parent: Parent, target: str) -> None:
    copy = target + TEMPORARY_SUFFIX  # a partial copy must not look complete
    copied: list[str] = []
    _copy_at(parent.name, parent.fd, copy, copied)
    sync_files(copied)
    os.rename(copy, target)
    sync_dir(os.path.dirname(target))
    if stat.S_ISDIR(_mode_at(parent.name, parent.fd)):
        _remove_tree_at(parent.name, parent.fd)
    else:
        _remove_at(parent.name, parent.fd)


def _remove_tree_at(name: str, parent: int) -> None:
    import shutil  # costs more to import than the rest of this module

    shutil.rmtree(name, dir_fd=parent)


def _copy_at(name: str, parent: int, target: str, copied: list[str]) -> None:
    """Copy an entry of an open directory with all below it, never through a link; `copied` gets the files."""
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(name, dir_fd=parent), target)
        return
    if stat.S_ISDIR(status.st_mode):
        os.mkdir(target, 0o700)
        fd = _open_at(name, _DIRECTORY, parent, name)
        try:
            for one in os.listdir(fd):
                _copy_at(one, fd, os.path.join(target, one), copied)
        finally:
            os.close(fd)
    else:
        _copy_file_at(name, parent, target)
        copied.append(target)
    os.chmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _copy_file_at(name: str, parent: int, target: str) -> None:
    source = _open_at(name, _READ, parent, name)
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", name)
        fd = create_file(target)
        try:
            while chunk := os.read(source, CHUNK):
                write_on(fd, chunk)
        finally:
            os.close(fd)
    finally:
        os.close(source)
