"""The logs of a run directory: files below `logs/`, read by name."""

from __future__ import annotations

import contextlib
import os

from rerail import durable
from rerail.ports import LogFile


class DirectoryLogs:
    """Logs as files below a directory."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def files(self) -> list[LogFile]:
        found = []
        with contextlib.suppress(OSError):
            for name in os.listdir(self.directory):
                file = self.stat(name)
                if file is not None:
                    found.append(file)
        return sorted(found, key=lambda file: file.modified)

    def stat(self, name: str) -> LogFile | None:
        try:
            status = os.stat(os.path.join(self.directory, name))
        except OSError:
            return None
        return LogFile(name=name, size=status.st_size, modified=status.st_mtime_ns)

    def read(self, name: str, offset: int, size: int) -> bytes:
        try:
            with durable.open_to_read(os.path.join(self.directory, name)) as file:
                file.seek(offset)
                return file.read(size)
        except OSError:
            return b""
