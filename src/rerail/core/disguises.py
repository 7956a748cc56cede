"""How a secret looks when programs print it: as it is, and in the encodings they commonly use."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

_LEAST_DERIVED = 8  # a shorter encoded form would hit innocent text
_LEAST_LINE = 12  # of a secret of several lines, lines this long are masked by themselves


def disguises(secret: str) -> tuple[set[str], set[str]]:
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
