"""The item list of a map: the values of its source, filtered, sorted, limited, each with a key. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from rerail.core.events import Event, ItemEdited, ItemsListed
from rerail.core.expressions import language
from rerail.core.expressions.language import ExpressionError, Scope
from rerail.core.items import COMPLETED, FAILED, SKIPPED, first_duplicate, ranges
from rerail.core.model import Map
from rerail.core.unit_id import UnitId, escape_key

MAX_BYTES = 100_000  # of one item: it travels in an environment variable
MAX_ITEMS = 1_000_000
KEY_BYTES = 200
IN_ONE_RECORD = 1_000
DIGEST_CHARS = 12
TAGS = ("items-listed", "item-edited")  # the records of a list


_encode = msgspec.json.Encoder(order="deterministic").encode


class ItemListStopped(Exception):
    """Stop request that arrived before the items were listed."""


class ItemListError(ValueError):
    """Problem with an item list, as text for people."""


class ItemList(msgspec.Struct, kw_only=True):
    """Items of a map. `values` is None where every item is its own key."""

    keys: list[str]
    values: list[Any] | None
    digest: str
    source: str = ""  # fingerprint of the command that made it
    edited: dict[int, Any] = {}  # values that people changed

    def value(self, index: int) -> Any:
        return self.edited[index] if index in self.edited else self.original(index)

    def original(self, index: int) -> Any:
        return self.keys[index] if self.values is None else self.values[index]

    def edit(self, index: int, value: Any) -> None:
        self.edited = {**self.edited, index: value}


def listing(raw: Any, action: Map, scope: Scope) -> ItemList:
    """Build the item list from the value of a source; raise ItemListError that names the item at fault."""
    if not isinstance(raw, list):
        raise ItemListError(f"`over` must evaluate to a list, not {_kind(raw)}")
    values = list(enumerate(raw, 1))
    if action.filter:
        values = [(at, value) for at, value in values if _of(action.filter, "filter", at, value, scope)]
    if action.sort:
        values = _sorted(values, action.sort, scope)
    begin, most = _number(action.offset, "offset", scope) or 0, _number(action.limit, "limit", scope)
    values = values[begin:] if most is None else values[begin : begin + most]
    if len(values) > MAX_ITEMS:
        raise ItemListError(f"{len(values)} items; {MAX_ITEMS} at most")
    few = too_few(len(values), action)
    if few:
        raise ItemListError(few)
    keys = [_key(at, value, action.key, scope) for at, value in values]
    twice = first_duplicate(keys)
    if twice is not None:
        where = [str(at) for (at, _), key in zip(values, keys, strict=True) if key == twice]
        raise ItemListError(f"the key {twice!r} names {len(where)} items, numbers {' and '.join(where[:5])}")
    plain = [value for _, value in values]
    return with_digest(keys, None if plain == keys else plain)


def too_few(count: int, action: Map) -> str:
    """Return the problem with a list that is shorter than the map wants, or ''."""
    if count >= action.min_items:
        return ""
    return f"{count or 'no'} item{'' if count == 1 else 's'}, and `min_items` is {action.min_items}"


def with_digest(keys: list[str], values: list[Any] | None) -> ItemList:
    """Return an ItemList with its digest."""
    digest = hashlib.sha256(_encode([keys, values])).hexdigest()[:32]
    return ItemList(keys=keys, values=values, digest=digest)


def _key(at: int, value: Any, expression: str, scope: Scope) -> str:
    if not expression:  # most are short plain text or numbers, and valid
        if type(value) is int:
            return str(value)
        if (
            type(value) is str
            and 0 < len(value) < KEY_BYTES
            and value.isascii()
            and value.isprintable()
            and ":" not in value
        ):
            return value
    return _checked_key(at, value, expression, scope)


def _checked_key(at: int, value: Any, expression: str, scope: Scope) -> str:
    if expression:
        try:
            key = language.render(expression, _with(scope, value))
        except ExpressionError as error:
            raise ItemListError(f"the key of item {at} ({_shown(value)}) cannot be evaluated: {error}") from None
    elif isinstance(value, str):
        key = value
    elif isinstance(value, int | float | bool) or value is None:
        key = language.as_text(value)
    else:
        key = hashlib.sha256(_encode(value)).hexdigest()[:DIGEST_CHARS]
    if not key:
        raise ItemListError(f"the key of item {at} is empty")
    check_item(key, value)
    if len(key.encode()) > KEY_BYTES:
        if expression:
            raise ItemListError(f"the key of item {at} is longer than {KEY_BYTES} bytes: {_shown(key)}")
        key = hashlib.sha256(_encode(value)).hexdigest()[:DIGEST_CHARS]
    return escape_key(key)


def check_item(key: str, value: Any) -> None:
    """Reject an item that is too large, holds a NUL, or cannot be encoded; raise ItemListError."""
    try:
        key.encode()
        size = len(_encode(value))
    except UnicodeEncodeError:
        raise ItemListError(f"item {_shown(key)} is not text that can be recorded") from None
    if size > MAX_BYTES:
        raise ItemListError(
            f"item {_shown(key)} has {size} bytes; {MAX_BYTES} at most: write it to a file and use the path as the item"
        )
    if "\0" in key or _holds_nul(value):
        raise ItemListError(f"item {_shown(key)} holds a NUL character, which no process can be given")


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_holds_nul(inner) for pair in value.items() for inner in pair)
    return isinstance(value, list) and any(_holds_nul(inner) for inner in value)


def _of(expression: str, what: str, at: int, value: Any, scope: Scope) -> Any:
    try:
        return language.evaluate(expression, _with(scope, value))
    except ExpressionError as error:
        raise ItemListError(f"`{what}` has no value for item {at} ({_shown(value)}): {error}") from None


def _sorted(values: list[tuple[int, Any]], expression: str, scope: Scope) -> list[tuple[int, Any]]:
    by = [(_of(expression, "sort", at, value, scope), (at, value)) for at, value in values]
    try:
        return [pair for _, pair in sorted(by, key=lambda entry: entry[0])]
    except TypeError as error:
        raise ItemListError(f"`sort` gives values that cannot be compared: {error}") from None


def _number(wanted: int | str | None, what: str, scope: Scope) -> int | None:
    if not isinstance(wanted, str):
        return wanted
    try:
        number = language.render_value(wanted, scope)
    except ExpressionError as error:
        raise ItemListError(f"`{what}`: {error}") from None
    if isinstance(number, str) and number.isascii() and number.isdecimal():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ItemListError(f"`{what}` must evaluate to a whole number, not {_shown(number)}")
    return number


def _with(scope: Scope, value: Any) -> Scope:
    return msgspec.structs.replace(scope, more={**scope.more, "item": value})


def _kind(value: Any) -> str:
    names = {dict: "a mapping", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "nothing")


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else language.as_text(value)
    return (
        repr(text) if len(text) <= 40 else f"{len(text)} characters"
    )  # Truncated, half a secret would not be recognised.


class ListDiff(msgspec.Struct, kw_only=True):
    """Difference of two lists: the items of the earlier one that still count in the new one."""

    marks: bytearray
    gone: tuple[str, ...]
    new: int
    changed: tuple[str, ...]
    positions: dict[str, int]  # of items that are still there

    @property
    def words(self) -> str:
        parts = [f"{self.new} new" if self.new else "", f"{len(self.changed)} changed" if self.changed else ""]
        parts.append(f"{len(self.gone)} gone ({', '.join(self.gone[:3])})" if self.gone else "")
        return "its items changed: " + (", ".join(filter(None, parts)) or "in another order")


def diff(old: ItemList, marks: bytes | bytearray, new: ItemList) -> ListDiff:
    """Match the items of a new list with those of the old one, by key and content, and keep their statuses."""
    before = {key: index for index, key in enumerate(old.keys)}
    statuses = bytearray(len(new.keys))
    positions: dict[str, int] = {}
    fresh = 0
    changed: list[str] = []
    for index, key in enumerate(new.keys):
        old_index = before.pop(key, None)
        if old_index is None:
            fresh += 1
        elif _encode(old.original(old_index)) == _encode(new.value(index)):
            statuses[index] = marks[old_index]
            positions[key] = index
            if old_index in old.edited:
                new.edit(index, old.edited[old_index])
        else:
            changed.append(key)
    gone = tuple(before)
    return ListDiff(marks=statuses, gone=gone, new=fresh, changed=tuple(changed), positions=positions)


def records(
    unit: UnitId,
    listing: ItemList,
    at: datetime,
    difference: ListDiff | None = None,
    remembered: Iterable[str] = (),
) -> Iterator[ItemsListed]:
    """Yield the events that record a list, in parts of bounded length.

    `remembered` are the keys that the state has units of.
    """
    keys, values = listing.keys, listing.values
    for first in range(0, max(len(keys), 1), IN_ONE_RECORD):
        part = slice(first, first + IN_ONE_RECORD)
        kept_members: dict[str, Any] = {}
        if first == 0 and difference is not None:
            kept_members = {
                "completed": ranges(difference.marks, COMPLETED),
                "failed": ranges(difference.marks, FAILED),
                "skipped": ranges(difference.marks, SKIPPED),
                "gone": (*difference.gone, *difference.changed),  # of neither does any recorded state count any more
                "edited": {keys[index]: value for index, value in listing.edited.items()},
                "moved": {key: difference.positions[key] for key in remembered if key in difference.positions},
            }
        yield ItemsListed(
            at=at,
            step=unit.step,
            item=unit.item,
            total=len(keys),
            first=first,
            keys=tuple(keys[part]),
            values=None if values is None else tuple(values[part]),
            digest=listing.digest,
            source=listing.source if first == 0 else "",
            **kept_members,
        )


def recorded(history: Iterable[Event], unit: UnitId) -> ItemList | None:
    """Return the newest recorded list of a map, with later edits applied; None if it is incomplete."""
    events: list[ItemsListed] = []
    edits: list[ItemEdited] = []
    for event in history:
        if isinstance(event, ItemsListed) and event.unit == unit:
            events.append(event)
            edits = [] if event.first == 0 else edits
        elif isinstance(event, ItemEdited) and event.unit.is_item_of(unit):
            edits.append(event)
    first_record = max((at for at, event in enumerate(events) if event.first == 0), default=-1)
    if first_record < 0:
        return None
    keys: list[str] = []
    values: list[Any] = []
    for event in events[first_record:]:
        keys += event.keys
        values += event.keys if event.values is None else event.values
    if len(keys) != events[first_record].total:
        return None
    changed = edits or events[first_record].edited
    positions = {key: index for index, key in enumerate(keys)} if changed else {}
    head = events[first_record]
    listing = ItemList(keys=keys, values=None if values == keys else values, digest=head.digest, source=head.source)
    for key, value in (
        *events[first_record].edited.items(),
        *((edit.unit.key, edit.value) for edit in edits),
    ):
        if key in positions:
            listing.edit(positions[key], value)
    return listing
