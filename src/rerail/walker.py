"""The walker: the paths that match a pattern. There is no other, so that a pattern means the same everywhere.

`**` stands for any number of directories, and at the end of a pattern for everything below. It never goes through a
link: links can lead out of the tree, or around in it. `*`, `?` and `[…]` match within one name. A match may be a link, as
may a part without wildcards. Names that begin with a dot are matched only by a part that does too.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterator

MAGIC = "*?["
MAX_ENTRIES = 10_000_000  # that one pattern may read
_AT_A_TIME = 1000  # entries between two calls of `is_stopping`


class TooManyEntries(Exception):
    """Pattern with more entries below it than can have been meant."""


class Stopped(Exception):
    """Stop request during a walk."""


def is_pattern(path: str) -> bool:
    """Return whether a path has wildcards."""
    return any(char in path for char in MAGIC)


def matching(
    root: str, pattern: str, *, tolerant: bool = False, is_stopping: Callable[[], bool] = lambda: False
) -> Iterator[str]:
    """Yield the paths that match, each once, as the pattern has them: relative to `root`, or absolute.

    A directory that cannot be read is an OSError, or, if `tolerant`, counts as empty. Raise TooManyEntries, and
    Stopped once `is_stopping` says so.
    """
    parts: list[str] = []
    for part in pattern.split("/"):
        if part and not (part == "**" and parts[-1:] == ["**"]):
            parts.append(part)
    tests = [re.compile(fnmatch.translate(part)).match if is_pattern(part) else None for part in parts]
    several = parts.count("**") > 1  # then one path can be reached in several ways
    seen: set[tuple[str, int]] = set()
    looked = 0
    stack = [("/" if pattern.startswith("/") else "", 0)]
    while stack:
        path, at = stack.pop()
        if several:
            if (path, at) in seen:
                continue
            seen.add((path, at))
        if at == len(parts):
            yield path
            continue
        part, test = parts[at], tests[at]
        if test is None:
            below = os.path.join(path, part)
            if at + 1 < len(parts) or os.path.lexists(os.path.join(root, below)):
                stack.append((below, at + 1))
            continue
        deep, last = part == "**", at + 1 == len(parts)
        if deep and not last:
            stack.append((path, at + 1))
        for entry in _entries(os.path.join(root, path), tolerant=tolerant):
            looked += 1
            if looked > MAX_ENTRIES:
                raise TooManyEntries(f"{pattern}: more than {MAX_ENTRIES} files and directories to scan")
            if looked % _AT_A_TIME == 1 and is_stopping():
                raise Stopped
            if entry.name.startswith(".") and not part.startswith("."):
                continue
            below = os.path.join(path, entry.name)
            if deep:
                if last:
                    yield below
                if entry.is_dir(follow_symlinks=False):
                    stack.append((below, at))
            elif test(entry.name):
                stack.append((below, at + 1))


def _entries(directory: str, *, tolerant: bool) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory or ".") as entries:
            yield from entries
    except (NotADirectoryError, FileNotFoundError):
        return
    except OSError:
        if not tolerant:
            raise
