"""Files through which attempts hand values out, kept in memory-backed storage where there is any.

They are written raw by the step, so they must not survive on a disk; they are removed as they are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from rerail import durable
from rerail.core.inflight import AttemptTrace
from rerail.core.values import Progress, Usage, parse_metrics, parse_outputs, parse_progress

OUTPUT, METRICS, PROGRESS = ".output", ".metrics", ".progress"
_ERROR = OUTPUT + ".error"
_DEATH = "death"  # when the process that drove the run was seen to be gone
_ORIGIN = "origin"  # the identity and the path of the lock of the run
_ACCOUNTS = (METRICS, PROGRESS, _DEATH, _ORIGIN)  # what the next life has to know; all else that is left is only raw


class ChildError(msgspec.Struct):
    """What a `python` child says about its exception."""

    type: str
    message: str
    traceback: str


class ChannelContent(msgspec.Struct, kw_only=True):
    """What an attempt handed out. `wrong` says why its outputs make no sense; metrics keep what does."""

    outputs: dict[str, Any] = {}
    usage: Usage = Usage()
    raised: ChildError | None = None
    wrong: str = ""
    warnings: tuple[str, ...] = ()


class DeadChannels:
    """What the attempts of a run left whose invocation is over, wherever that was.

    It is found by the mark of the run, which follows it wherever it is moved, and by the invocation that the journal
    names: a copy of the run, or one that was moved to another disk, has the same. What the run that it was copied from
    may still need is read, and left where it is.
    """

    def __init__(self, mark: str, invocation: str = "") -> None:
        own = _directories(_prefix(mark))
        lent = [place for place in _directories(_common()) if invocation and _digest(invocation) in place]
        lent = [place for place in lent if place not in own]
        self._places = [*own, *lent]
        self._ours = [*own, *(place for place in lent if _is_abandoned(place))]
        death = max(filter(None, map(_death, self._places)), default=None)
        self.died_at = death[0] if death else None
        self.died_after = death[1] if death else None

    @property
    def found(self) -> bool:
        """Whether there is anything to go by: not after a restart of the machine, nor on another one."""
        return bool(self._places)

    def of(self, name: str) -> AttemptTrace:
        """What one attempt left. Whoever drives a run outlives its attempts, or sees to it that they end with him."""
        for place in self._places:
            prefix = os.path.join(place, name)
            times = [at for ending in (METRICS, PROGRESS) if (at := _changed(prefix + ending)) is not None]
            if times:
                last = self.died_at or datetime.fromtimestamp(max(times), UTC)
                return AttemptTrace(usage=usage(prefix), progress=progress(prefix), last=last, most=self.died_after)
        return AttemptTrace(last=self.died_at, most=self.died_after)

    def strip(self) -> None:
        """Remove what is only raw."""
        for place in self._ours:
            _strip(place)

    def remove(self) -> None:
        for place in self._ours:
            shutil.rmtree(place, ignore_errors=True)
        self._places = self._ours = []


class Channels:
    """The channel directory of one life of a run.

    What the last life left, and what attempts of this one have counted, is removed when that is in the journal, and not
    before: until then it is all there is to say what they cost.
    """

    def __init__(self, mark: str, invocation: str = "", previous: str = "", lock: str = "") -> None:
        """`lock` is the file that has the identity in the mark: while it does, this run is where it was."""
        self._began = time.monotonic()
        self._prefix = f"{_prefix(mark)}{_digest(invocation)}-" if invocation else _prefix(mark)
        self._origin = f"{mark.rpartition('@')[2]} {lock}"
        self._directory = ""
        self._remains = DeadChannels(mark, previous)
        self._remains.strip()
        self.died_at, self.died_after = self._remains.died_at, self._remains.died_after
        self.found = self._remains.found

    def left_by(self, name: str) -> AttemptTrace:
        """What an attempt left that an earlier life has lost."""
        return self._remains.of(name)

    def taken_up(self) -> None:
        """What earlier lives left is recorded."""
        self._remains.remove()

    def recorded(self, name: str) -> None:
        """What an attempt of this life counted is."""
        drop([os.path.join(self._directory, name + METRICS)])

    def seen(self, name: str) -> tuple[Usage, Progress | None]:
        """What an attempt that runs has counted by now, and how far it says it is."""
        prefix = os.path.join(self._directory, name)
        return usage(prefix), progress(prefix)

    def of(self, name: str) -> tuple[str, dict[str, str]]:
        """The path prefix of one attempt's channel files, and the variables that tell the attempt."""
        if not (self._directory and os.path.isdir(self._directory)):
            self._directory = _new_directory(self._prefix)
            put({os.path.join(self._directory, _ORIGIN): os.fsencode(self._origin)})
        prefix = os.path.join(self._directory, name)
        return prefix, {
            "RERAIL_OUTPUT": prefix + OUTPUT,
            "RERAIL_METRICS": prefix + METRICS,
            "RERAIL_PROGRESS": prefix + PROGRESS,
        }

    def close(self, *, recorded: bool) -> None:
        """This life is over. If it could not record all that happened, the next one has to."""
        if recorded:
            self._remains.remove()
            if self._directory:
                shutil.rmtree(self._directory, ignore_errors=True)
        elif self._directory:
            _strip(self._directory)
            note_death(self._directory, time.time(), time.monotonic() - self._began)


def _strip(place: str) -> None:
    with contextlib.suppress(OSError):
        drop(os.path.join(place, entry) for entry in os.listdir(place) if not entry.endswith(_ACCOUNTS))


def note_death(directory: str, at: float, after: float) -> None:
    """Write down when the process that drove a run was last alive, and for how many seconds it had driven it by then."""
    with contextlib.suppress(OSError):
        put({os.path.join(directory, _DEATH): f"{at} {after}".encode()})


def _death(directory: str) -> tuple[datetime, float] | None:
    try:
        at, after = map(float, _take(os.path.join(directory, _DEATH)).split())
        return datetime.fromtimestamp(at, UTC), after
    except (ValueError, OverflowError, OSError):
        return None


def _changed(path: str) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


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


def collect(prefix: str) -> ChannelContent:
    """Read what an attempt handed out, and remove it but for its metrics.

    Most hand out nothing, which one look at the directory tells.
    """
    handed = ChannelContent()
    directory, name = os.path.split(prefix)
    try:
        there = [entry for entry in os.listdir(directory) if entry.startswith(name)]
    except OSError:
        there = []
    if not there:
        return handed
    handed.usage, handed.warnings = _asides(prefix)
    try:
        raw = _take(prefix + _ERROR)
        handed.raised = msgspec.json.decode(raw, type=ChildError) if raw else None
        handed.outputs = parse_outputs(_take(prefix + OUTPUT))
    except (ValueError, msgspec.DecodeError) as error:
        handed.wrong = str(error)
    finally:
        drop(prefix + ending for ending in (OUTPUT, PROGRESS, _ERROR))
    return handed


def _asides(prefix: str) -> tuple[Usage, tuple[str, ...]]:
    """What an attempt counted and how far it said it was: nothing in it can make the attempt fail."""
    used = Usage()
    warnings: tuple[str, ...] = ()
    try:
        used, warnings = parse_metrics(_take(prefix + METRICS))
        return used, (*warnings, *parse_progress(_take(prefix + PROGRESS))[1])
    except ValueError as error:
        return used, (*warnings, str(error))


def usage(prefix: str) -> Usage:
    """What a running attempt has counted by now."""
    try:
        return parse_metrics(_take(prefix + METRICS))[0]
    except ValueError:
        return Usage()


def progress(prefix: str) -> Progress | None:
    """How far a running attempt says it is."""
    try:
        with durable.open_to_read(prefix + PROGRESS) as file:
            file.seek(max(os.fstat(file.fileno()).st_size - 4096, 0))
            return parse_progress(file.read(4096))[0]
    except (OSError, ValueError):
        return None


def _take(path: str) -> bytes:
    try:
        with durable.open_to_read(path) as file:
            return file.read(2_000_000)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ValueError(f"{os.path.basename(path)} cannot be read: {error.strerror}") from None


def _memory() -> list[str]:
    """Where there may be memory-backed storage, the best place first.

    That is where every environment looks, so that whoever resumes finds what was left: a session and cron differ in
    XDG_RUNTIME_DIR, which is also removed when its user logs out.
    """
    named = (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.getuid()}")
    return [place for place in dict.fromkeys(("/dev/shm", *named)) if place]


def _new_directory(prefix: str) -> str:
    """A directory with a name nobody can guess and take first."""
    for place in _memory():
        with contextlib.suppress(OSError):  # there is none, it is not ours to write to, or it is full
            return tempfile.mkdtemp(prefix=prefix, dir=place)
    return tempfile.mkdtemp(prefix=prefix)


def _directories(prefix: str) -> list[str]:
    """The channel directories of ours whose names begin so, wherever an earlier life may have had to put them."""
    found = []
    for place in dict.fromkeys(
        (*_memory(), *(os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")), "/tmp", "/var/tmp")
    ):
        with contextlib.suppress(OSError):
            paths = [os.path.join(place, entry) for entry in os.listdir(place or ".") if entry.startswith(prefix)]
            found += [path for path in paths if _is_private(path)]
    return found


def _is_private(path: str) -> bool:
    """Whether it is a directory in which nobody but us can have put something: its name is no secret."""
    status = os.lstat(path)
    shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not shared


def directory_of(mark: str) -> str:
    """The channel directory of a run with this mark, or ''."""
    return next(iter(_directories(_prefix(mark))), "")


def wipe(mark: str) -> None:
    """Remove what the attempts of a run left that nobody will resume: it is raw, and may hold secrets."""
    for path in _directories(_prefix(mark)):
        shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(place: str) -> bool:
    """Whether the run that a channel directory was made for is no longer where it was."""
    try:
        identity, _, lock = os.fsdecode(_take(os.path.join(place, _ORIGIN))).partition(" ")
        status = os.stat(lock)
    except (OSError, ValueError):
        return True
    return identity != f"{status.st_dev}:{status.st_ino}"


def _common() -> str:
    return f"rerail-{os.getuid()}-"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _prefix(mark: str) -> str:
    return f"{_common()}{_digest(mark)}-"
