"""Channels: files through which attempts report outputs, metrics and progress, in memory-backed storage if possible.

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

from rerail import durable, processes
from rerail.core.inflight import AttemptTrace
from rerail.core.values import Progress, Usage, parse_metrics, parse_outputs, parse_progress

OUTPUT, METRICS, PROGRESS = ".output", ".metrics", ".progress"
_ERROR = OUTPUT + ".error"
_DEATH = "death"  # when the owner of the run was seen to be gone
_OWNER = "owner"  # process that owns the run
_GUARD_SECONDS = 30.0  # to wait for a watchdog that has not been given the time to write `death`
_ORIGIN = "origin"  # the identity and the path of the lock of the run
_ACCOUNTS = (METRICS, PROGRESS, _DEATH, _ORIGIN, _OWNER)  # needed by the next invocation; all other files are raw content


class ChildError(msgspec.Struct):
    """Exception of a `python` child."""

    type: str
    message: str
    traceback: str


class ChannelContent(msgspec.Struct, kw_only=True):
    """Content of an attempt's channels. `wrong` says why its outputs are invalid; valid metrics are kept."""

    outputs: dict[str, Any] = {}
    usage: Usage = Usage()
    raised: ChildError | None = None
    wrong: str = ""
    warnings: tuple[str, ...] = ()


class DeadChannels:
    """Channels of attempts whose invocation is over, wherever they are.

    They are found by the process tag of the run, which follows it wherever it is moved, and by the invocation that the
    journal names: a copy of the run, or one that was moved to another disk, has the same. Channels that the original of a
    copied run may still need are read, and left where they are.
    """

    def __init__(self, mark: str, invocation: str = "", *, patient: bool = False) -> None:
        """Find the channels; if `patient`, wait for watchdogs that have not recorded the death of the owner yet."""
        own = _directories(_prefix(mark))
        lent = _directories(_common(), _digest(invocation)) if invocation else []
        lent = [place for place in lent if place not in own]
        self._places = [*own, *lent]
        self._ours = [*own, *(place for place in lent if _is_abandoned(place))]
        for place in self._places if patient else ():
            _wait_for_death(place)
        death = max(filter(None, map(_death, self._places)), default=None)
        self.died_at = death[0] if death else None
        self.died_after = death[1] if death else None

    @property
    def found(self) -> bool:
        """Whether there are any: not after a restart of the machine, nor on another one."""
        return bool(self._places)

    def of(self, name: str) -> AttemptTrace:
        """Return the trace of one attempt. The owner of a run outlives its attempts, or has them end with it."""
        for place in self._places:
            prefix = os.path.join(place, name)
            times = [at for ending in (METRICS, PROGRESS) if (at := _changed(prefix + ending)) is not None]
            if times:
                last = self.died_at or datetime.fromtimestamp(max(times), UTC)
                return AttemptTrace(usage=usage(prefix), progress=progress(prefix), last=last, most=self.died_after)
        return AttemptTrace(last=self.died_at, most=self.died_after)

    def strip(self) -> None:
        """Remove all files but metrics, progress and the notes about the end."""
        for place in self._ours:
            _strip(place)

    def remove(self) -> None:
        for place in self._ours:
            shutil.rmtree(place, ignore_errors=True)
        self._places = self._ours = []


class Channels:
    """Channel directory of one invocation.

    Channels of the last invocation, and metrics of attempts of this one, are removed once their content is in the
    journal, and not before: until then they are the only record of the cost.
    """

    def __init__(self, mark: str, invocation: str = "", previous: str = "", lock: str = "") -> None:
        """Find the channels of the last invocation.

        `lock` is the file whose identity is in the mark: while it has it, this run is where it was.
        """
        self._began = time.monotonic()
        self._prefix = f"{_prefix(mark)}{_digest(invocation)}-" if invocation else _prefix(mark)
        self._origin = f"{mark.rpartition('@')[2]} {lock}"
        self._directory = ""
        self._remains = DeadChannels(mark, previous, patient=True)
        self._remains.strip()
        self.died_at, self.died_after = self._remains.died_at, self._remains.died_after
        self.found = self._remains.found

    def left_by(self, name: str) -> AttemptTrace:
        """Return the trace of an attempt of an earlier invocation."""
        return self._remains.of(name)

    def taken_up(self) -> None:
        """Remove the channels of earlier invocations: their content is recorded."""
        self._remains.remove()

    def recorded(self, name: str) -> None:
        """Remove the metrics of an attempt of this invocation: they are recorded."""
        drop([os.path.join(self._directory, name + METRICS)])

    def seen(self, name: str) -> tuple[Usage, Progress | None]:
        """Return the usage and progress of a running attempt so far."""
        prefix = os.path.join(self._directory, name)
        return usage(prefix), progress(prefix)

    def of(self, name: str) -> tuple[str, dict[str, str]]:
        """Return the path prefix of one attempt's channel files, and the variables for its environment."""
        if not (self._directory and os.path.isdir(self._directory)):
            self._directory = _new_directory(self._prefix)
            notes = {_ORIGIN: os.fsencode(self._origin), _OWNER: str(os.getpid()).encode()}
            put({os.path.join(self._directory, name): note for name, note in notes.items()})
        prefix = os.path.join(self._directory, name)
        return prefix, {
            "RERAIL_OUTPUT": prefix + OUTPUT,
            "RERAIL_METRICS": prefix + METRICS,
            "RERAIL_PROGRESS": prefix + PROGRESS,
        }

    def close(self, *, recorded: bool) -> None:
        """Close the channels; unless all of it is `recorded`, leave metrics and progress to the next invocation."""
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
    """Record when the owner of a run was last alive, and how many seconds its invocation had lasted by then."""
    with contextlib.suppress(OSError):
        put({os.path.join(directory, _DEATH): f"{at} {after}".encode()})


def _wait_for_death(directory: str) -> None:
    """Wait until a watchdog has recorded the death of the owner, while there is one that can."""
    until = time.monotonic() + _GUARD_SECONDS
    while _death(directory) is None and time.monotonic() < until:
        try:
            owner = int(_take(os.path.join(directory, _OWNER)))
        except ValueError:
            return
        if not processes.is_guarded(owner):
            return
        time.sleep(0.005)


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
    """Write files that an attempt will read."""
    for path, data in files.items():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)


def drop(files: Iterable[str]) -> None:
    """Remove files, which may be missing."""
    for path in files:
        with contextlib.suppress(OSError):
            os.unlink(path)


def collect(prefix: str) -> ChannelContent:
    """Read the channels of an attempt, and remove them but for its metrics.

    Most are empty, which one listing of the directory shows.
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
    """Read the metrics and progress of an attempt: nothing in them can make the attempt fail."""
    used = Usage()
    warnings: tuple[str, ...] = ()
    try:
        used, warnings = parse_metrics(_take(prefix + METRICS))
        return used, (*warnings, *parse_progress(_take(prefix + PROGRESS))[1])
    except ValueError as error:
        return used, (*warnings, str(error))


def usage(prefix: str) -> Usage:
    """Return the usage that an attempt has reported so far."""
    try:
        return parse_metrics(_take(prefix + METRICS))[0]
    except ValueError:
        return Usage()


def progress(prefix: str) -> Progress | None:
    """Return the progress that a running attempt reports."""
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
    """Return the places that may be memory-backed storage, best first.

    The first is the same in every environment, so that a resume finds the channels: a session and cron differ in
    XDG_RUNTIME_DIR, which is also removed when its user logs out.
    """
    named = (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.getuid()}")
    return [place for place in dict.fromkeys(("/dev/shm", *named)) if place]


def _new_directory(prefix: str) -> str:
    """Create a directory with a name that cannot be guessed and taken first."""
    for place in _memory():
        with contextlib.suppress(OSError):  # missing, not writable, or full
            return tempfile.mkdtemp(prefix=prefix, dir=place)
    return tempfile.mkdtemp(prefix=prefix)


def _directories(prefix: str, holding: str = "", most: int | None = None) -> list[str]:
    """Return our channel directories by their names, in all places where an earlier invocation may have put them."""
    found: list[str] = []
    for place in dict.fromkeys(
        (*_memory(), *(os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")), "/tmp", "/var/tmp")
    ):
        with contextlib.suppress(OSError):
            names = [entry for entry in os.listdir(place or ".") if entry.startswith(prefix) and holding in entry]
            paths = (os.path.join(place, name) for name in names[:most])
            found += [path for path in paths if _is_private(path)]
    return found


def _is_private(path: str) -> bool:
    """Return whether it is a directory that only this user can write to: its name is no secret."""
    try:
        status = os.lstat(path)
    except OSError:  # removed since it was listed: it says nothing about the others
        return False
    shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not shared


def directory_of(mark: str) -> str:
    """Return the channel directory of a run with this process tag, or ''."""
    return next(iter(_directories(_prefix(mark))), "")


def wipe(mark: str) -> None:
    """Remove the channels of a run that will not be resumed: they are raw, and may hold secrets."""
    for path in _directories(_prefix(mark)):
        shutil.rmtree(path, ignore_errors=True)


def all_directories(most: int | None = None) -> list[str]:
    """Return the channel directories of all runs of this user, at most so many of each place."""
    return _directories(_common(), most=most)


def lock_of(place: str) -> str:
    """Return the lock file of the run that a channel directory was made for; '' if it is not known."""
    return _origin(place)[1]


def discard(place: str, *, whole: bool) -> None:
    """Remove the raw files of a channel directory whose owner is dead; with `whole` the directory itself."""
    if whole:
        shutil.rmtree(place, ignore_errors=True)
    else:
        _strip(place)


def _origin(place: str) -> tuple[str, str]:
    """Return the identity and the lock file of the run that a channel directory was made for."""
    try:
        identity, _, lock = os.fsdecode(_take(os.path.join(place, _ORIGIN))).partition(" ")
    except ValueError:
        return "", ""
    return identity, lock


def _is_abandoned(place: str) -> bool:
    """Return whether the run that a channel directory was made for is no longer where it was."""
    identity, lock = _origin(place)
    try:
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
