"""Progress of a loop towards its `until`: the compared value, and which of two values is nearer to the goal."""

from __future__ import annotations

import re
from typing import Any

_COMPARISON = re.compile(r"\s*([^<>=!]+?)\s*(>=|<=|==|>|<)\s*([^<>=]+?)\s*")
_NAMES = re.compile(r"\b(steps|item|loop)\b")


def watched(until: str) -> str:
    """Return the side of a comparison that changes between iterations; '' if it is not a plain comparison."""
    match = _COMPARISON.fullmatch(_bare(until))
    if match is None or " and " in until or " or " in until:
        return ""
    left, right = match[1], match[3]
    return left if _NAMES.search(left) else right if _NAMES.search(right) else ""


def _bare(until: str) -> str:
    """Strip the parentheses around the whole expression."""
    text = until.strip()
    while text.startswith("(") and text.endswith(")") and ")" not in text[1:-1].partition("(")[0]:
        text = text[1:-1].strip()
    return text


def is_better(value: Any, best: Any, until: str) -> bool:
    """Return whether a value is progress over the best so far; if the direction is unknown, any change is."""
    match = _COMPARISON.fullmatch(_bare(until))
    if match is None or not watched(until) or not (_is_number(value) and _is_number(best)):
        return bool(value != best)
    upward = match[2] in (">=", ">")
    if not _NAMES.search(match[1]):
        upward = not upward
    if match[2] == "==":
        return bool(value != best)
    return bool(value > best if upward else value < best)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
