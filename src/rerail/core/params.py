"""Params of a run: the given values, checked against the declarations of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rerail.core.model import Param
from rerail.core.values import typed

_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_HOW = {
    "boolean": " (true, yes, on, 1, or false, no, off, 0)",
    "list": " (a,b or JSON such as [1,2])",
}


class Repeated(list[str]):
    """Values of a param that was given several times: all of them for a list, the last one for any other type."""


def resolve(declared: Mapping[str, Param], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return all params with defaults filled in, and the problems with the given ones."""
    there = f"it has {', '.join(declared)}" if declared else "it has none"
    problems = [f"the pipeline has no param `{name}`; {there}" for name in given if name not in declared]
    values: dict[str, Any] = {}
    for name, param in declared.items():
        if name in given:
            value, problem = _converted(name, param, given[name])
            if problem:
                problems.append(problem)
            values[name] = value
        elif param.required:
            problems.append(f"missing required param `{name}`")
        else:
            values[name] = param.default
    return values, problems


def wrong_choice(param: Param) -> str:
    """Return the problem with the declared choices, or ''."""
    bad = [choice for choice in param.choices if _as_type(param.type, choice) != choice]
    return f"the choice {bad[0]!r} is not of type {param.type}" if bad else ""


def wrong_default(param: Param) -> str:
    """Return the problem with the declared default, or ''."""
    if param.default is None:
        return ""
    converted = _as_type(param.type, param.default)
    if converted is None or type(converted) is not type(param.default):
        return f"the default {param.default!r} is not of type {param.type}"
    if param.choices and converted not in param.choices:
        return f"the default {param.default!r} is not one of its choices"
    return ""


def _converted(name: str, param: Param, value: Any) -> tuple[Any, str]:
    if isinstance(value, Repeated):
        value = list(value) if param.type == "list" else value[-1]
    converted = _as_type(param.type, value)
    if converted is None:
        if isinstance(value, list):
            return value, f"the param `{name}` takes one value of type {param.type}, not {len(value)}: {repr(value)[:60]}"
        how = _HOW.get(param.type, "")
        return value, f"the param `{name}` must be of type {param.type}{how}, not {repr(value)[:60]}"
    if param.choices and converted not in param.choices:
        choices = ", ".join(str(choice) for choice in param.choices)
        return value, f"the param `{name}` must be one of {choices}, not {repr(value)[:60]}"
    return converted, ""


def _list(value: Any) -> list[Any] | None:
    """Parse a list from text: JSON if it begins with a bracket, else texts between commas; None if it is not a list."""
    if not isinstance(value, str):
        return None
    if not value.lstrip().startswith("["):
        return [part for part in map(str.strip, value.split(",")) if part]
    try:
        found: list[Any] = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found


def _as_type(kind: str, value: Any) -> Any:
    """Convert a value to a param type; None if it cannot be converted."""
    guess = typed(value) if isinstance(value, str) else value
    match kind:
        case "integer":
            return guess if type(guess) is int else None
        case "number":
            return guess if type(guess) in (int, float) else None
        case "boolean":
            return _BOOLEANS.get(value.lower()) if isinstance(value, str) else value if type(value) is bool else None
        case "list":
            return value if isinstance(value, list) else _list(value)
        case _:
            return value if isinstance(value, str) else None
