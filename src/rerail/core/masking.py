"""Secrets out of everything that is kept or shown: as they are, and in the forms programs commonly print them in."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

STARS = "***"
_LEAST_DERIVED = 8  # a shorter encoded form would hit innocent text
_LEAST_LINE = 12  # of a secret of several lines, lines this long are masked by themselves


class Mask:
    """Replaces secrets in text, in values and in streams of bytes."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        self._patterns = sorted((form.encode() for form in forms), key=len, reverse=True)
        self._find = re.compile(b"|".join(re.escape(form) for form in self._patterns)) if forms else None
        self.longest = len(self._patterns[0]) if forms else 0

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
        for length in range(min(self.longest - 1, len(data)), 0, -1):
            tail = data[-length:]
            if any(pattern.startswith(tail) for pattern in self._patterns if len(pattern) > length):
                return self._before_overlap(data, len(data) - length)
        return len(data)

    def _before_overlap(self, data: bytes, cut: int) -> int:
        """A cut must not go through a secret that is there already."""
        assert self._find is not None
        for match in self._find.finditer(data):
            if match.start() < cut < match.end():
                return match.end()
        return cut


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


def _forms(secret: str) -> set[str]:
    """A secret as it is, and as it looks encoded."""
    forms = {secret, *(line for line in secret.splitlines() if len(line) >= _LEAST_LINE)}
    derived = {quote(secret, safe=""), quote_plus(secret), quote(secret)}
    derived.add(msgspec.json.encode(secret).decode()[1:-1])
    raw = secret.encode(errors="surrogateescape")
    derived.add(raw.hex())
    for ending in (b"", b"\n"):  # by itself, as `echo` and `printf` hand it over
        derived |= {base64.b64encode(raw + ending).decode(), base64.urlsafe_b64encode(raw + ending).decode()}
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for shift in range(3):
            # Wherever it stands in a longer encoded text: without the characters that its neighbours share.
            text = encode(b"\0" * shift + raw).decode().rstrip("=")
            start = (0, 2, 3)[shift]
            end = len(text) if (shift + len(raw)) % 3 == 0 else len(text) - 1
            derived.add(text[start:end])
    return forms | {form for form in derived if len(form) >= _LEAST_DERIVED}
