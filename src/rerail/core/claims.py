"""Claims: the paths that a run may write, and whether those of two runs conflict. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator

import msgspec

from rerail.core.expressions import placeholders
from rerail.core.model import Pipeline, Step, Subpipeline, Write

_WILD = re.compile(r"[*?[]")


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Absolute path that a step may write. With `end` it is a pattern: any path that begins with `path` and ends so."""

    step: str
    path: str
    end: str | None = None


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Claims of one run. `until` is the highest number at the time the run released them; None: it has not.

    A run that waits for its concurrency group has a record too; it claims no path yet, and its number is its turn.
    """

    run_id: str
    number: int
    claims: list[Claim]
    until: int | None = None
    group: str = ""
    waiting: bool = False


def before_in_group(group: str, number: int | None, others: Iterable[ClaimRecord]) -> list[ClaimRecord]:
    """Return the unreleased records of a group that come before a run: its holder, then those with an earlier turn.

    `number` is the turn of the run; None if it has none yet: then all that wait come before it.
    """
    found = [
        one
        for one in others
        if one.group == group and one.until is None and not (one.waiting and number is not None and one.number > number)
    ]
    return sorted(found, key=lambda one: (one.waiting, one.number))


def claims_of(pipeline: Pipeline, work_dir: str, render: Callable[[str], str | None]) -> list[Claim]:
    """Return the claims of a run: its artifacts, and the files of its `write` steps.

    `render` returns a path with its expressions evaluated, or None where they depend on the execution: then every path
    with the same beginning and end is claimed.
    """
    found = (
        _claim(step.id, text, work_dir, render if plain else lambda _: None)
        for step, plain in _steps((*pipeline.steps, *pipeline.finally_), plain=True)
        for text in _paths(step)
    )
    return list(dict.fromkeys(found))


def _steps(steps: Iterable[Step], *, plain: bool) -> Iterator[tuple[Step, bool]]:
    """Yield every step at any depth, and whether its params are those of the run."""
    for step in steps:
        yield step, plain
        yield from _steps(step.on_failure, plain=plain)
        inner = isinstance(step.action, Subpipeline)
        last = step.action.finally_ if isinstance(step.action, Subpipeline) else ()
        yield from _steps((*step.body, *last), plain=plain and not inner)


def _paths(step: Step) -> Iterator[str]:
    for artifact in step.artifacts:
        yield artifact.path
    if isinstance(step.action, Write):
        yield posixpath.join(step.cwd, step.action.path)


def _claim(step: str, text: str, work_dir: str, render: Callable[[str], str | None]) -> Claim:
    rendered = render(text) if placeholders.has_placeholders(text) else text
    if rendered is not None and not _WILD.search(rendered):
        return Claim(step=step, path=posixpath.normpath(posixpath.join(work_dir, rendered)))
    literals = [literal for literal, _, _ in placeholders.split(text)] if rendered is None else [rendered]
    first, last = _WILD.split(literals[0])[0], _WILD.split(literals[-1])[-1]
    return Claim(step=step, path=posixpath.join(work_dir, posixpath.normpath(first) if first else ""), end=last)


def meet(one: Claim, other: Claim) -> bool:
    """Return whether two claims may be about the same file, or about a directory and a file in it."""
    if one.end is None and other.end is None:
        return one.path == other.path or _is_below(one.path, other.path) or _is_below(other.path, one.path)
    if one.end is not None and other.end is not None:
        begins = one.path.startswith(other.path) or other.path.startswith(one.path)
        return begins and (one.end.endswith(other.end) or other.end.endswith(one.end))
    pattern, plain = (one, other) if one.end is not None else (other, one)
    if _is_below(pattern.path, plain.path):
        return True  # the matching paths are inside
    return plain.path.startswith(pattern.path) and (plain.path.endswith(pattern.end or "") or not pattern.end)


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/")


def first_meeting(mine: Iterable[Claim], others: Iterable[Claim]) -> tuple[Claim, Claim] | None:
    """Return the first two claims that conflict, mine before the other; None if there are none."""
    others = list(others)
    return next(((one, other) for one in mine for other in others if meet(one, other)), None)
