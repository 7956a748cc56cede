"""Text for a terminal: text of other programs must not control the terminal, nor fill it."""

from __future__ import annotations

import re

MAX_CHARACTERS = 400

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


def size_text(value: float) -> str:
    """Format a number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _written_out(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode()
