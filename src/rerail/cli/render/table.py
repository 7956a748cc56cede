"""Tables for people: aligned, coloured by cell, cut to the width of the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence
from functools import lru_cache

from rerail.cli.render.terminal import Terminal
from rerail.text import one_line

Cell = tuple[str, str]  # text, style
_GAP = "  "
_MIN_CUT = 8  # columns that a cut cell keeps
_NARROWEST = 3


def table(
    rows: Sequence[Sequence[Cell]], look: Terminal, *, indent: str = "", cut: int = -1, right: Collection[int] = ()
) -> list[str]:
    """Return the rows as lines. If they are too wide, column `cut` shrinks first, then the widest ones.

    Columns `right` are aligned on the right.
    """
    if not rows:
        return []
    cells = [[(text := one_line(raw, 2000), style, columns(text)) for raw, style in row] for row in rows]
    widths = [max(row[at][2] for row in cells) for at in range(len(cells[0]))]
    room = look.width - len(indent) - len(_GAP) * (len(widths) - 1)
    if look.width and sum(widths) > room:
        least = min(widths[cut], max(room // 3, _MIN_CUT))  # a long name elsewhere does not take all the room
        widths[cut] = max(room - (sum(widths) - widths[cut]), least)
        while sum(widths) > room and max(widths) > _NARROWEST:  # then the widest columns shrink too
            widths[widths.index(max(widths))] -= 1
    return [indent + _line(row, widths, look, right) for row in cells]


def width_of(rows: Sequence[Sequence[Cell]]) -> int:
    """Return the columns that a table of these rows takes if nothing is cut."""
    widths = [max(columns(one_line(row[at][0], 2000)) for row in rows) for at in range(len(rows[0]))]
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _line(row: Sequence[tuple[str, str, int]], widths: Sequence[int], look: Terminal, right: Collection[int]) -> str:
    parts = []
    for at, ((text, style, taken), width) in enumerate(zip(row, widths, strict=True)):
        shown, used = (text, taken) if taken <= width else (fitted(text, width, look), width)
        painted = look.paint(shown, style) if style else shown
        blank = " " * (width - used)
        parts.append(blank + painted if at in right else painted + blank)
    return _GAP.join(parts).rstrip()


def fitted(text: str, width: int, look: Terminal) -> str:
    """Truncate text to a number of columns, with an ellipsis."""
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
    """Return the number of columns that a text takes on a terminal."""
    return len(text) if text.isascii() else _wide_columns(text)


@lru_cache(maxsize=1000)
def _wide_columns(text: str) -> int:
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
