"""What was really done and said: the ledger of the steps, the journal as it is documented, the events on stdout."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.generator import Case, Step, is_folded
from tests.fuzz.model import Unit, digest


@dataclass(frozen=True)
class Start:
    """An attempt, as the step itself wrote it down."""

    run: str
    unit: Unit
    attempt: int
    key: str
    pid: int
    born: str
    saw: str
    words: str
    line: int


@dataclass(frozen=True)
class Ledger:
    """A part of the ledger."""

    starts: tuple[Start, ...]
    ends: tuple[tuple[str, Unit, int, int], ...]  # run, unit, attempt, line
    failures: tuple[tuple[str, Unit], ...]
    processes: tuple[tuple[int, str], ...]
    before: dict[str, int]  # cents by run, written down before they were spent
    after: dict[str, int]
    killers: int
    lines: int


def read_ledger(path: Path, first: int = 0) -> Ledger:
    # The last line may be half there: whoever wrote it was killed.
    lines = [line[:-1] for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    starts: list[Start] = []
    ends: list[tuple[str, Unit, int, int]] = []
    failures: list[tuple[str, Unit]] = []
    processes: list[tuple[int, str]] = []
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    killers = 0
    for number, line in enumerate(lines):
        kind, *rest = line.split("|")
        if kind in {"M", "N"}:
            sums = before if kind == "M" else after
            sums[rest[0]] = sums.get(rest[0], 0) + round(float(rest[1]) * 100)
        if number < first:
            continue
        if kind == "S":
            run, step, scope, attempt, key, pid, born, token = rest[:8]
            words = "|".join(rest[8:])
            saw = digest(int(token), scope, words)
            starts.append(Start(run, (step, scope), int(attempt), key, int(pid), born, saw, words, number))
            processes.append((int(pid), born))
        elif kind == "D":
            processes.append((int(rest[0]), rest[1]))
        elif kind == "E":
            ends.append((rest[0], (rest[1], rest[2]), int(rest[3]), number))
        elif kind == "F":
            failures.append((rest[0], (rest[1], rest[2])))
        elif kind == "K":
            killers += 1
    return Ledger(tuple(starts), tuple(ends), tuple(failures), tuple(processes), before, after, killers, len(lines))


def is_alive(pid: int, born: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    fields = stat[stat.rfind(")") + 2 :].split()
    return fields[0] not in "ZX" and fields[19] == born


# The journal ---------------------------------------------------------------------------------------------------------------


class BadJournal(Exception):
    """A journal that is not as it is documented."""


def read_journal(directory: Path, run_id: str) -> list[dict[str, Any]]:
    """The records of a run, every one of them proved by the chain."""
    names = sorted(one for one in os.listdir(directory) if one.startswith("journal-") and one.endswith(".jsonl"))
    segments = [(directory / name).read_bytes() for name in names]
    records: list[dict[str, Any]] = []
    above = hashlib.sha256(run_id.encode()).hexdigest()[:16]
    openings = [_opening(data) for data in segments]
    while openings and openings[-1] is None:  # killed while it was opened
        openings.pop()
    for index, opening in enumerate(openings):
        if opening is None:
            raise BadJournal(f"{names[index]} has no opening")
        following = openings[index + 1] if index + 1 < len(openings) else None
        data = segments[index]
        if following is not None:
            data = data[: following["after"]["length"]]
        if opening.get("base") is not None:
            raise BadJournal("repaired")
        for line in data.split(b"\n"):
            if not line:
                continue
            if line[:8] != b'{"sum":"' or _chained(above, line) != line[8:24].decode("ascii", "replace"):
                if following is None:
                    break  # torn
                raise BadJournal(f"{names[index]}: a line that does not follow the one before it")
            above = line[8:24].decode()
            record = json.loads(line)
            if record["event"] != "segment-opened":
                records.append(record)
    if [one["seq"] for one in records] != list(range(1, len(records) + 1)):
        raise BadJournal("numbers with gaps")
    return records


def _opening(data: bytes) -> dict[str, Any] | None:
    end = data.find(b"\n")
    try:
        found = json.loads(data[:end]) if end > 0 else None
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("event") == "segment-opened" else None


def _chained(above: str, line: bytes) -> str:
    return hashlib.sha256(above.encode() + line[25:]).hexdigest()[:16]


def read_events(path: Path) -> list[dict[str, Any]]:
    """What was said on stdout; the last line may be cut off."""
    found = []
    for line in path.read_bytes().split(b"\n"):
        if line:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


# From the names of the journal to units ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where an event belongs."""

    step: Step | None  # none for a hook
    unit: Unit
    is_item: bool  # of the item of a map or loop, not of the step itself
    hook: str = ""


def place_of(case: Case, path: str, item: str | None) -> Place | None:
    """The step and scope of `step` and `item` in an event; none if there is no such step (any more)."""
    keys = item.split("::") if item is not None else []
    scope = ""
    steps = case.steps
    parts = path.split("/")
    step: Step | None = None
    for index, part in enumerate(parts):
        found = [one for one in steps if one.id == part]
        if not found:
            hook = index == len(parts) - 1 and (part in case.finals or any(one.on_failure == part for one in steps))
            return Place(None, (path, scope), is_item=False, hook=part) if hook else None
        step = found[0]
        if index == len(parts) - 1:
            break
        steps = step.body
        if step.kind in {"map", "loop"}:
            if not keys:
                return None
            key = keys.pop(0)
            scope = key if step.kind == "map" else f"{scope}#{key}"
    assert step is not None
    if not keys:
        return Place(step, (path, scope), is_item=False)
    if step.kind not in {"map", "loop"} or len(keys) > 1:
        return None
    scope = keys[0] if step.kind == "map" else f"{scope}#{keys[0]}"
    if is_folded(step):
        return Place(step.body[0], (path, scope), is_item=True)
    return Place(step, (path, scope), is_item=True)
