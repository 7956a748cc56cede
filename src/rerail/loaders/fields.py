"""Typed fields of a document, read with every problem collected instead of stopping at the first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rerail.errors import Diagnostic
from rerail.loaders.document import Node
from rerail.loaders.source import SourceText
from rerail.loaders.synonyms import meant
from rerail.text import one_line

_AMOUNT = r"([0-9]{1,12}(?:\.[0-9]+)?)"
_DURATION = re.compile(f"(?:{_AMOUNT}h)?(?:{_AMOUNT}m)?(?:{_AMOUNT}s)?(?:{_AMOUNT}ms)?")
MAX_SECONDS = 1e11  # seconds: some three thousand years
# Keys of later versions get an honest answer instead of "unknown".
PLANNED = frozenset("agent keep".split())


MAX_PROBLEMS = 100
MAX_HELP = 1_000


class Problems:
    """Problems of a file, each with its position."""

    def __init__(self, path: str, *, strict: bool = False) -> None:
        self._path = path
        self._found: list[Diagnostic] = []
        self._count = {"error": 0, "warning": 0}
        self._more = 0
        self._included: list[Problems] = []
        self.strict = strict  # whether warnings are looked for
        self.work = 0  # spent on checking expressions
        self.source = SourceText()
        self.secrets: tuple[str, ...] = ()  # that the file declares

    def add(self, node: Node, message: str, *, fix: str = "", code: str = "invalid") -> None:
        self.add_at(node.line, node.column, message, fix=fix, code=code)

    def add_at(
        self, line: int, column: int, message: str, *, fix: str = "", code: str = "invalid", length: int = 0
    ) -> None:
        self._add(line, column, Diagnostic(message=one_line(message), help=one_line(fix, MAX_HELP), code=code), length)

    def add_piece(self, node: Node, offset: int, piece: str, message: str, *, fix: str = "", code: str) -> None:
        """Add a problem of a piece of a text, by its offset."""
        diagnostic = Diagnostic(message=one_line(message), help=one_line(fix, MAX_HELP), code=code)
        self._add(*self._place(node, offset, piece), diagnostic, len(piece.split("\n", 1)[0]))

    def warn(self, node: Node, offset: int, piece: str, message: str, *, fix: str = "", code: str) -> None:
        """Add a warning about a piece of a text."""
        diagnostic = Diagnostic(message=one_line(message), help=one_line(fix, MAX_HELP), code=code, severity="warning")
        self._add(*self._place(node, offset, piece), diagnostic, len(piece.split("\n", 1)[0]))

    def _place(self, node: Node, offset: int, piece: str) -> tuple[int, int]:
        line, column = node.place(offset)
        return self.source.find(line, column, piece) or self.source.find(node.line, node.column, piece) or (line, column)

    def _add(self, line: int, column: int, diagnostic: Diagnostic, length: int) -> None:
        end = column + length if length else 0
        diagnostic = diagnostic._replace(file=self._path, line=line, column=column, end=end)
        if diagnostic in self._found:
            return  # an `env` that several steps share is checked for each
        if self._count[diagnostic.severity] >= MAX_PROBLEMS:
            self._more += 1
        else:
            self._count[diagnostic.severity] += 1
            self._found.append(diagnostic)

    @property
    def many(self) -> bool:
        """Whether there are so many errors already that more would not be read."""
        return self._count["error"] >= MAX_PROBLEMS

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """All problems in the order of the file, each with its line; then those of included files."""
        path = one_line(self._path)
        found = []
        for one in sorted(self._found, key=lambda one: (one.line, one.column)):
            source = self.source.line(one.line)
            end = one.end or self.source.end(one.line, one.column)
            found.append(one._replace(file=path, source=source, end=min(end, len(source) + 1)))
        if self._more:
            severity = "error" if self.failed else "warning"
            found.append(Diagnostic(f"and {self._more} more problems", file=path, severity=severity, code="more"))
        return found + [one for inner in self._included for one in inner.diagnostics]

    @property
    def declared(self) -> tuple[str, ...]:
        """Names of secrets that the files declare."""
        return self.secrets + tuple(name for inner in self._included for name in inner.declared)

    def of(self, path: str) -> Problems:
        """Return the problems of a file that this one includes."""
        inner = Problems(path, strict=self.strict)
        self._included.append(inner)
        return inner

    @property
    def failed(self) -> bool:
        """Whether there is an error, not only warnings."""
        return any(one.severity == "error" for one in self._found) or any(inner.failed for inner in self._included)

    def __bool__(self) -> bool:
        return self.failed


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
            problems.add(node, f"{what} must be a mapping, not {node.kind}", fix=_missing_space(node), code="type")

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
            guess = "" if self.problems.many else meant(key[:100], names)
            fix = f"did you mean `{guess}`?" if guess else f"known here: {', '.join(sorted(names))}"
            self.problems.add_at(line, column, f"unknown key `{key[:100]}`", fix=fix, code="unknown-key")

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
        self.problems.add(node, f"`{key}` of {self.what} must be {expected}, not {describe(node)}", code="type")


def _missing_space(node: Node) -> str:
    """Return the fix for text that would be a mapping with a space after its colon."""
    match = re.match(r"([\w-]{1,60}):(?=\S)", node.value) if isinstance(node.value, str) and not node.quoted else None
    return f"put a space after the colon: `{match[1]}: …`" if match else ""


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
