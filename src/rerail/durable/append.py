"""Files that only grow, a record at a time: the journal."""

from __future__ import annotations

import contextlib
import os

from rerail.durable import files


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
        self._fd = files.create_file(path)
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
            files.write_all(self._fd, data + self.PAD * (capacity - end), self.length)
            self._capacity = capacity
        else:
            files.write_all(self._fd, data, self.length)
        self.length = end

    def sync(self) -> None:
        files.sync(self._fd)

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
