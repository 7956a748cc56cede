"""Files and directories of the state: created, written, replaced, moved, removed and read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import itertools
import os
import stat
import sys
import time

FILE_MODE = 0o600
DIR_MODE = 0o700
TEMPORARY_SUFFIX = ".rerail-tmp"

_counter = itertools.count(1)
NOFOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_READ = 0x7FFF_F000  # bytes that one read of Linux gives


def sync(fd: int) -> None:
    """Force the data of an open file to the disk itself."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def sync_dir(path: str) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_existing(path: str) -> None:
    """Force a file to the disk that another process may have written and never synced."""
    fd = os.open(path, os.O_RDONLY | NOFOLLOW)
    try:
        sync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes, offset: int = 0) -> None:
    """Write every byte at an offset; a short write is continued, no progress is an error."""
    written = os.pwrite(fd, data, offset)
    while written < len(data):
        more = os.pwrite(fd, memoryview(data)[written:], offset + written)
        if more == 0:
            raise OSError(errno.EIO, "the operating system wrote nothing")
        written += more


def make_dir(path: str) -> None:
    """Create a directory and those above it that are missing, each durable in its parent."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    make_dir(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, DIR_MODE)
    sync_dir(parent)


def new_dir(path: str) -> None:
    """Create a directory that must not exist. Its name is not durable yet."""
    os.mkdir(path, DIR_MODE)


def create_file(path: str, mode: int = FILE_MODE) -> int:
    """Create a file that must not exist; return it open for writing. Its name is not durable yet."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW, mode)


def set_length(path: str, length: int) -> None:
    """Create a file or change its length; the content does not matter. Not durable."""
    fd = _open_own(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.ftruncate(fd, length)
    finally:
        os.close(fd)


def write_new(path: str, data: bytes, mode: int = FILE_MODE, *, ignores_umask: bool = False) -> None:
    """Create a file with this content, durable but for its name."""
    fd = create_file(path, mode)
    try:
        if ignores_umask:
            os.fchmod(fd, mode)
        write_all(fd, data)
        sync(fd)
    finally:
        os.close(fd)


def replace_file(
    path: str,
    data: bytes,
    *,
    keep_as: str = "",
    mode: int = FILE_MODE,
    ignores_umask: bool = False,
    writer: str = "",
) -> None:
    """Replace the content of a file, all or nothing, durable on return.

    With `keep_as` the old content stays under that name. There is never a moment without a file at `path`. In a directory
    without a clean-up, `writer` identifies the process: the temporary file of a killed one is replaced by its successor.
    """
    # A name of its own: two writers of one path must never publish each other's half-written file.
    temporary = writer_temporary(path, writer) if writer else temporary_of(path)
    if writer:
        remove_file(temporary)
    try:
        write_new(temporary, data, mode, ignores_umask=ignores_umask)
        if keep_as:
            with contextlib.suppress(OSError):  # not every file system has links; then the old content is not kept
                os.link(path, keep_as, follow_symlinks=False)
        os.rename(temporary, path)
    except BaseException:
        remove_file(temporary)
        raise
    sync_dir(os.path.dirname(path))


def temporary_of(path: str) -> str:
    """Return a new name next to a path for its content while it is written."""
    return f"{path}.{os.getpid()}-{next(_counter)}{TEMPORARY_SUFFIX}"


def writer_temporary(path: str, writer: str) -> str:
    """Return the name of the temporary file of one writer for a path."""
    import hashlib

    directory, name = os.path.split(path)
    label = hashlib.sha256(f"{writer}/{name}".encode(errors="surrogateescape")).hexdigest()[:16]
    return os.path.join(directory, f".{label}{TEMPORARY_SUFFIX}")


def append_line(path: str, line: bytes) -> int:
    """Append one line to a cache that several processes write; return the new length of the file. Not synced."""
    fd = _open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(fd, line)  # one write, so that lines of two writers do not mix
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def replace_cache(path: str, data: bytes) -> None:
    """Replace a cache, all or nothing. Not synced: a lost cache is made again."""
    temporary = temporary_of(path)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW, FILE_MODE)
    try:
        try:
            write_all(fd, data)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException:
        remove_file(temporary)
        raise


def move_file(path: str, target: str) -> None:
    """Rename a file within one directory tree; durable on return."""
    os.rename(path, target)
    sync_dir(os.path.dirname(target))
    if os.path.dirname(path) != os.path.dirname(target):
        sync_dir(os.path.dirname(path))


def publish_dir(path: str, target: str) -> None:
    """Give a finished directory its public name; durable on return. Raise FileExistsError if it is taken."""
    sync_dir(path)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "exists", target)
    try:
        os.rename(path, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError(errno.EEXIST, "exists", target) from error
        raise
    sync_dir(os.path.dirname(target))


def remove_file(path: str) -> None:
    """Remove a file that may be missing."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_temporaries(directory: str, *, older_than: float = 0.0) -> None:
    """Remove the temporary files of writers that died here; where other writers are alive, only old ones."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir(directory):
            path = os.path.join(directory, entry)
            if entry.endswith(TEMPORARY_SUFFIX) and (not older_than or time.time() - os.stat(path).st_mtime > older_than):
                remove_file(path)


def _open_own(path: str, flags: int) -> int:
    """Open a file for writing that may exist; reject anything but a regular file with a single hard link."""
    fd = os.open(path, flags | os.O_NONBLOCK | NOFOLLOW, FILE_MODE)
    try:
        require_unshared(fd, path)
    except OSError:
        os.close(fd)
        raise
    return fd


def require_unshared(fd: int, path: str) -> None:
    """Reject anything but a regular file with a single hard link; raise OSError."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    if status.st_nlink > 1:
        raise OSError(errno.EMLINK, "has a second name (a hard link), so it is not written to", path)


_REMOVALS = 20  # attempts beside others that remove the same tree


def remove_tree(path: str) -> None:
    """Remove a directory with all its content, without following links out of it.

    Several processes may remove the same one: a run that is deleted, and left-overs that are tidied up.
    """
    os.lstat(path)  # a missing one is an error
    for _ in range(_REMOVALS):
        try:
            return _remove_tree(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
            if not os.path.lexists(path):
                return None
    return _remove_tree(path)


def _remove_tree(path: str) -> None:
    import shutil  # costs more to import than the rest of this module

    shutil.rmtree(path)


def open_log(path: str) -> int:
    """Open the log file of an attempt; it is not state, so it is not synced."""
    return _open_own(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)


def reserve_space(path: str, size: int) -> None:
    """Reserve disk space, so that a full disk can still take the record of why the run stopped."""
    fd = _open_own(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, size) if hasattr(os, "posix_fallocate") else os.ftruncate(fd, size)
    finally:
        os.close(fd)


def read_start(path: str, most: int) -> bytes:
    """Return the first bytes of a regular file, however long it is."""
    with open_to_read(path) as file:
        return file.read(most)


def read_file(path: str) -> bytes:
    """Return the content of a regular file; a FIFO, device, directory or link is an error, never a wait."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | NOFOLLOW)
    try:
        size = _regular_size(fd, path)
        if size >= _MAX_READ:  # joining what several reads gave would take as much memory again
            return io.FileIO(fd, closefd=False).readall()
        chunks = []
        while chunk := os.read(fd, max(size + 1, 1 << 16)):
            chunks.append(chunk)
        return b"".join(chunks)
    finally:
        os.close(fd)


def open_to_read(path: str) -> io.BufferedReader:
    """Open a regular file for reading; a FIFO, device, directory or link is an error, never a wait."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | NOFOLLOW)
    try:
        _regular_size(fd, path)
    except OSError:
        os.close(fd)
        raise
    return open(fd, "rb")


def _regular_size(fd: int, path: str) -> int:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    return status.st_size
