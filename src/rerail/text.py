"""Text for a terminal: text of other programs must not control the terminal, nor fill it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

MAX_CHARACTERS = 400
MAX_CANDIDATES = 1_000
MAX_EDITS = 15_000  # pairs of characters that a search compares

# CSI … final byte; OSC, DCS and the like up to their end; any other two-character sequence.
_ESCAPES = re.compile("(?:\033\\[|\x9b)[0-?]*[ -/]*[@-~]|\033[]PX^_][^\007\033]*(?:\007|\033\\\\)?|\033[ -/]*[0-~]")


def one_line(text: str, most: int = MAX_CHARACTERS) -> str:
    """Return one line of at most `most` characters, with everything that is not printable escaped."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else _written_out(char) for char in text[: most + 1])
    return text if len(text) <= most else text[: most - 1] + "…"


def without_escapes(text: str) -> str:
    """Return text without the sequences that colour it, move the cursor or name the window."""
    return _ESCAPES.sub("", text) if "\033" in text or "\x9b" in text else text


def nearest(word: str, names: Iterable[str]) -> str:
    """Return the name that a word is a slip of, by one to three edits depending on its length; '' if there is none."""
    word, found, least, room = word[:100], "", 100, MAX_EDITS
    letters = set(word.lower())
    for name in itertools.islice(names, MAX_CANDIDATES):
        shorter, longer = sorted((len(word), len(name)))
        most = min(1 if shorter < 5 else 2 if shorter < 10 else 3, least - 1)
        if abs(len(name) - len(word)) <= most and len(letters.difference(name.lower())) <= most:
            room -= len(word) * len(name)
            if room < 0:
                break
            distance = _edits(word.lower(), name.lower())
            if distance <= most and distance < longer:
                found, least = name, distance
    return found


def _edits(one: str, other: str) -> int:
    """Return how many characters to insert, delete, change or swap with a neighbour make one text the other."""
    before: list[int] = []
    above = list(range(len(other) + 1))
    for row, char in enumerate(one, 1):
        line = [row]
        for column, wanted in enumerate(other, 1):
            cost = min(above[column] + 1, line[-1] + 1, above[column - 1] + (char != wanted))
            if row > 1 and column > 1 and char == other[column - 2] and one[row - 2] == wanted:
                cost = min(cost, before[column - 2] + 1)
            line.append(cost)
        before, above = above, line
    return above[-1]


def size_text(value: float) -> str:
    """Format a number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _written_out(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode()
