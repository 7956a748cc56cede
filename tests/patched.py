"""An invocation of rerail with a part of it replaced."""

from __future__ import annotations

import sys

from tests.conftest import Project

# The disk fails while there is a file `broken`; with `broken-once` it is full the next time that the journal is synced.
FAILING = """
import errno, os
from rerail.durable import AppendFile, files
sync = files.sync
def failing(fd):
    if os.path.exists("broken"):
        raise OSError(errno.EIO, "Input/output error")
    sync(fd)
files.sync = failing
sync_journal = AppendFile.sync
def full_once(self):
    if os.path.exists("broken-once"):
        os.unlink("broken-once")
        raise OSError(errno.ENOSPC, "No space left on device")
    sync_journal(self)
AppendFile.sync = full_once
write = files.write_all
def failing_too(fd, data, offset=0):
    if os.path.exists("broken"):
        raise OSError(errno.EIO, "Input/output error")
    write(fd, data, offset)
files.write_all = failing_too
import rerail.__main__
"""


def life(project: Project, *arguments: str, patch: str = FAILING) -> int:
    process = project.spawn(*arguments, program=(sys.executable, "-c", patch))
    process.communicate(timeout=120)
    return process.returncode
