"""Outputs and metrics of steps: parsed from their channels, and validated before they are recorded."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, TypeGuard

import msgspec

from rerail.core.events import Metrics
from rerail.core.money import COST, COUNTED, MAX_COST, plus

MAX_BYTES = 1_000_000
MAX_METRIC = 1e15  # so that no sum exceeds the numbers JSON can hold
_NAMED = 5  # warnings about one channel that are shown

_MODEL = re.compile(r"[^\x00-\x1f\x7f]{1,100}")
MAX_MODELS = 50  # of one attempt
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}
_MAX_DEPTH = 50


def parse_outputs(data: bytes) -> dict[str, Any]:
    """Parse `name=value` lines and JSON objects; raise ValueError that names the line that is neither."""
    outputs: dict[str, Any] = {}
    for number, text in _lines(data, "$RERAIL_OUTPUT"):
        if text.startswith("{"):
            found = _object(text, number, "$RERAIL_OUTPUT")
        else:
            name, equals, value = text.partition("=")
            if not equals:
                raise ValueError(f"$RERAIL_OUTPUT line {number}: neither name=value nor a JSON object: {text!r}")
            found = {name.strip(): typed(value)}
        for name, value in found.items():
            if not _NAME.fullmatch(name):
                raise ValueError(f"$RERAIL_OUTPUT line {number}: {name!r} cannot be the name of an output")
            outputs[name] = value
    return outputs


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage that an attempt reports: the metrics of all of it, and those of each model."""

    metrics: Metrics = {}
    models: dict[str, Metrics] = {}


def parse_metrics(data: bytes) -> tuple[Usage, tuple[str, ...]]:
    """Parse JSON objects of numbers, line by line; lines add up. Return the usage and warnings.

    A line may name the `model` it is about. Invalid values are named in a warning and not counted.
    """
    totals: Metrics = {}
    models: dict[str, Metrics] = {}
    warnings: list[str] = []
    channel = "$RERAIL_METRICS"
    for number, found in _objects(_whole_lines(data), channel, warnings):
        model = found.pop("model", None)
        if model is not None and not (isinstance(model, str) and _MODEL.fullmatch(model)):
            warnings.append(f"{channel} line {number}: model is not a name")
            model = None
        if model is not None and len(models) >= MAX_MODELS and model not in models:
            warnings.append(f"{channel} line {number}: more than {MAX_MODELS} models")
            model = None
        own = models.setdefault(model, {}) if model else {}
        for name, value in found.items():
            if not _is_number(value):
                warnings.append(f"{channel} line {number}: {name} is not a number that can be counted")
            elif value < 0 and name in COUNTED:
                warnings.append(f"{channel} line {number}: {name} is below zero, and was not counted")
            elif name in COUNTED and name != COST and value != int(value):
                warnings.append(f"{channel} line {number}: {name} is not a whole number, and was not counted")
            elif value > MAX_COST and name == COST:
                warnings.append(f"{channel} line {number}: {name} is more than {MAX_COST:.0f}, and was not counted")
            else:
                totals[name] = plus(totals.get(name, 0), value)
                own[name] = plus(own.get(name, 0), value)
    if len(data) > MAX_BYTES:
        warnings.insert(0, f"{channel} has more than {MAX_BYTES} bytes; the rest was not counted")
    return Usage(metrics=totals, models=models), _some(warnings)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress that a long step reports."""

    done: float
    total: float | None = None

    @property
    def share(self) -> float | None:
        """Share of the work done, between 0 and 1; None without a total."""
        return min(max(self.done / self.total, 0.0), 1.0) if self.total else None


def parse_progress(data: bytes) -> tuple[Progress | None, tuple[str, ...]]:
    """Return the newest `{"done": 3, "total": 18}` of a progress channel, and warnings about invalid lines."""
    newest: Progress | None = None
    warnings: list[str] = []
    channel = "$RERAIL_PROGRESS"
    for number, found in _objects(_whole_lines(data), channel, warnings):
        done, total = found.get("done"), found.get("total")
        if _is_number(done) and (total is None or (_is_number(total) and total > 0)):
            newest = Progress(done=done, total=total)
        else:
            warnings.append(f'{channel} line {number}: not like {{"done": 3, "total": 18}}')
    return newest, _some(warnings)


def _whole_lines(data: bytes) -> bytes:
    """Return the complete lines within the size limit of a channel."""
    return data if len(data) <= MAX_BYTES else data[: data.rfind(b"\n", 0, MAX_BYTES) + 1]


def _some(warnings: list[str]) -> tuple[str, ...]:
    more = (f"and {len(warnings) - _NAMED} more like that",) if len(warnings) > _NAMED else ()
    return (*warnings[:_NAMED], *more)


def _objects(data: bytes, channel: str, warnings: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the JSON objects of a channel with their line numbers; append a warning for each invalid line."""
    for number, raw in enumerate(data.split(b"\n"), 1):
        try:
            text = raw.decode().strip()
            found = _object(text, number, channel) if text else {}
        except UnicodeDecodeError:
            warnings.append(f"{channel} line {number}: not UTF-8")
            continue
        except ValueError as error:
            warnings.append(str(error))
            continue
        if found:
            yield number, found


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_METRIC


def parse_captured(data: bytes, size: int, form: str, most: int = MAX_BYTES) -> Any:
    """Parse the captured stdout of a step as an output; raise ValueError that says why it cannot be one.

    `size` is the number of bytes printed in all, `data` those that were kept.
    """
    if size > most:
        raise ValueError(f"stdout has {size} bytes; {most} at most can be taken in")
    try:
        text = data.decode().rstrip("\n")
    except UnicodeDecodeError:
        raise ValueError("stdout is not UTF-8 and cannot be an output") from None
    if form == "lines":
        return text.split("\n") if text else []
    if form == "text":
        return text
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"stdout is not JSON: {error}") from None
    reason = problem(value, "stdout") or duplicate_name(text, value, "stdout")
    if reason:
        raise ValueError(reason)
    return value


def typed(text: str) -> Any:
    """Convert a canonical JSON number, boolean or null; anything else stays text, also `1.10` and `007`."""
    if text in _WORDS:
        return _WORDS[text]
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    if match[2] is None and match[3] is None:
        return int(text)
    value = float(text)
    return value if math.isfinite(value) and repr(value) == text else text


_INT64_BOUND = 2**63


def problem(value: Any, where: str = "outputs", depth: int = 0) -> str:
    """Return why a value cannot be stored exactly as JSON, or ''. A value that would come back altered is rejected."""
    if depth > _MAX_DEPTH:
        return f"{where} is nested deeper than {_MAX_DEPTH} levels"
    if value is None or type(value) in (bool, int, float, str):
        return _scalar_problem(value, where)
    if type(value) is list:
        return next(filter(None, (problem(item, f"{where}[{at}]", depth + 1) for at, item in enumerate(value))), "")
    if type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                return f"{where} has a key that is not text: {key!r}"
            if (
                type(item) is bool
                or (type(item) is str and item.isascii())
                or (type(item) is int and -_INT64_BOUND < item < _INT64_BOUND)
            ):
                continue
            reason = problem(item, f"{where}.{key}", depth + 1)
            if reason:
                return reason
        return ""
    return f"{where} is a {type(value).__name__}, which JSON cannot hold exactly"


def duplicate_name(text: str, value: Any, where: str) -> str:
    """Return the problem with a JSON text whose object has a duplicate name, or ''.

    `value` is the decoded text, in which one of the two values is lost.
    """
    if text.count(":") == _names(value):  # as many colons as names: no name was lost, and no text holds a colon
        return ""
    import json

    duplicates: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> None:
        names = set()
        for name, _ in pairs:
            if name in names:
                duplicates.append(name)
            names.add(name)

    json.loads(text, object_pairs_hook=collect)
    return f"{where} gives {duplicates[0]!r} two values" if duplicates else ""


def _names(value: Any) -> int:
    if type(value) is dict:
        return len(value) + sum(map(_names, value.values()))
    return sum(map(_names, value)) if type(value) is list else 0


def _scalar_problem(value: Any, where: str) -> str:
    if type(value) is int and not -_INT64_BOUND <= value < _INT64_BOUND:
        return f"{where} is an integer beyond 64 bits; output it as text"
    if type(value) is float and not math.isfinite(value):
        return f"{where} is {value}, which JSON cannot hold"
    return _surrogate(value, where) if type(value) is str and not value.isascii() else ""


def clean(text: str) -> str:
    """Return text that can be encoded: lone surrogates are written as escapes."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _surrogate(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"{where} holds half a character (a lone surrogate)"
    return ""


def _lines(data: bytes, channel: str) -> list[tuple[int, str]]:
    if len(data) > MAX_BYTES:
        raise ValueError(f"{channel} has {len(data)} bytes; {MAX_BYTES} at most (write a file and output its path)")
    result = []
    for number, raw in enumerate(data.split(b"\n"), 1):
        try:
            text = raw.decode().strip()
        except UnicodeDecodeError:
            raise ValueError(f"{channel} line {number}: not UTF-8") from None
        if text:
            result.append((number, text))
    return result


def _object(text: str, number: int, channel: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{channel} line {number}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{channel} line {number}: not a JSON object")
    reason = problem(value, f"{channel} line {number}") or duplicate_name(text, value, f"{channel} line {number}")
    if reason:
        raise ValueError(reason)
    return value
