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
import weakref

FILE_MODE = 0o600
DIR_MODE = 0o700
TEMPORARY_SUFFIX = ".rerail-tmp"

_counter = itertools.count(1)
_NOFOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_AT_ONCE = 0x7FFF_F000  # bytes that one read of Linux gives


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
    fd = os.open(path, os.O_RDONLY | _NOFOLLOW)
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
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW, mode)


def set_length(path: str, length: int) -> None:
    """Create a file or change its length; the content does not matter. Not durable."""
    fd = _open_own(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.ftruncate(fd, length)
    finally:
        os.close(fd)


class AppendFile:
    """New file for appending, with space that is written in advance.

    A sync then has no file size to make durable, which halves its cost; and a disk that fills up does not fail
    the next few records. The space is filled with newlines: a reader of lines ignores them.
    """

    PAD = b"\n"
    PAGE = 4096
    STEP = 64 * 1024  # at most: an invocation that is killed early must not leave much for all later ones to read

    def __init__(self, path: str, data: bytes) -> None:
        """Create the file, which must not exist, with its first content; durable but for its name."""
        self._path = path
        self._fd = create_file(path)
        self.length = 0
        self._capacity = 0
        try:
            self.append(data)
            self.sync()
        except BaseException:
            os.close(self._fd)
            raise

    def append(self, data: bytes) -> None:
        """Write at the end; not durable before `sync`."""
        end = self.length + len(data)
        if end > self._capacity:
            step = min(max(3 * self._capacity, self.PAGE), self.STEP)  # small steps at first, then large ones
            capacity = end + step - end % step
            write_all(self._fd, data + self.PAD * (capacity - end), self.length)
            self._capacity = capacity
        else:
            write_all(self._fd, data, self.length)
        self.length = end

    def sync(self) -> None:
        sync(self._fd)

    def is_gone(self) -> bool:
        """Return whether the file was removed while it was open.

        Checks the name, not the file's status: since Linux 6.13 a file whose times were read gets new ones
        with the next write, and every sync would have to make those durable too (measured: half as slow again).
        Where that says no, the status has the last word: `access` goes by the real user, who may have fewer rights.
        """
        return not os.access(self._path, os.F_OK) and not os.path.exists(self._path)

    def close(self) -> None:
        """Release the unused space and close; synced data stays, even if this fails."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self.length)
        with contextlib.suppress(OSError):
            os.close(self._fd)


def write_new(path: str, data: bytes, mode: int = FILE_MODE) -> None:
    """Create a file with this content, durable but for its name."""
    fd = create_file(path, mode)
    try:
        write_all(fd, data)
        sync(fd)
    finally:
        os.close(fd)


def replace_file(path: str, data: bytes, *, keep_as: str = "", mode: int = FILE_MODE, writer: str = "") -> None:
    """Replace the content of a file, all or nothing, durable on return.

    With `keep_as` the old content stays under that name. There is never a moment without a file at `path`. In a directory
    without a clean-up, `writer` identifies the process: the temporary file of a killed one is replaced by its successor.
    """
    # A name of its own: two writers of one path must never publish each other's half-written file.
    temporary = writer_temporary(path, writer) if writer else f"{path}.{os.getpid()}-{next(_counter)}{TEMPORARY_SUFFIX}"
    if writer:
        remove_file(temporary)
    try:
        write_new(temporary, data, mode)
        if keep_as:
            with contextlib.suppress(OSError):  # not every file system has links; then the old content is not kept
                os.link(path, keep_as, follow_symlinks=False)
        os.rename(temporary, path)
    except BaseException:
        remove_file(temporary)
        raise
    sync_dir(os.path.dirname(path))


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
    temporary = f"{path}.{os.getpid()}-{next(_counter)}{TEMPORARY_SUFFIX}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW, FILE_MODE)
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
    fd = os.open(path, flags | os.O_NONBLOCK | _NOFOLLOW, FILE_MODE)
    try:
        _reject_shared(fd, path)
    except OSError:
        os.close(fd)
        raise
    return fd


def _reject_shared(fd: int, path: str) -> None:
    """Reject anything but a regular file with a single hard link; raise OSError."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    if status.st_nlink > 1:
        raise OSError(errno.EMLINK, "has a second name (a hard link), so it is not written to", path)


def remove_tree(path: str) -> None:
    """Remove a directory with all its content, without following links out of it."""
    _remove_tree(path)


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
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _NOFOLLOW)
    try:
        size = _regular_size(fd, path)
        if size >= _MOST_AT_ONCE:  # joining what several reads gave would take as much memory again
            return io.FileIO(fd, closefd=False).readall()
        chunks = []
        while chunk := os.read(fd, max(size + 1, 1 << 16)):
            chunks.append(chunk)
        return b"".join(chunks)
    finally:
        os.close(fd)


def open_to_read(path: str) -> io.BufferedReader:
    """Open a regular file for reading; a FIFO, device, directory or link is an error, never a wait."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _NOFOLLOW)
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


class Lock:
    """Exclusive lock on a file, released by the kernel when this process dies, however it dies.

    The file is never removed: two processes could then hold locks on two files of the same name.
    """

    def __init__(self, path: str, *, unshare: bool = False) -> None:
        """Take the lock; raise BlockingIOError if another process holds it.

        A file that has a second name (`cp -al` of a project) is rejected, or with `unshare` replaced by a new one.
        Both are held then: a process that uses the other name is locked out until this one is released.
        """
        self._path = path
        self._label_bytes = 0
        self.former = ""  # the identity before it was replaced
        self._former_fd = -1
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | _NOFOLLOW, FILE_MODE)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if unshare and os.fstat(self._fd).st_nlink > 1 and not self.is_gone():
                self._unshare()
            _reject_shared(self._fd, path)
            if self.is_gone():
                raise BlockingIOError(errno.EAGAIN, "the lock file was replaced", path)
        except BaseException:
            self.release()
            raise
        _held.add(self)

    def _unshare(self) -> None:
        """Replace a lock file that has a second name by a new one."""
        temporary = f"{self._path}.{os.getpid()}-{next(_counter)}{TEMPORARY_SUFFIX}"
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NOFOLLOW, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_all(fd, os.pread(self._fd, 1 << 16, 0))
            os.rename(temporary, self._path)
        except BaseException:
            os.close(fd)
            remove_file(temporary)
            raise
        self.former = self.identity
        self._former_fd, self._fd = self._fd, fd

    @property
    def held(self) -> bool:
        return self._fd >= 0

    def is_gone(self) -> bool:
        """Return whether its name is gone, or another file's: then another process may hold a lock of the same name."""
        if self._fd < 0:
            return True
        held = os.fstat(self._fd)
        try:
            there = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return True
        return (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino)

    def moved_to(self, path: str) -> None:
        """Note the new path after this process renamed its directory."""
        self._path = path

    def label(self, data: bytes) -> None:
        """Write the owner into the lock file, for readers; one write, so that they see the old text or the new one."""
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))
        self._label_bytes = len(data)

    def add_to_label(self, data: bytes) -> None:
        """Write more after the label."""
        os.pwrite(self._fd, data, self._label_bytes)

    @property
    def identity(self) -> str:
        """Identity of this very file: the same wherever it is moved, another for a copy."""
        status = os.fstat(self._fd)
        return f"{status.st_dev}:{status.st_ino}"

    def release(self) -> None:
        for fd in (self._fd, self._former_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._former_fd = -1


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A forked child shares the lock: it would outlive its parent and keep the run busy.
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
