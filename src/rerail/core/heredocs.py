"""Here-documents in shell text: what `<<` opens, and where its body ends."""

from __future__ import annotations

import re

import msgspec

_OPENING = re.compile(r"<<(-?)[ \t]*")
_ENDS_WORD = " \t\n;&|()<>"
_PLAIN = re.compile(r"[A-Za-z0-9_.,:@%+=-]+")
_SPECIAL = re.compile(r"([\\$`])")


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A here-document whose body is still to come. `start` and `end` are where its delimiter is written."""

    delimiter: str
    quoted: bool
    strips_tabs: bool
    start: int
    end: int

    @property
    def is_plain(self) -> bool:
        """Whether the delimiter means the same without quotes."""
        return _PLAIN.fullmatch(self.delimiter) is not None


def opening(text: str, at: int) -> Document | None:
    """The here-document that is opened here; ValueError if its delimiter is not simply written."""
    match = _OPENING.match(text, at)
    if match is None:
        return None
    here, delimiter, quoted = match.end(), "", False
    while here < len(text) and text[here] not in _ENDS_WORD:
        char = text[here]
        if char in "'\"":
            quoted = True
            end = text.find(char, here + 1)
            end = len(text) if end < 0 else end
            delimiter += text[here + 1 : end]
            here = end + 1
        elif char == "\\":
            quoted = True
            delimiter += text[here + 1 : here + 2]
            here += 2
        else:
            delimiter += char
            here += 1
    word = text[match.end() : here]
    if not delimiter or "$" in word or "`" in word or "\\\n" in word or ("\\" in word and ('"' in word or "'" in word)):
        raise ValueError("expressions need here-documents with a plain delimiter")
    return Document(delimiter=delimiter, quoted=quoted, strips_tabs=bool(match[1]), start=match.end(), end=here)


def body_end(text: str, at: int, document: Document, *, nested: bool) -> tuple[int, int]:
    """Where the body that begins at `at` ends, and where reading goes on."""
    continued = False
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line = text[at:end]
        shown = line.lstrip("\t") if document.strips_tabs else line
        if not continued and shown == document.delimiter:
            return at, min(end + 1, len(text))
        if nested and not continued and shown.startswith(document.delimiter + ")"):
            return at, end - len(shown) + len(document.delimiter)  # bash takes `EOF)` for the end inside $(…)
        continued = not document.quoted and (len(line) - len(line.rstrip("\\"))) % 2 == 1
        at = end + 1
    return len(text), len(text)


def escaped(body: str) -> str:
    """The body of a quoted here-document as an unquoted one would have to write it."""
    return _SPECIAL.sub(r"\\\1", body)
