"""A glance at artifacts: what can be told without reading them. For showing, never for deciding."""

from __future__ import annotations

import os
import stat

from rerail.artifacts.content_store import Objects
from rerail.artifacts.paths import stamp_of, to_path
from rerail.artifacts.seal import joint_stamp, other_stamps
from rerail.core.events import ArtifactRecord
from rerail.walker import is_pattern


def state_of(record: ArtifactRecord, work_dir: str, objects: Objects | None) -> str:
    """intact, missing, empty, truncated, changed, wrong type; `touched` if only reading it could tell."""
    full = os.path.join(work_dir, to_path(record.path))
    if record.kind == "tree":
        return _tree(record, work_dir, objects)
    try:
        status = os.lstat(full)
    except OSError:
        return "missing"
    if not stat.S_ISREG(status.st_mode):
        return "wrong type"
    if stamp_of(status) == record.stamp:
        return "intact"
    if status.st_size != record.size:
        return "empty" if not status.st_size else "truncated" if status.st_size < record.size else "changed"
    return "touched"


def _tree(record: ArtifactRecord, work_dir: str, objects: Objects | None) -> str:
    full = os.path.join(work_dir, to_path(record.path))
    if not is_pattern(record.path) and not os.path.lexists(full):
        return "missing"
    entries = objects.manifest(record.manifest) if objects else None
    if entries is None:
        return "unproved"
    try:
        stamps = [
            (entry.path, stamp_of(os.lstat(os.path.join(work_dir, to_path(entry.path)))))
            for entry in entries
            if entry.kind == "file"
        ]
    except OSError:
        return "changed"
    return "intact" if joint_stamp([*stamps, *other_stamps(entries)]) == record.stamp else "touched"
