"""Problems of pipeline files for people: the place, the line with a mark under it, and the help."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rerail.cli.render.table import columns
from rerail.cli.render.terminal import Terminal, terminal_of
from rerail.cli.render.units import counted
from rerail.errors import Diagnostic
from rerail.text import one_line

MAX_FRAMES = 20  # of the others only the first line is shown
MAX_COLUMNS = 120  # of a line of the file, where the width of the terminal is unknown
_TAB = "    "
_NARROWEST = 30
_COLOURS = {"error": "red", "warning": "yellow"}


def shown(found: Sequence[Diagnostic]) -> list[str]:
    """Return diagnostics as lines for stderr, with their number at the end."""
    return [*framed(found, terminal_of(2)), *(["", total(found)] if total(found) else [])]


def shown_message(message: str, severity: str = "error") -> list[str]:
    """Return an error without a place as lines for stderr."""
    first, *more = message.replace("\t", "  ").split("\n")
    return [headline("rerail", first, terminal_of(2), severity), *(one_line(line, 1000) for line in more)]


def headline(subject: str, message: str, look: Terminal, severity: str = "error") -> str:
    """Return the first line of every error: `file:line:column: error: message`, or `rerail: error: message`."""
    label = f"{look.paint(f'{severity}:', _COLOURS[severity])} " if severity else ""
    return f"{subject}: {label}{one_line(message, 1000)}"


def framed(found: Sequence[Diagnostic], look: Terminal) -> list[str]:
    """Return the lines that show diagnostics, with an empty line between those with a frame."""
    lines: list[str] = []
    for number, one in enumerate(found):
        frame = _frame(one, look) if number < MAX_FRAMES else []
        if lines and (frame or number == MAX_FRAMES):
            lines.append("")
        lines += [headline(one.place or "rerail", one.message, look, one.severity), *frame]
    return lines


def total(found: Sequence[Diagnostic]) -> str:
    """Return `2 errors, 1 warning in FILE`, or '' for less than two."""
    files = list(dict.fromkeys(one.file for one in found if one.file))
    if len(found) < 2 or not files:
        return ""
    errors = sum(one.severity == "error" for one in found)
    parts = [counted(count, word) for count, word in ((errors, "error"), (len(found) - errors, "warning")) if count]
    return f"{', '.join(parts)} in {files[0] if len(files) == 1 else counted(len(files), 'file')}"


def _frame(one: Diagnostic, look: Terminal) -> list[str]:
    """Return the line with its number, a mark under the place, and the help."""
    number = str(one.line) if one.line else ""
    bar = look.paint("|", "dim")
    margin = " " * len(number)
    lines = []
    if one.line and one.source.strip():
        room = max((look.width or MAX_COLUMNS + 10) - len(number) - 3, _NARROWEST)
        text, before, marked = _window(one, min(room, MAX_COLUMNS), look)
        lines += [f"{margin} {bar}", f"{look.paint(number, 'dim')} {bar} {text}"]
        if one.column:
            mark = look.paint("^" * max(marked, 1), _COLOURS[one.severity])
            lines.append(f"{margin} {bar} {' ' * before}{mark}")
    if one.help:
        lines += _help(one.help, margin, look)
    return lines


def _help(text: str, margin: str, look: Terminal) -> list[str]:
    first = f"{margin} = help: "
    wrapped = [text]
    if look.width:
        room = max(look.width - len(first), _NARROWEST)
        wrapped = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    label = f"{margin} {look.paint('=', 'dim')} {look.paint('help:', 'cyan')} "
    return [f"{label}{wrapped[0]}", *(" " * len(first) + line for line in wrapped[1:])]


def _window(one: Diagnostic, room: int, look: Terminal) -> tuple[str, int, int]:
    """Return the part of a line that fits, the columns before the mark, and those of the mark."""
    begin = min(max(one.column - 1, 0), len(one.source))
    end = min(max(one.end - 1, begin + 1), len(one.source)) if one.end else begin + 1
    first, last = 0, len(one.source)
    if columns(_shown(one.source[: room * 2])) > room:
        first = max(min(begin - room // 4, len(one.source) - room), 0) if begin > room * 3 // 4 else 0
        last = first
        used = 2  # of the marks for what is left out
        while last < len(one.source) and used + columns(_shown(one.source[last])) <= room:
            used += columns(_shown(one.source[last]))
            last += 1
    more = "…" if look.unicode else "~"
    left, right = more if first else "", more if last < len(one.source) else ""
    before = columns(left + _shown(one.source[first:begin]))
    marked = columns(_shown(one.source[begin : min(end, last)]))
    return f"{left}{_shown(one.source[first:last])}{right}".rstrip(), before, marked


def _shown(text: str) -> str:
    """Return text of a file as it is shown: nothing in it controls the terminal."""
    text = text.replace("\t", _TAB)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
