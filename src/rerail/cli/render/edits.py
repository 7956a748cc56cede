"""Edited artifacts: the question at the terminal whether to keep them, and how to keep them later."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rerail import api
from rerail.app.acceptance import edited_flaws, is_acceptable
from rerail.cli.render.prompt import is_interactive, read_line
from rerail.cli.render.streams import say_raw
from rerail.cli.render.terminal import Terminal
from rerail.core.audit import EDITED, Flaw
from rerail.core.plan import Plan
from rerail.core.unit_id import UnitId
from rerail.ports import ContentStore
from rerail.text import one_line

MAX_DIFF_BYTES = 256 * 1024  # of each version
MAX_DIFF_LINES = 100


def ask_about_edits(
    ready: api.ResumePlan, edits: Mapping[UnitId, Sequence[Flaw]], content: ContentStore, look: Terminal
) -> dict[UnitId, list[Flaw]]:
    """Ask about every edited artifact whether to keep or restore it; return those to keep. Without a terminal: none."""
    kept: dict[UnitId, list[Flaw]] = {}
    if not is_interactive():
        return kept
    for unit, flaws in edits.items():
        for flaw in flaws:
            say_raw(f"{look.paint('?', 'yellow')} {ready.mask.text(one_line(told(flaw, unit), 1000))}")
            if _keeps(ready, flaw, content, look):
                kept.setdefault(unit, []).append(flaw)
    # An artifact of several files is accepted as a whole.
    whole = {(unit, flaw.artifact) for unit, flaws in kept.items() for flaw in flaws}
    return {
        unit: [flaw for flaw in flaws if (unit, flaw.artifact) in whole] for unit, flaws in edits.items() if unit in kept
    }


def _keeps(ready: api.ResumePlan, flaw: Flaw, content: ContentStore, look: Terminal) -> bool:
    """Return the answer of a person; without one the file is restored, which keeps the edited one in quarantine."""
    while True:
        say_raw("  [r]estore it, [k]eep mine, show the [d]iff; Enter restores  > ", end="")
        answer = (read_line(lambda: False) or "").strip().lower()[:1] or "r"
        if answer == "d":
            for line in difference(ready, flaw, content):
                say_raw(f"  {look.paint(line, {'+': 'green', '-': 'red'}.get(line[:1], 'dim'))}")
        elif answer in ("r", "k"):
            return answer == "k"


def told(flaw: Flaw, unit: UnitId) -> str:
    """Describe an edit: since when, and the size then and now."""
    return f"{flaw.path} was changed since step {unit} wrote it" + (f" ({flaw.detail})" if flaw.detail else "")


def difference(ready: api.ResumePlan, flaw: Flaw, content: ContentStore) -> Iterable[str]:
    """Return the lines of a diff from the sealed version of a file to the present one, masked and bounded."""
    try:
        with os.fdopen(content.open(flaw.entry.sha256), "rb") as sealed:
            before = sealed.read(MAX_DIFF_BYTES + 1)
        with open(os.path.join(ready.place.work_dir, flaw.path), "rb") as file:
            after = file.read(MAX_DIFF_BYTES + 1)
    except (OSError, ValueError, KeyError) as error:
        return [f"no diff: {error}"]
    if max(len(before), len(after)) > MAX_DIFF_BYTES:
        return ["too large to show a diff"]
    if b"\0" in before + after:
        return ["binary files differ"]
    texts = [ready.mask.text(version.decode(errors="replace")).splitlines() for version in (before, after)]
    lines = list(difflib.unified_diff(texts[0], texts[1], "as sealed", "as it is now", lineterm="", n=2))
    more = [f"… and {len(lines) - MAX_DIFF_LINES} more lines"] if len(lines) > MAX_DIFF_LINES else []
    return [one_line(line, 500) for line in lines[:MAX_DIFF_LINES]] + more


def keep_hints(ready: api.ResumePlan, decisions: Plan, done: Sequence[Any] | None, run_dir: str) -> list[tuple[str, str]]:
    """Return how to keep the edited artifacts that are or would be restored."""
    if done is None:
        edits = edited_flaws(ready)
        return (
            [("hint", f"to keep what was changed by hand: rerail resume {ready.run_id} --keep-changes")] if edits else []
        )
    where = {(one.unit, path): place for one in done for path, place in one.quarantined.items()}
    hints = []
    for decision in decisions.everything:
        for flaw in decision.flaws:
            place = where.get((decision.unit, flaw.path))
            if place is None or flaw.condition not in EDITED or not is_acceptable(decision.unit):
                continue
            path = shlex.quote(os.path.relpath(os.path.join(ready.place.work_dir, flaw.path)))
            artifact = shlex.quote(os.path.relpath(os.path.join(ready.place.work_dir, flaw.artifact)))
            copied = f"cp {shlex.quote(os.path.join(run_dir, place))} {path}"
            mark = f"rerail mark {ready.run_id} {shlex.quote(str(decision.unit))} completed --accept {artifact}"
            hints.append(("hint", f"to keep the changed {flaw.path}: {copied} && {mark}"))
    return hints
