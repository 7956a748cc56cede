"""Visits every state a crash can leave, puts it on a disk for real, and asks a judge what it thinks of it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from rerail.durable import TEMPORARY_SUFFIX
from tests.lab.disk import MODELS, CrashState, Disk, Files, crash_states
from tests.lab.faults import Op

_TEMPORARY = re.compile(r"\.\d+-\d+(?=\.[^.]*$)")

Judge = Callable[[str, Sequence[str]], str]
"""Is given a directory and what had happened outside; says what is wrong there, or '' if nothing is."""


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A state that should not have been possible, with all that is needed to see it again."""

    complaint: str
    label: str
    after: int  # operations
    seed: int
    notes: tuple[str, ...]
    files: dict[str, bytes | None]

    def __str__(self) -> str:
        return f"after operation {self.after}, {self.label} (seed {self.seed}): {self.complaint}"

    def save(self, directory: str | Path) -> str:
        """Keep it as a fixture, to be replayed; its path."""
        path = Path(directory) / f"crash-{self.seed}-{self.after}-{zlib.crc32(self.label.encode()):08x}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)))
        return str(path)


def put(state: CrashState, directory: str | Path) -> None:
    """Make a directory be what a crash left, and nothing else."""
    _Place(str(directory)).put(state.files)


def replay(fixture: str | Path, place: str | Path, judge: Judge) -> str:
    """Put the state of a fixture into an empty directory and ask the judge again."""
    violation = msgspec.json.decode(Path(fixture).read_bytes(), type=Violation)
    _Place(str(place)).put(violation.files)
    return judge(str(place), violation.notes)


class Explorer:
    """Remembers what it has seen: a state is judged once, however many crashes lead to it."""

    def __init__(self, place: str | Path, judge: Judge, *, seed: int = 1, most_violations: int = 5) -> None:
        """`place` is a scratch directory; put it on a memory-backed file system if there is one."""
        self.violations: list[Violation] = []
        self._place = _Place(str(place))
        self._judge = judge
        self._seed = seed
        self._most_violations = most_violations
        self._judged: set[tuple[bytes, tuple[str, ...]]] = set()
        self.seen: set[bytes] = set()  # a digest of each; the same in every process

    @property
    def states(self) -> int:
        """How many different directories were looked at."""
        return len(self.seen)

    def explore(
        self,
        top: str | Path,
        ops: Sequence[Op],
        *,
        since: int = 0,
        start: CrashState | None = None,
        share: float = 1.0,
        found: list[CrashState] | None = None,
    ) -> None:
        """Judge what a power cut after any operation from `since` on can leave of what is below `top`.

        `start` is the state the operations began with, if it was not an empty directory. With a `share` below 1 only so
        many states are judged, chosen by the seed. Those that were new are added to `found`; they take memory.
        """
        below = str(top).rstrip("/") + "/"
        done = [op.path for op in ops if op.kind != "note"]
        if done and not any(path.startswith(below) for path in done):
            raise ValueError(f"nothing was done below {top}, but in {os.path.dirname(done[0])}: it must be the same path")
        notes = start.notes if start else ()
        for model in MODELS:
            disk = Disk(str(top), model, start.files if start else None)
            for state in crash_states(disk, ops, self._seed, since=since, notes=notes, share=share):
                if len(self.violations) >= self._most_violations:
                    return
                if self._look_at(state) and found is not None:
                    found.append(state)

    def _look_at(self, state: CrashState) -> bool:
        digest = _digest(state.files)
        if (digest, state.notes) in self._judged:
            return False
        self._judged.add((digest, state.notes))
        self.seen.add(digest)
        self._place.put(state.files)
        try:
            complaint = self._judge(self._place.path, state.notes)
        except Exception as error:  # noqa: BLE001 - whatever a judge cannot bear is a state that should not be
            complaint = f"{type(error).__name__}: {error}"
        if complaint:
            self.violations.append(
                Violation(
                    complaint=complaint,
                    label=state.label,
                    after=state.after,
                    seed=self._seed,
                    notes=state.notes,
                    files=state.files,
                )
            )
        return True


def _digest(files: Files) -> bytes:
    """Tells states apart. What a temporary file is called besides what it becomes is the same for all."""
    digest = hashlib.blake2b(digest_size=8)
    for path, content in sorted(files.items()):
        name = _TEMPORARY.sub("", path) if path.endswith(TEMPORARY_SUFFIX) else path
        digest.update(name.encode(errors="surrogateescape"))
        digest.update(b"/" if content is None else b"\0%d\0" % len(content))
        digest.update(content or b"")
    return digest.digest()


class _Place:
    """A directory that is turned from one state into the next by changing only what differs."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._there: Files = {}
        self.clear()

    def clear(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.makedirs(self.path)
        self._there = {}

    def put(self, files: Files) -> None:
        there = self._there
        gone = [
            path for path, content in there.items() if path not in files or (files[path] is None) != (content is None)
        ]
        for path in sorted(gone, reverse=True):  # what is inside a directory before the directory
            target = os.path.join(self.path, path)
            os.rmdir(target) if there[path] is None else os.unlink(target)
            del there[path]
        for path in sorted(path for path, content in files.items() if path not in there or there[path] != content):
            target = os.path.join(self.path, path)
            content = files[path]
            if content is None:
                os.mkdir(target)
            else:
                with open(target, "wb", buffering=0) as file:
                    file.write(content)
            there[path] = content
