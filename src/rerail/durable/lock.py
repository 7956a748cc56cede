"""Locks on files, between processes."""

from __future__ import annotations

import errno
import fcntl
import os
import weakref

from rerail.durable.files import FILE_MODE, NOFOLLOW, remove_file, require_unshared, temporary_of, write_all


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
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | NOFOLLOW, FILE_MODE)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if unshare and os.fstat(self._fd).st_nlink > 1 and not self.is_gone():
                self._unshare()
            require_unshared(self._fd, path)
            if self.is_gone():
                raise BlockingIOError(errno.EAGAIN, "the lock file was replaced", path)
        except BaseException:
            self.release()
            raise
        _held.add(self)

    def _unshare(self) -> None:
        """Replace a lock file that has a second name by a new one."""
        temporary = temporary_of(self._path)
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | NOFOLLOW, FILE_MODE)
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


class SharedLock:
    """Lock that is shared by users of files that must stay, and exclusive for the removal of some."""

    def __init__(self, path: str, *, alone: bool = False, wait: bool = False) -> None:
        """Take the lock, shared or `alone`; alone without `wait`, raise BlockingIOError if others hold it."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | NOFOLLOW, FILE_MODE)
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)) if alone else fcntl.LOCK_SH)
        except BaseException:
            os.close(self._fd)
            raise

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A forked child shares the lock: it would outlive its parent and keep the run busy.
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
