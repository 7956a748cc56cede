"""Masking of secrets in everything that is recorded or shown: as they are, and in the forms that programs print."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

from rerail.core.events import ItemsListed, Metrics

STARS = "***"
SHORTEST = 4  # characters: a shorter secret is in many texts that do not hold it, and all of these are masked
_HEAD = 4  # bytes by which a pattern is looked up
_FOLD = rb"(?:\r?\n)?"
_END = b""  # in a trie: a pattern ends here

# Members that are names, or one of a few words: masked they would name something else. They hold no secret because a
# pipeline, a header, an item or the name of an artifact with a secret in it is rejected where it is made.
_NAMES = frozenset(
    (
        *("unit", "step", "item", "value", "run", "parent", "fingerprint", "pipeline_sha256", "head", "owner", "options"),
        *("evidence", "suspects", "artifacts", "inputs", "status", "cause", "decision", "condition", "kind"),
    )
)
_OPEN = frozenset(("outputs", "variables"))  # members that hold any JSON value
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def too_short(secret: str) -> str:
    """Describe that a secret is in texts that do not hold it; '' if it is long enough."""
    if len(secret) >= SHORTEST:
        return ""
    count = f"{len(secret)} character{'s' if len(secret) > 1 else ''}"
    return f" ({count}: too short to be masked without masking other text)"


class Mask:
    """Set of secrets, and their replacement in text, in values and in streams of bytes."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        found = [_encoded_forms(secret) for secret in secrets]
        self._variables: dict[str, str] = {}
        self._folded = {_raw(form) for _, forms in found for form in forms}
        self._patterns = {_raw(form) for forms, _ in found for form in forms} | self._folded
        self._find = re.compile(_expression(self._patterns, self._folded)) if self._patterns else None
        self.longest = max(map(len, self._patterns), default=0)
        self._first = {pattern[0] for pattern in self._patterns}
        self._by_head: dict[bytes, list[bytes]] = {}
        for pattern in self._patterns:
            for length in range(1, min(len(pattern), _HEAD) + 1):
                self._by_head.setdefault(pattern[:length], []).append(pattern)

    @classmethod
    def of_variables(cls, secrets: Mapping[str, str]) -> Mask:
        """Make a mask of the values of variables, by their names."""
        mask = cls(secrets.values())
        mask._variables = dict(secrets)
        return mask

    def culprit(self, value: Any) -> str:
        """Describe the secret that bytes or a JSON value hold, by the name of its variable."""
        for variable, secret in self._variables.items():
            alone = Mask((secret,))
            if alone.data(value) != value if isinstance(value, bytes) else alone.value(value) != value:
                return f"the secret {self.text(variable)}{too_short(secret)}"
        return "a secret"

    @property
    def short(self) -> list[str]:
        """Names of the variables whose secrets are too short to be masked well."""
        return [self.text(variable) for variable, secret in self._variables.items() if len(secret) < SHORTEST]

    def __bool__(self) -> bool:
        return self._find is not None

    def data(self, data: bytes) -> bytes:
        return self._find.sub(STARS.encode(), data) if self._find else data

    def text(self, text: str) -> str:
        if self._find is None or not text:
            return text
        return self.data(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def value(self, value: Any) -> Any:
        """Return a JSON value with every text in it masked, keys included."""
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

    def holds(self, value: Any) -> bool:
        """Return whether a secret is in any text of a value: a struct, or a JSON value."""
        if self._find is None:
            return False
        if isinstance(value, str):
            return self._find.search(_raw(value)) is not None
        if isinstance(value, msgspec.Struct):
            return any(self.holds(getattr(value, name)) for name in value.__struct_fields__)
        if isinstance(value, Mapping):
            return any(self.holds(key) or self.holds(item) for key, item in value.items())
        return isinstance(value, list | tuple | set | frozenset) and any(map(self.holds, value))

    def metrics(self, metrics: Metrics) -> Metrics:
        """Return metrics with their names masked. A number cannot be masked: one that holds a secret is left out."""
        if self._find is None:
            return metrics
        return {self.text(name): number for name, number in metrics.items() if self.value(number) == number}

    def struct(self, struct: _Struct) -> _Struct:
        """Return an event, or another record, with every text in it masked that is not a name."""
        if self._find is None or isinstance(struct, ItemsListed):  # a list that holds a secret is rejected as a whole
            return struct
        changed = {}
        for name in _members(type(struct)):
            old = getattr(struct, name)
            if old:
                new = self._member(name, old)
                if new != old:
                    changed[name] = new
        return msgspec.structs.replace(struct, **changed) if changed else struct

    def _member(self, name: str, value: Any) -> Any:
        if name == "metrics":
            return self.metrics(value)
        if name == "models":
            return {self.text(model): self.metrics(metrics) for model, metrics in value.items()}
        return self.value(value) if name in _OPEN else self._typed(value)

    def _typed(self, value: Any) -> Any:
        """Return a value masked, with its type unchanged."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, msgspec.Struct):
            return self.struct(value)
        if isinstance(value, list | tuple):
            return type(value)(map(self._typed, value))
        if isinstance(value, dict):
            return {self.text(key) if isinstance(key, str) else key: self._typed(item) for key, item in value.items()}
        return value

    def safe_end(self, data: bytes) -> int:
        """Return how much of a stream can be masked and released: the rest may be the beginning of a secret."""
        if self._find is None:
            return len(data)
        newline = len(data) if data.endswith(b"\r") else data.rfind(b"\n")
        for at in range(max(len(data) - self.longest * 3, 0), len(data)):  # a folded one has line ends in between
            if data[at] in self._first and self._may_go_on(data, at, folded=at < newline):
                return self._before_overlap(data, at)
        return len(data)

    def _may_go_on(self, data: bytes, at: int, *, folded: bool) -> bool:
        """Return whether a secret may begin at this position and end in data still to come."""
        for pattern in self._by_head.get(data[at : at + _HEAD], ()):
            if len(pattern) > len(data) - at and pattern.startswith(data[at:]):
                return True
        if not folded:
            return False
        joined = _joined(data[at : at + 3 * _HEAD])
        if joined[:_HEAD] not in self._by_head:
            return False
        joined = _joined(data[at:])
        return any(
            len(pattern) > len(joined) and pattern.startswith(joined) and pattern in self._folded
            for pattern in self._by_head.get(joined[:_HEAD], ())
        )

    def _before_overlap(self, data: bytes, cut: int) -> int:
        """Return the cut, moved behind a secret that it would go through."""
        assert self._find is not None
        for match in self._find.finditer(data):
            if match.start() < cut < match.end():
                return match.end()
        return cut


@cache
def _members(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(name for name in kind.__struct_fields__ if name not in _NAMES)


def _encoded_forms(secret: str) -> tuple[set[str], set[str]]:
    from rerail.core.secret_forms import encoded_forms  # lazily, with its encodings: most runs have no secrets

    return encoded_forms(secret)


def _raw(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _joined(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"").replace(b"\n", b"").removesuffix(b"\r")


def _expression(patterns: Iterable[bytes], folded: set[bytes]) -> bytes:
    """Return one regex for all patterns that reads each byte once, however many there are; the longest match wins."""
    trie: dict[bytes, Any] = {}
    for pattern in patterns:
        node = trie
        for at in range(len(pattern)):
            fold = _FOLD if at and pattern in folded else b""
            node = node.setdefault(fold + re.escape(pattern[at : at + 1]), {})
        node[_END] = {}
    return _branches(trie)


def _branches(node: dict[bytes, Any]) -> bytes:
    ways = []
    for first, child in node.items():
        text, here = first, child
        while len(here) == 1 and _END not in here:  # no fork: written in a row, so that depth is forks, not bytes
            ((following, here),) = here.items()
            text += following
        if first != _END:
            ways.append(text + (_branches(here) if here.keys() != {_END} else b""))
    choice = b"(?:" + b"|".join(ways) + b")"
    return choice + b"?" if _END in node else choice


class StreamMask:
    """Mask of a stream that arrives in pieces, wherever it is cut."""

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
