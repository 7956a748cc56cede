"""Scanner for `${{ … }}` in text. Only the text between the braces is an expression; the rest is left alone."""

from __future__ import annotations

from collections.abc import Iterator

OPEN = "${{"
CLOSE = "}}"


class UnclosedPlaceholder(ValueError):
    """`${{` without its `}}`; `offset` is its position."""

    def __init__(self, offset: int) -> None:
        super().__init__("`${{` has no `}}`")
        self.offset = offset


def split(text: str) -> list[tuple[str, str | None, int]]:
    """Split a text into pieces: (literal, expression after it or None, offset of the expression)."""
    pieces: list[tuple[str, str | None, int]] = []
    here = 0
    for start, end in _placeholders(text):
        pieces.append((text[here:start], text[start + len(OPEN) : end - len(CLOSE)].strip(), start))
        here = end
    pieces.append((text[here:], None, len(text)))
    return pieces


def has_placeholders(text: str) -> bool:
    return OPEN in text


def _placeholders(text: str) -> Iterator[tuple[int, int]]:
    at = text.find(OPEN)
    while at >= 0:
        end = _end(text, at)
        yield at, end
        at = text.find(OPEN, end)


def _end(text: str, start: int) -> int:
    """Return the end of the placeholder that begins at `start`; braces and quotes in the expression are respected."""
    depth, quote, at = 0, "", start + len(OPEN)
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif depth == 0 and text.startswith(CLOSE, at):
            return at + len(CLOSE)
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
        at += 1
    raise UnclosedPlaceholder(start)
