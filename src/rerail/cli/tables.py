"""Tables for people: aligned, coloured by cell, cut to the width of the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from rerail.cli.terminal import Look
from rerail.text import one_line

Cell = tuple[str, str]  # text, style
_GAP = "  "
_LEAST = 8  # columns that a cut cell keeps


def table(rows: Sequence[Sequence[Cell]], look: Look, *, indent: str = "", cut: int = -1) -> list[str]:
    """The rows as lines. If they are too wide, column `cut` gives way (to anything that fits a terminal's line)."""
    if not rows:
        return []
    cells = [[(one_line(text, 2000), style) for text, style in row] for row in rows]
    widths = [max(columns(row[at][0]) for row in cells) for at in range(len(cells[0]))]
    room = look.width - len(indent) - len(_GAP) * (len(widths) - 1)
    if look.width and sum(widths) > room:
        widths[cut] = max(room - (sum(widths) - widths[cut]), _LEAST)
    return [indent + _line(row, widths, look) for row in cells]


def _line(row: Sequence[Cell], widths: Sequence[int], look: Look) -> str:
    parts = []
    for at, ((text, style), width) in enumerate(zip(row, widths, strict=True)):
        shown = fitted(text, width, look)
        last = at == len(row) - 1
        parts.append(look.paint(shown, style) + ("" if last else " " * (width - columns(shown))))
    return _GAP.join(parts).rstrip()


def fitted(text: str, width: int, look: Look) -> str:
    """Text cut to so many columns, saying that it was."""
    if columns(text) <= width:
        return text
    mark = "…" if look.unicode else "~"
    kept, used = [], 0
    for char in text:
        used += columns(char)
        if used > width - 1:
            break
        kept.append(char)
    return "".join(kept) + mark


def columns(text: str) -> int:
    """How many columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
