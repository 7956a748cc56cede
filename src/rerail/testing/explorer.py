"""Visits every state a crash can leave, puts it on a disk for real, and asks a judge what it thinks of it."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from rerail.testing.disk import MODELS, CrashState, Disk, Files, crash_states
from rerail.testing.faults import Op

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
        self._judged: set[int] = set()
        self._distinct: set[int] = set()

    @property
    def states(self) -> int:
        """How many different directories were looked at."""
        return len(self._distinct)

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
        notes = start.notes if start else ()
        for model in MODELS:
            disk = Disk(str(top), model, start.files if start else None)
            for state in crash_states(disk, ops, self._seed, since=since, notes=notes, share=share):
                if len(self.violations) >= self._most_violations:
                    return
                if self._look_at(state) and found is not None:
                    found.append(state)

    def _look_at(self, state: CrashState) -> bool:
        content = frozenset(state.files.items())
        judged = hash((content, state.notes))
        if judged in self._judged:
            return False
        self._judged.add(judged)
        self._distinct.add(hash(content))
        self._place.put(state.files)
        complaint = self._judge(self._place.path, state.notes)
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
