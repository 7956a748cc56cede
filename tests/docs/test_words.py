"""The prose of the hand-written pages has the words of the glossary, not those that they replaced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = [
    DOCS / "tutorial.md",
    DOCS / "reference/pipeline.md",
    *sorted((DOCS / "how-to").glob("*.md")),
    *sorted((DOCS / "explanation").glob("*.md")),
]
BLOCK_OR_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
REPLACED = {
    r"cut[- ]off": "interrupted",
    r"life|lives": "invocation",
    r"drives?|driven|driving": "execute",
    r"hand(s|ed)? out": "output",
    r"under way": "in flight",
    r"for good": "permanently",
    r"parked": "blocked",
    r"(set|moved|put) aside": "quarantine",
    r"he|him|his|nobody|somebody|anybody|whoever": "the noun",
    r"is said|are said|is told": "rerail reports",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_has_the_words_of_the_glossary(page: Path) -> None:
    prose = BLOCK_OR_CODE.sub("", page.read_text(encoding="utf-8"))
    for old, new in REPLACED.items():
        found = re.search(rf"[^\n]*\b({old})\b[^\n]*", prose, re.IGNORECASE)
        assert found is None, f"{page.name}: write {new!r}: {found[0] if found else ''}"
