"""Which params and which results of other steps a step reads, as far as its texts say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rerail.core.expressions import placeholders
from rerail.core.model import Approve, Inner, Loop, Map, Python, Run, Step, Write

EVERYTHING = "*"  # the expression does not say which

_NAME = re.compile(r"\b(params|steps)\b(?:\s*\.\s*([A-Za-z_]\w*)|\s*\[\s*['\"]([^'\"]+)['\"]\s*\])?")


def references(step: Step, shared_env: Mapping[str, str]) -> tuple[frozenset[str], frozenset[str]]:
    """The params and the steps that the expressions of a step name."""
    if not step.dynamic:
        return frozenset(), frozenset()
    found: dict[str, set[str]] = {"params": set(), "steps": set()}
    for expression in _expressions(step, shared_env):
        for root, attribute, key in _NAME.findall(expression):
            found[root].add(attribute or key or EVERYTHING)
    return frozenset(found["params"]), frozenset(found["steps"])


def _expressions(step: Step, shared_env: Mapping[str, str]) -> Iterator[str]:
    if step.when:
        yield step.when
    match step.action:
        case Map(over=over, key=key, filter=wanted, sort=sort):
            yield from (text for text in (key, wanted, sort) if text)
            yield from (text for text in (over.value,) if isinstance(text, str) and over.kind == "expression")
        case Loop(until=until, while_=while_):
            yield from (text for text in (until, while_) if text)
        case _:
            pass
    for inner in step.body:
        yield from _expressions(inner, shared_env)
    for text in _texts(step, shared_env):
        if placeholders.has_holes(text):
            yield from (expression for _, expression, _ in placeholders.split(text) if expression is not None)


def _texts(step: Step, shared_env: Mapping[str, str]) -> Iterator[str]:
    yield from (*shared_env.values(), *step.env.values(), step.cwd, *step.checks)
    yield from (declared.path for declared in (*step.artifacts, *step.inputs))
    match step.action:
        case Run(script=script):
            yield script
        case Python(arguments=arguments):
            yield from _inside(arguments)
        case Approve(message=message):
            yield message
        case Write(path=path, content=content):
            yield from (path, content)
        case Map(over=over, limit=limit, offset=offset):
            yield from (text for text in (over.value, limit, offset) if isinstance(text, str))
        case Inner(arguments=arguments):
            yield from _inside(arguments)
        case _:
            pass


def _inside(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for child in value.values():
            yield from _inside(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _inside(child)
