"""Lines of a pipeline file, and the extent of the key or value at a place in it: only read when there is a problem."""

from __future__ import annotations

import re
from functools import cached_property

_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # as YAML counts lines
_KEY = re.compile(r"""[^\s:#,\[\]{}'"][^:#,\[\]{}'"]*?(?=\s*:(?:\s|$))""")
_CLOSING = {"[": "]", "{": "}"}
LONGEST_SPAN = 200
NEAR = 200  # lines in which a piece of a value is looked for


class SourceText:
    """Text of a pipeline file by lines."""

    def __init__(self, text: str = "") -> None:
        self.text = text

    @cached_property
    def lines(self) -> list[str]:
        return _BREAK.split(self.text)

    def line(self, number: int) -> str:
        """Return a line, from 1; '' where there is none."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def find(self, line: int, column: int, piece: str) -> tuple[int, int] | None:
        """Return the place of a piece of a value that begins at or before a place; None if it is written otherwise."""
        first = piece.split("\n", 1)[0]
        if not first.strip():
            return None
        if self.line(line).startswith(first, max(column - 1, 0)):
            return line, column
        for number in range(line, min(line + NEAR, len(self.lines) + 1)):
            at = self.line(number).find(first, max(column - 1, 0) if number == line else 0)
            if at >= 0:
                return number, at + 1
        return None

    def end(self, line: int, column: int) -> int:
        """Return the column after the key or value that begins at a place."""
        text = self.line(line)
        at = column - 1
        if at >= len(text):
            return column
        return at + 1 + max(_extent(text[at : at + LONGEST_SPAN], in_flow="{" in text[:at] or "[" in text[:at]), 1)


def _extent(text: str, *, in_flow: bool) -> int:
    """Return the length of the key or value at the beginning of a text."""
    first = text[0]
    if first in "'\"":
        end = text.find(first, 1)
        return end + 1 if end > 0 else len(text.rstrip())
    if first in _CLOSING:
        return _bracketed(text)
    key = _KEY.match(text)
    if key:
        return len(key[0])
    if first in "|>&*!":
        return len(text.split(maxsplit=1)[0])
    stop = re.search(r"[,\]}]|\s#" if in_flow and "${{" not in text else r"\s#", text)
    return len((text[: stop.start()] if stop else text).rstrip())


def _bracketed(text: str) -> int:
    depth = 0
    for at, char in enumerate(text):
        depth += (char in "[{") - (char in "]}")
        if depth == 0:
            return at + 1
    return 1
