"""Secrets out of everything that is kept or shown: as they are, and in the forms programs commonly print them in."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

STARS = "***"
_LEAST_DERIVED = 8  # a shorter encoded form would hit innocent text
_LEAST_LINE = 12  # of a secret of several lines, lines this long are masked by themselves


class Mask:
    """Replaces secrets in text, in values and in streams of bytes."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        found = [_forms(secret) for secret in secrets]
        plain = {_raw(form) for forms, _ in found for form in forms}
        self._folded = {_raw(form) for _, forms in found for form in forms}
        self._patterns = sorted(plain | self._folded, key=len, reverse=True)
        self._find = re.compile(b"|".join(map(self._expression, self._patterns))) if self._patterns else None
        self.longest = len(self._patterns[0]) if self._patterns else 0
        self._first = {pattern[0] for pattern in self._patterns}

    def _expression(self, pattern: bytes) -> bytes:
        if pattern not in self._folded:
            return re.escape(pattern)
        return rb"(?:\r?\n)?".join(re.escape(pattern[at : at + 1]) for at in range(len(pattern)))

    def __bool__(self) -> bool:
        return self._find is not None

    def data(self, data: bytes) -> bytes:
        return self._find.sub(STARS.encode(), data) if self._find else data

    def text(self, text: str) -> str:
        if self._find is None or not text:
            return text
        return self.data(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def value(self, value: Any) -> Any:
        """A JSON value with every text in it masked, keys included."""
        if self._find is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool) and self.text(str(value)) != str(value):
            return STARS
        return value

    def safe_end(self, data: bytes) -> int:
        """How much of a stream read so far can be masked and let go: the rest may be the beginning of a secret."""
        if self._find is None:
            return len(data)
        for length in range(min(self.longest * 3, len(data)), 0, -1):  # a folded one has line ends in between
            if data[-length] in self._first and self._may_go_on(data[-length:]):
                return self._before_overlap(data, len(data) - length)
        return len(data)

    def _may_go_on(self, tail: bytes) -> bool:
        if any(pattern.startswith(tail) and len(pattern) > len(tail) for pattern in self._patterns):
            return True
        joined = tail.replace(b"\r\n", b"").replace(b"\n", b"").removesuffix(b"\r")
        return len(joined) <= self.longest and any(
            pattern.startswith(joined) and len(pattern) > len(joined) for pattern in self._folded
        )

    def _before_overlap(self, data: bytes, cut: int) -> int:
        """A cut must not go through a secret that is there already."""
        assert self._find is not None
        for match in self._find.finditer(data):
            if match.start() < cut < match.end():
                return match.end()
        return cut


def _raw(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


class StreamMask:
    """Masks a stream that arrives in pieces, wherever it is cut."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        if not self._mask:
            return data
        data = self._held + data
        end = self._mask.safe_end(data)
        self._held = data[end:]
        return self._mask.data(data[:end])

    def end(self) -> bytes:
        held, self._held = self._held, b""
        return self._mask.data(held)


def _forms(secret: str) -> tuple[set[str], set[str]]:
    """A secret as it is, and as it looks encoded; and apart its base64 forms, which programs break into lines."""
    forms, folded = {secret, *(line for line in secret.splitlines() if len(line) >= _LEAST_LINE)}, set()
    derived: set[str] = set()
    for text in {secret, secret.strip()} - {""}:  # a file's last newline is seldom printed
        derived |= {text, *_escaped(text)}
        raw = text.encode(errors="surrogateescape")
        derived |= {raw.hex(), raw.hex().upper()}
        folded |= _base64(raw)
    return forms | {form for form in derived if len(form) >= _LEAST_DERIVED}, {
        form for form in folded if len(form) >= _LEAST_DERIVED
    }


def _escaped(text: str) -> Iterator[str]:
    """As it stands in addresses, in JSON (also in JSON in JSON), in shell words, in markup, in Python."""
    for form in (quote(text, safe=""), quote_plus(text), quote(text)):
        yield form
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), form)
    once = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    once |= {re.sub(r"\\u[0-9a-f]{4}", lambda match: "\\u" + match[0][2:].upper(), form) for form in once}
    once |= {form.replace("/", "\\/") for form in once}
    yield from once
    yield from (json.dumps(form, ensure_ascii=False)[1:-1] for form in once)
    yield text.replace("'", "'\"'\"'")
    yield text.replace("'", "'\\''")
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", text, flags=re.ASCII)
    yield re.sub(r"([^\w@%+=:./-])", r"\\\1", text)
    yield html.escape(text)
    yield html.escape(text, quote=False)
    yield repr(text)[1:-1]


def _base64(raw: bytes) -> set[str]:
    forms = set()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for ending in (b"", b"\n"):  # by itself, as `echo` and `printf` hand it over
            forms.add(encode(raw + ending).decode())
        for shift in range(3):
            # Wherever it stands in a longer encoded text: without the characters that its neighbours share.
            text = encode(b"\0" * shift + raw).decode().rstrip("=")
            start = (0, 2, 3)[shift]
            end = len(text) if (shift + len(raw)) % 3 == 0 else len(text) - 1
            forms.add(text[start:end])
    return forms
