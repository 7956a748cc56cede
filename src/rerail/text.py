"""Text that is shown: what somebody else wrote must not steer the terminal, nor fill it."""

from __future__ import annotations

MOST_CHARACTERS = 400


def one_line(text: str, most: int = MOST_CHARACTERS) -> str:
    """One line of at most so many characters, with everything that is not printable written out."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else _written_out(char) for char in text[: most + 1])
    return text if len(text) <= most else text[: most - 1] + "…"


def _written_out(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode()
