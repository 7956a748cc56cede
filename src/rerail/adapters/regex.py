"""Search for a user's patterns in the output of a program, in bounded time.

A pattern with repetitions can take longer than the universe has; Python cannot interrupt one. So a pattern that repeats
more than once, or repeats a choice, is searched for by a child process that has a moment to answer.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable

import msgspec

PATIENCE = 2.0  # seconds

_REPEATS = re.compile(r"[*+{?]")
# It ends by itself, too: rerail may be killed, and it has no process tag.
_CODE = (
    "import json, re, signal, sys; signal.alarm(%d); p, t = json.load(sys.stdin); sys.exit(0 if re.search(p, t) else 3)"
)


def found(patterns: Iterable[str], text: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the patterns that match, and those whose search took too long."""
    matching, endless = set(), []
    for pattern in patterns:
        if _is_quick(pattern):
            if re.search(pattern, text):
                matching.add(pattern)
            continue
        question = msgspec.json.encode([pattern, text])
        try:
            command = [sys.executable, "-I", "-S", "-c", _CODE % (PATIENCE + 1)]
            answer = subprocess.run(command, input=question, timeout=PATIENCE, check=False, stderr=subprocess.DEVNULL)
        except (subprocess.TimeoutExpired, OSError):
            endless.append(pattern)
        else:
            if answer.returncode == 0:
                matching.add(pattern)
    return frozenset(matching), tuple(endless)


def _is_quick(pattern: str) -> bool:
    """Return whether a search takes no longer than the square of the text, for any text."""
    repeats = len(_REPEATS.findall(pattern))
    return repeats == 0 or (repeats == 1 and "(" not in pattern and "|" not in pattern)
