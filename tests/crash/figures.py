"""The figures of the laboratory: what a run of the tests has measured, for people to read.

Tests say what they counted; at the end of the session the table is printed and kept, and `scripts/generate_docs.py`
puts it into docs/reference/crash-laboratory.md.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
OF_ALL = ROOT / ".pytest_cache" / "rerail-figures-of-all.jsonl"  # what ./test --all leaves
FILE = ROOT / os.environ.get("RERAIL_FIGURES", ".pytest_cache/rerail-figures.jsonl")

SEEN = ".states"  # beside a file of figures: the states that its tests have seen
_number = itertools.count(1)  # not by chance: there is none while states are explored
LEAST_STATES = 100_000

TITLES = {
    "T1": "Every state call of a reference run killed, before it and half-way through it",
    "T2": "Every state call failing, once and for good, with each kind of error",
    "T3": "Different states a power cut can leave, judged by the real recovery",
    "T4": "Power cuts on real file systems (ext4 in two modes, XFS, btrfs)",
    "T5": "Bytes of state files flipped, and lengths they were cut to",
    "T6": "Places in the code that sync, and what happens without each",
    "T7": "Planted bugs, and how many of them the tests find",
    "T8": "Random SIGKILL, SIGSTOP and SIGTERM of real runs with real processes",
    "T9": "Rounds of eight processes that resume one run at once",
    "T10": "What a durable step costs here, as a ratio to the floor of the disk",
    "T11": "From SIGTERM to a durable interrupted checkpoint",
    "T12": "Hostile inputs",
    "T13": "Planted secrets in all bytes that were written",
}


def figure(row: str, what: str, value: float) -> None:
    """Say what was counted; what several tests say about the same thing is added up."""
    if "RERAIL_MUTANT" in os.environ:
        return  # what a broken rerail does is no figure
    FILE.parent.mkdir(exist_ok=True)
    line = json.dumps({"row": row, "what": what, "value": value}) + "\n"
    with FILE.open("ab", buffering=0) as file:
        file.write(line.encode())  # one write: several workers say something


def states(what: str, seen: Iterable[bytes]) -> None:
    """Say which states were explored: one that several tests have seen counts once."""
    if "RERAIL_MUTANT" in os.environ:
        return
    directory = FILE.with_suffix(SEEN)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{what}-{os.getpid()}-{next(_number)}").write_bytes(b"".join(sorted(seen)))
    figure("T3", what, 0)


def _explored(file: Path) -> dict[str, set[bytes]]:
    found: dict[str, set[bytes]] = defaultdict(set)
    directory = file.with_suffix(SEEN)
    for path in sorted(directory.iterdir()) if directory.exists() else ():
        data = path.read_bytes()
        found[path.name.rsplit("-", 2)[0]].update(data[at : at + 8] for at in range(0, len(data), 8))
    return found


def different_states(file: Path = FILE) -> int:
    """How many different states all tests together have explored."""
    return len(set().union(*_explored(file).values()))


def start() -> None:
    """Forget what an earlier run said."""
    if "RERAIL_MUTANT" not in os.environ:
        FILE.unlink(missing_ok=True)
        shutil.rmtree(FILE.with_suffix(SEEN), ignore_errors=True)


def collected(file: Path = FILE) -> dict[str, dict[str, float]]:
    """Row → what → value."""
    rows: dict[str, dict[str, float]] = defaultdict(dict)
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            said = json.loads(line)
            before = rows[said["row"]].get(said["what"], 0)
            rows[said["row"]][said["what"]] = before + float(said["value"])
    if "T3" in rows:
        explored = _explored(file)
        rows["T3"] = {
            "different ones in all": different_states(file),
            **{what: len(seen) for what, seen in explored.items()},
        }
    return rows


def rows(file: Path = FILE) -> list[tuple[str, str, str]]:
    """Row, title and what was said, of each row that something was said about."""
    said = collected(file)
    return [
        (row, title, "; ".join(f"{_shown(value)} {what}" for what, value in said[row].items()))
        for row, title in TITLES.items()
        if row in said
    ]


def lines() -> list[str]:
    """The same as lines of text."""
    return [f"{row:4} {title}: {said}" for row, title, said in rows()]


def _shown(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if float(value).is_integer() else f"{value:.2g}"


def is_whole() -> bool:
    """Whether this is `./test --all`."""
    return "RERAIL_FIGURES" in os.environ


def is_controller() -> bool:
    return "PYTEST_XDIST_WORKER" not in os.environ
