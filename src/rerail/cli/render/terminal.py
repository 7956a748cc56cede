"""Capabilities of the terminal: live drawing, colour, width, characters."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Literal

import msgspec

NARROWEST = 20

_CODES = {"green": "32", "red": "31", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1", "": ""}


class Terminal(msgspec.Struct, frozen=True, kw_only=True):
    """Capabilities of an output stream."""

    live: bool = False  # lines can be drawn again
    colour: bool = False
    unicode: bool = True
    width: int = 0  # columns; 0: lines have no limit
    height: int = 24
    ci: Literal["", "plain", "github"] = ""

    def paint(self, text: str, style: str) -> str:
        """Return text in a style, where there are styles."""
        return f"\033[{_CODES[style]}m{text}\033[0m" if self.colour and style and text else text

    def room(self, taken: int) -> int:
        """Return the number of columns left in a line."""
        return max(self.width - taken, 8) if self.width else 100_000

    def symbol(self, status: str) -> str:
        """Return one character for a status."""
        fancy, plain = _SYMBOLS.get(status, ("·", "."))
        return fancy if self.unicode else plain


_SYMBOLS = {
    "completed": ("✓", "+"),
    "failed": ("✗", "x"),
    "allowed": ("✗", "x"),
    "interrupted": ("!", "!"),
    "crashed": ("!", "!"),
    "damaged": ("!", "!"),
    "paused": ("?", "?"),
    "skipped": ("-", "-"),
    "running": ("▸", ">"),
    "waiting": ("↻", "~"),
}
STYLES = {
    "completed": "green",
    "failed": "red",
    "crashed": "red",
    "damaged": "red",
    "allowed": "yellow",
    "interrupted": "yellow",
    "paused": "yellow",
    "waiting": "yellow",
    "running": "cyan",
    "skipped": "dim",
    "pending": "dim",
}


def look(environ: Mapping[str, str], *, tty: bool, width: int, height: int = 24) -> Terminal:
    """Decide from the environment: NO_COLOR, FORCE_COLOR, TERM, CI, the locale."""
    dumb = environ.get("TERM", "") in ("dumb", "")
    forced = environ.get("FORCE_COLOR", "") not in ("", "0")
    ci: Literal["", "plain", "github"] = "plain" if environ.get("CI") else ""
    if environ.get("GITHUB_ACTIONS") == "true":
        ci = "github"
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or "UTF-8"
    return Terminal(
        live=tty and not dumb and not ci,
        colour=not environ.get("NO_COLOR") and (forced or (tty and not dumb)),
        unicode="utf" in locale.lower(),
        width=max(width, NARROWEST) if width else 0,
        height=height,
        ci=ci,
    )


def terminal_of(fd: int) -> Terminal:
    """Return the capabilities of one of our own streams."""
    try:
        tty = os.isatty(fd)
        size = os.get_terminal_size(fd) if tty else os.terminal_size((0, 0))
    except OSError:
        tty, size = False, os.terminal_size((0, 0))
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if tty and columns.isdigit() and int(columns) else size.columns
    return look(os.environ, tty=tty, width=width, height=size.lines or 24)


def out_look() -> Terminal:
    """Return the capabilities of stdout."""
    sys.stdout.flush()
    seen = terminal_of(1)
    spoken = "utf" in (sys.stdout.encoding or "utf").lower()
    return seen if spoken else msgspec.structs.replace(seen, unicode=False)
