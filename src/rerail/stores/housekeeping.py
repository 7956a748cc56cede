"""Housekeeping of a state directory: names of its parts, left-overs of dead processes, permissions, links."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from rerail import durable
from rerail.errors import StateDamaged

HEADER = "run.json"
NEW, GONE = ".new-", ".gone-"  # what names begin with that are no runs: not yet, or not any more
STALE_SECONDS = 3600
PARTS = ("logs", "history", "results", "staging", "quarantine", "inbox")  # the directories of a run
RELEASED = b"released"  # stands below the name of the owner in the lock file once that has let go
UNSYNCED = b", not synced"  # stands behind it if something was written that may not be on the disk


def content_dir(root: str) -> str:
    """Return where the copies of artifacts are in a state directory."""
    return os.path.join(root, "objects")


def claims_dir(root: str) -> str:
    """Return where the claims of live runs are in a state directory."""
    return os.path.join(root, "claims")


def results_file(path: str, name: str) -> str:
    """Return where a run directory has the results of a map."""
    return os.path.join(path, "results", f"{name}.jsonl")


def release(lock: durable.Lock, *, synced: bool = True) -> None:
    """Release a lock, and note that in its file: the process that held it may go on with other work."""
    with contextlib.suppress(OSError):
        lock.add_to_label(RELEASED + (b"" if synced else UNSYNCED) + b"\n")
    lock.release()


def remove_abandoned(root: str, runs: str) -> None:
    """Remove left-overs of processes that died while they created or deleted a run, or replaced the index."""
    for entry in os.listdir(runs):
        if entry.startswith((NEW, GONE)):
            _remove_abandoned(os.path.join(runs, entry))
    durable.remove_temporaries(root, older_than=STALE_SECONDS)


def _remove_abandoned(path: str) -> None:
    """Remove the left-over of a process that died while it created or deleted a run."""
    with contextlib.suppress(OSError):
        new = os.path.basename(path).startswith(NEW)
        if new and time.time() - os.stat(path).st_mtime < STALE_SECONDS:
            return
        lock = durable.Lock(os.path.join(path, "lock"))
        try:
            durable.remove_tree(path)
        finally:
            lock.release()


def check_real_directory(path: str) -> None:
    """Raise StateDamaged for a link where a part of the run directory should be: state is never written through one."""
    for name in PARTS:
        place = os.path.join(path, name)
        if os.path.islink(place):
            raise StateDamaged(f"{place}: is a link, and state is never written through one", hint=f"rm {place}")


def check_permissions(root: str, *below: str) -> None:
    """Raise PermissionError for a directory that every user may write to: every user would decide which commands run.

    `below` are further directories that count, where they exist. Unless all files look like that: some file systems
    know no permissions and show every one.
    """
    for place in (root, *below):
        with contextlib.suppress(FileNotFoundError):
            if os.stat(place).st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH and _knows_permissions(root):
                raise PermissionError(errno.EPERM, f"everybody may write to {place}, and so decide what runs", place)


def _knows_permissions(root: str) -> bool:
    try:
        return not os.stat(os.path.join(root, ".gitignore")).st_mode & stat.S_IWOTH
    except FileNotFoundError:
        return True


def tree_bytes(path: str) -> int:
    """Count the bytes of a directory on the disk, as far as it can be read."""
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_blocks * 512
            except OSError:
                continue
    return total
