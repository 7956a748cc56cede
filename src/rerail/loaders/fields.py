"""Typed fields of a document, read with every problem collected instead of stopping at the first."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from rerail.loaders.document import Node
from rerail.text import one_line

_AMOUNT = r"([0-9]{1,12}(?:\.[0-9]+)?)"
_DURATION = re.compile(f"(?:{_AMOUNT}h)?(?:{_AMOUNT}m)?(?:{_AMOUNT}s)?(?:{_AMOUNT}ms)?")
MAX_SECONDS = 1e11  # seconds: some three thousand years
# Keys of later versions get an honest answer instead of "unknown".
PLANNED = frozenset("agent keep".split())


MAX_PROBLEMS = 100


class Problems:
    """Problems of a file, each with its position."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._found: list[tuple[int, int, str]] = []
        self._more = 0
        self._included: list[Problems] = []
        self.work = 0  # spent on checking expressions

    def add(self, node: Node, message: str) -> None:
        self.add_at(node.line, node.column, message)

    def add_at(self, line: int, column: int, message: str) -> None:
        if (line, column, one_line(message)) in self._found:
            return  # an `env` that several steps share is checked for each
        if self.many:
            self._more += 1
        else:
            self._found.append((line, column, one_line(message)))

    @property
    def many(self) -> bool:
        """Whether there are so many problems already that more would not be read."""
        return len(self._found) >= MAX_PROBLEMS

    @property
    def lines(self) -> list[str]:
        """One line for each problem, in the order of the file."""
        path = one_line(self._path)
        lines = [f"{path}:{line}:{column}: {message}" for line, column, message in sorted(self._found)]
        lines += [f"{path}: and {self._more} more problems"] if self._more else []
        return lines + [line for inner in self._included for line in inner.lines]

    def of(self, path: str) -> Problems:
        """Return the problems of a file that this one includes."""
        inner = Problems(path)
        self._included.append(inner)
        return inner

    def __bool__(self) -> bool:
        return bool(self._found) or any(self._included)


class Fields:
    """Fields of a mapping. A missing or wrong value is reported and the default returned."""

    def __init__(self, node: Node, problems: Problems, what: str) -> None:
        self.problems = problems
        self.node = node
        self.what = what
        self._values: dict[str, Node] = {}
        if isinstance(node.value, dict):
            self._values = node.value
        else:
            problems.add(node, f"{what} must be a mapping, not {node.kind}")

    def only(self, allowed: Iterable[str]) -> None:
        """Report every unknown key, with the one that was probably meant."""
        names = list(allowed)
        for key, node in self._values.items():
            if key in names:
                continue
            line, column = self.node.keys.get(key, (node.line, node.column))
            if key in PLANNED:
                self.problems.add_at(line, column, f"`{key}` is not supported by this version of rerail yet")
                continue
            close = [] if self.problems.many else difflib.get_close_matches(key[:100], names, n=1)
            hint = f", did you mean `{close[0]}`?" if close else f"; known here: {', '.join(sorted(names))}"
            self.problems.add_at(line, column, f"unknown key `{key[:100]}`{hint}")

    def get(self, key: str) -> Node | None:
        return self._values.get(key)

    def has(self, key: str) -> bool:
        return key in self._values

    def text(self, key: str, default: str = "") -> str:
        node = self.get(key)
        if node is None:
            return default
        if isinstance(node.value, str):
            return node.value
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return str(node.value)
        self._wrong(key, node, "text")
        return default

    def flag(self, key: str, *, default: bool) -> bool:
        node = self.get(key)
        if node is None:
            return default
        if isinstance(node.value, bool):
            return node.value
        self._wrong(key, node, "true or false")
        return default

    def count(self, key: str, default: int, minimum: int = 1) -> int:
        node = self.get(key)
        if node is None:
            return default
        if isinstance(node.value, int) and not isinstance(node.value, bool) and node.value >= minimum:
            return node.value
        self._wrong(key, node, f"a whole number of at least {minimum}")
        return default

    def amount(self, key: str) -> float | None:
        """Return a number above zero."""
        node = self.get(key)
        if node is None:
            return None
        if isinstance(node.value, int | float) and not isinstance(node.value, bool) and 0 < node.value < MAX_SECONDS:
            return float(node.value)
        self._wrong(key, node, "a number above 0")
        return None

    def duration(self, key: str) -> float | None:
        """Return seconds: from a number, or from text such as `200ms`, `90s`, `5m`, `1h30m`."""
        node = self.get(key)
        if node is None:
            return None
        seconds = parse_duration(node.value)
        if seconds is None:
            self._wrong(key, node, "a duration such as 200ms, 30s, 5m or 1h30m")
        return seconds

    def time_limit(self) -> float | None:
        """Return the seconds of `timeout`, which must be more than 0."""
        seconds = self.duration("timeout")
        if seconds == 0:
            self._wrong("timeout", self._values["timeout"], "above 0")
            return None
        return seconds

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        node = self.get(key)
        if node is None:
            return default
        if node.value in choices:
            return str(node.value)
        self._wrong(key, node, f"one of {', '.join(choices)}")
        return default

    def names(self, key: str) -> tuple[tuple[str, Node], ...] | None:
        """Return a list of texts, each with its node; one text stands for a list of one."""
        node = self.get(key)
        if node is None:
            return None
        if isinstance(node.value, str):
            return ((node.value, node),)
        if not isinstance(node.value, list):
            self._wrong(key, node, "a list of names")
            return None
        names = []
        for child in node.value:
            if isinstance(child.value, str):
                names.append((child.value, child))
            else:
                self._wrong(key, child, "a list of names")
        return tuple(names)

    def texts(self, key: str) -> dict[str, str]:
        """Return a mapping of texts; numbers and booleans are taken as they are written."""
        node = self.get(key)
        if node is None:
            return {}
        if not isinstance(node.value, dict):
            self._wrong(key, node, "a mapping")
            return {}
        texts = {}
        for name, child in node.value.items():
            value = child.value
            if isinstance(value, str | int | float):
                texts[name] = child.written or str(value)
            else:
                self.problems.add(child, f"`{name}` of `{key}` must be text, not {child.kind}")
        return texts

    def variables(self, key: str) -> dict[str, str]:
        """Return a mapping of texts that can be an environment."""
        variables = self.texts(key)
        node = self.get(key)
        for name, value in variables.items():
            place = node.value[name] if node else self.node
            if not name or "=" in name or "\0" in name:
                self.problems.add(place, f"{name[:60]!r} cannot be the name of a variable")
            if "\0" in value:
                self.problems.add(place, f"`{name[:60]}` of `{key}` holds a NUL character")
        return variables

    def _wrong(self, key: str, node: Node, expected: str) -> None:
        self.problems.add(node, f"`{key}` of {self.what} must be {expected}, not {describe(node)}")


def describe(node: Node) -> str:
    """Describe a value in a message: its type, or the value itself where that is short."""
    if isinstance(node.value, str | int | float):
        return f"{str(node.value)[:40]!r}" if isinstance(node.value, str) else str(node.value).lower()
    return node.kind


def parse_duration(value: Any) -> float | None:
    """Return the seconds of a duration; None if it is not one."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if 0 <= value <= MAX_SECONDS else None
    if not isinstance(value, str) or not value:
        return None
    match = _DURATION.fullmatch(value.strip())
    if match is None or not any(match.groups()):
        return None
    hours, minutes, seconds, thousandths = (float(part or 0) for part in match.groups())
    total = hours * 3600 + minutes * 60 + seconds + thousandths / 1000
    return total if total <= MAX_SECONDS else None
