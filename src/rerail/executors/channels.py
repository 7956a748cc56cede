"""Files through which attempts hand values out, kept in memory-backed storage where there is any.

They are written raw by the step, so they must not survive on a disk, and they are removed as they are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from rerail.core.events import Metrics
from rerail.core.values import parse_metrics, parse_outputs

OUTPUT, METRICS, PROGRESS = ".output", ".metrics", ".progress"
_ERROR = OUTPUT + ".error"


class ChildError(msgspec.Struct):
    """What a `python` child says about its exception."""

    type: str
    message: str
    traceback: str


class Channels:
    """The channel directory of one life of a run. A new life wipes what the last one left."""

    def __init__(self, mark: str) -> None:
        name = f"rerail-{os.getuid()}-{hashlib.sha256(mark.encode()).hexdigest()[:16]}"
        self.directory = os.path.join(_memory_backed(), name)
        self._ready = False

    def of(self, name: str) -> tuple[str, dict[str, str]]:
        """The path prefix of one attempt's channel files, and the variables that tell the attempt."""
        if not self._ready:
            shutil.rmtree(self.directory, ignore_errors=True)
            os.makedirs(self.directory, mode=0o700)
            self._ready = True
        prefix = os.path.join(self.directory, name)
        return prefix, {
            "RERAIL_OUTPUT": prefix + OUTPUT,
            "RERAIL_METRICS": prefix + METRICS,
            "RERAIL_PROGRESS": prefix + PROGRESS,
        }

    def close(self) -> None:
        if self._ready:
            shutil.rmtree(self.directory, ignore_errors=True)


def put(files: Mapping[str, bytes]) -> None:
    """Lay out files that an attempt will read."""
    for path, data in files.items():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)


def drop(files: Iterable[str]) -> None:
    """Remove them again."""
    for path in files:
        with contextlib.suppress(OSError):
            os.unlink(path)


def collect(prefix: str) -> tuple[dict[str, Any], Metrics, ChildError | None]:
    """Read and remove what an attempt handed out; ValueError if it makes no sense."""
    try:
        outputs = parse_outputs(_take(prefix + OUTPUT))
        metrics = parse_metrics(_take(prefix + METRICS))
        raw = _take(prefix + _ERROR)
        error = msgspec.json.decode(raw, type=ChildError) if raw else None
    finally:
        for ending in (OUTPUT, METRICS, PROGRESS, _ERROR):
            with contextlib.suppress(OSError):
                os.unlink(prefix + ending)
    return outputs, metrics, error


def _take(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ValueError(f"{os.path.basename(path)} cannot be read: {error.strerror}") from None
    try:
        with open(fd, "rb") as file:
            return file.read(2_000_000)
    except OSError as error:
        raise ValueError(f"{os.path.basename(path)} cannot be read: {error.strerror}") from None


def _memory_backed() -> str:
    for candidate in (os.environ.get("XDG_RUNTIME_DIR", ""), "/dev/shm"):
        if candidate and os.path.isdir(candidate) and os.access(candidate, os.W_OK | os.X_OK):
            return candidate
    return tempfile.gettempdir()
