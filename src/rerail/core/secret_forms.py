"""Forms of a secret in printed text: the secret itself, and its common encodings."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

_MIN_DERIVED = 8  # a shorter encoded form would match innocent text
_LARGE = 2000  # bytes; a larger secret is only searched for in its commonest forms
_PIECE = 256
_MIN_LINE = 12  # of a secret of several lines, lines this long are masked by themselves


def encoded_forms(secret: str) -> tuple[set[str], set[str]]:
    """Return (forms, base64 forms) of a secret; the latter apart, because programs break them into lines."""
    forms, folded = {secret, *(line for line in secret.splitlines() if len(line) >= _MIN_LINE)}, set()
    derived: set[str] = set()
    for text in {secret, secret.strip()} - {""}:  # a file's last newline is seldom printed
        raw = text.encode(errors="surrogateescape")
        large = len(raw) > _LARGE
        derived |= {text, raw.hex(), raw.hex().upper(), *(_in_json(text) if large else _escaped(text, raw))}
        folded |= {base64.b64encode(raw).decode()} if large else _base64(raw)
    derived = {form for form in derived if len(form) >= _MIN_DERIVED}
    folded = {form for form in folded if len(form) >= _MIN_DERIVED}
    return _pieces(forms | derived), _pieces(folded)


def _pieces(forms: set[str]) -> set[str]:
    """Cut long forms into pieces, each masked by itself, so that patterns stay short."""
    pieces: set[str] = set()
    for form in forms:
        last = max(len(form) // _PIECE - 1, 0) * _PIECE  # the last piece is the longest: none is short
        pieces |= {form[at : at + _PIECE] for at in range(0, last, _PIECE)} | {form[last:]}
    return pieces


def _escaped(text: str, raw: bytes) -> Iterator[str]:
    """Yield a secret as escaped in URLs, JSON (also JSON in JSON), shell words, markup and Python."""
    forms = {quote(raw, safe=""), quote_plus(raw), quote(raw), quote(raw, safe="!*'()")}
    forms.add(quote_plus(raw, safe="*").replace("~", "%7E"))
    yield from forms
    yield raw.replace(b"\\", b"\\\\").decode("utf-8", errors="backslashreplace")  # as records have names of files
    yield from (re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), form) for form in forms)
    yield from _in_json(text)
    yield text.replace("'", "'\"'\"'")
    yield text.replace("'", "'\\''")
    yield re.sub(r'(["$`\\])', r"\\\1", text)
    for kept in (r"\w@%+=:,./-", r"\w@%+=:./-", r"\w@%+=:,./~-"):
        yield re.sub(rf"([^{kept}])", r"\\\1", text, flags=re.ASCII)
        yield re.sub(rf"([^{kept}])", r"\\\1", text)
    yield from _in_markup(text)
    written = repr(text)[1:-1]
    yield written
    yield written.replace("\\'", "'").replace("'", "\\'")


def _in_json(text: str) -> Iterator[str]:
    once = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    once |= {re.sub(r"\\u[0-9a-f]{4}", lambda match: "\\u" + match[0][2:].upper(), form) for form in once}
    once |= {form.replace("/", "\\/") for form in once}
    once |= {re.sub("[&<>']", lambda match: f"\\u{ord(match[0]):04x}", form) for form in once}
    yield from once
    yield from (re.sub("[&<>]", lambda match: f"\\u{ord(match[0]):04x}", form) for form in once)
    yield from (json.dumps(form, ensure_ascii=False)[1:-1] for form in once)


def _in_markup(text: str) -> Iterator[str]:
    yield html.escape(text, quote=False)
    for single in ("&#x27;", "&#39;", "&#039;", "&apos;", "'"):
        for double in ("&quot;", "&#34;"):
            yield html.escape(text, quote=False).replace("'", single).replace('"', double)


def _base64(raw: bytes) -> set[str]:
    forms = set()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for ending in (b"", b"\n"):  # by itself, as `echo` and `printf` write it
            forms.add(encode(raw + ending).decode())
        for shift in range(3):
            # Wherever it stands in a longer encoded text: without the characters that its neighbours share.
            text = encode(b"\0" * shift + raw).decode().rstrip("=")
            start = (0, 2, 3)[shift]
            end = len(text) if (shift + len(raw)) % 3 == 0 else len(text) - 1
            forms.add(text[start:end])
    return forms
