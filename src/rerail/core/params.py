"""Params of a run: the given values, checked against the declarations of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rerail.core.model import Param
from rerail.core.values import typed


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
            problems.append(f"missing required param `{name}` (-p {name}=VALUE)")
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
    converted = _as_type(param.type, value)
    if converted is None:
        return value, f"the param `{name}` must be of type {param.type}, not {repr(value)[:60]}"
    if param.choices and converted not in param.choices:
        choices = ", ".join(str(choice) for choice in param.choices)
        return value, f"the param `{name}` must be one of {choices}, not {repr(value)[:60]}"
    return converted, ""


def _json_list(value: Any) -> list[Any] | None:
    """Parse a list from the command line, where it is JSON; None if it is not a list."""
    try:
        found = msgspec.json.decode(value) if isinstance(value, str) else None
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def _as_type(kind: str, value: Any) -> Any:
    """Convert a value to a param type; None if it cannot be converted."""
    guess = typed(value) if isinstance(value, str) else value
    match kind:
        case "integer":
            return guess if type(guess) is int else None
        case "number":
            return guess if type(guess) in (int, float) else None
        case "boolean":
            return guess if type(guess) is bool else None
        case "list":
            return value if isinstance(value, list) else _json_list(value)
        case _:
            return value if isinstance(value, str) else None
