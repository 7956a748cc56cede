"""Subset of JSONPath (RFC 9535) that addresses values in a document: `$.a.b[0]['c'][*]..d[1:3]`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_PART = r"""(?P<deep>\.\.)?
        (?:\.?(?P<name>[A-Za-z_\u0080-\U0010ffff][\w\u0080-\U0010ffff-]*)
         | \.?(?P<any>\*)
         | \[\s*(?:(?P<all>\*) | (?P<at>-?\d+) | '(?P<single>[^']*)' | "(?P<double>[^"]*)"
             | (?P<slice>-?\d*\s*:\s*-?\d*(?:\s*:\s*-?\d+)?) )\s*\])"""
Part = tuple[bool, str, Any]  # everywhere below?, kind, argument


def parse(path: str) -> list[Part]:
    """Parse a path into its parts; raise ValueError that names the problem."""
    if not path.startswith("$"):
        raise ValueError(f"{path!r} must begin with $")
    part = re.compile(_PART, re.VERBOSE)  # here, because compiling it takes longer than all other imports of most runs
    parts: list[Part] = []
    position = 1
    while position < len(path):
        match = part.match(path, position)
        if match is None or match.end() == position:
            hint = "; conditions go into `filter`" if "?" in path[position:] else ""
            raise ValueError(f"{path!r}: cannot be read from {path[position : position + 20]!r} on{hint}")
        dotted = match["name"] is not None or match["any"] is not None
        if dotted and not match["deep"] and path[position] != ".":
            raise ValueError(f"{path!r}: a dot is missing before {path[position : position + 20]!r}")
        parts.append((bool(match["deep"]), *_meaning(match)))
        position = match.end()
    return parts


def _meaning(match: re.Match[str]) -> tuple[str, Any]:
    if match["any"] or match["all"]:
        return "all", None
    if match["at"] is not None:
        return "at", int(match["at"])
    if match["slice"] is not None:
        numbers = [int(text) if text.strip() else None for text in match["slice"].split(":")]
        return "slice", slice(*numbers)
    name = next(found for found in (match["name"], match["single"], match["double"]) if found is not None)
    return "name", name


def find(document: Any, path: str) -> list[Any]:
    """Return all values that a path matches, in the order of the document."""
    found = [document]
    for deep, kind, argument in parse(path):
        starts = [inner for value in found for inner in _below(value)] if deep else found
        found = [child for value in starts for child in _children(value, kind, argument)]
    return found


def _below(value: Any) -> Iterator[Any]:
    stack = [value]
    while stack:
        here = stack.pop()
        yield here
        children = here.values() if isinstance(here, dict) else here if isinstance(here, list) else ()
        stack.extend(reversed(list(children)))


def _children(value: Any, kind: str, argument: Any) -> list[Any]:
    if isinstance(value, dict):
        if kind == "all":
            return list(value.values())
        return [value[argument]] if kind == "name" and argument in value else []
    if isinstance(value, list):
        if kind == "all":
            return value
        if kind == "slice":
            return value[argument] if argument.step != 0 else []
        return [value[argument]] if kind == "at" and -len(value) <= argument < len(value) else []
    return []
