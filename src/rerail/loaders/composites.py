"""`map`, `loop` and `pipeline` in a pipeline file: the options of steps that execute other steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from rerail.core.expressions import jsonpath, placeholders
from rerail.core.expressions.language import VisibleNames
from rerail.core.model import Loop, Map, Source, Step, Subpipeline
from rerail.loaders.budgets import read_budget
from rerail.loaders.document import Node
from rerail.loaders.expressions import Expressions
from rerail.loaders.fields import Fields, Problems, describe

CONTROLLERS = ("map", "loop", "pipeline")
MAP_KEYS = tuple("over key filter sort limit offset min_items parallel max_failures on_item_failure item_budget".split())
LOOP_KEYS = tuple("max_iterations until while delay stop_if_no_progress".split())
SOURCES = ("glob", "lines", "json", "command")
# Options of the controller itself; the others belong to the steps inside.
OPTIONS = tuple("id name needs when env retry allow_failure on_failure inputs artifacts budget".split())
MAX_PARALLEL = 10_000
MAX_ITERATIONS = 1_000_000


def check_options(fields: Fields, kind: str, options: tuple[str, ...]) -> None:
    """Report options that belong to the steps inside."""
    for key in options:
        node = fields.get(key)
        if node is not None and key not in OPTIONS:
            fields.problems.add(node, f"`{key}` of {fields.what} belongs to the steps of its {kind}")


def _check_steps_key(inner: Fields, kind: str) -> None:
    if inner.has("steps"):
        inner.problems.add(inner.get("steps") or inner.node, f"`steps` belongs beside `{kind}`, not in it")


def read_map(fields: Fields, problems: Problems, visible: VisibleNames, directory: str) -> Map:
    """Read the options of a map; its steps are read elsewhere."""
    inner = Fields(fields.get("map") or fields.node, problems, f"`map` of {fields.what}")
    _check_steps_key(inner, "map")
    inner.only((*MAP_KEYS, "steps"))
    outside, inside = Expressions(problems, visible), Expressions(problems, _with_item(visible))
    for key in ("limit", "offset"):
        outside.everything(inner.get(key))
    inside.everything(inner.get("key"))
    count, percent = _failures(inner, problems)
    how: Any = inner.choice("on_item_failure", ("dlq", "stop", "skip"), "dlq")
    return Map(
        over=_source(inner, problems, outside, directory),
        steps=(),
        key=inner.text("key"),
        filter=inside.bare(inner, "filter"),
        sort=inside.bare(inner, "sort"),
        limit=_amount(inner, "limit", None),
        offset=_amount(inner, "offset", 0) or 0,
        min_items=inner.count("min_items", 0, minimum=0),
        parallel=min(inner.count("parallel", 0), MAX_PARALLEL),
        max_failures=count,
        max_failures_percent=percent,
        on_item_failure=how,
        item_budget=read_budget(inner, "item_budget", may_stop=False),
    )


def check_commits(fields: Fields, problems: Problems, map_: Map) -> None:
    """Report steps with `commit_required` in a work tree that parallel items share."""
    if map_.parallel == 1:
        return
    for step in _shared_commits(map_.steps, re.compile(r"\$\{\{[^}]*\bitem\b")):
        problems.add(
            fields.get("map") or fields.node,
            f"step `{step.local}` has `commit_required`, and the items of {fields.what} run in parallel in one work tree:"
            " a commit of one would count for another; give the map `parallel: 1`, or the step a `cwd` with `item` in it"
            " (a work tree of its own for each item)",
        )


def _shared_commits(steps: Iterable[Step], own_directory: re.Pattern[str]) -> Iterator[Step]:
    """Yield the steps at any depth with `commit_required` whose `cwd` does not tell items apart."""
    for step in steps:
        if step.commit_required and not own_directory.search(step.cwd):
            yield step
        yield from _shared_commits(step.on_failure, own_directory)
        if isinstance(step.action, Subpipeline):  # its params may give each item another directory
            yield from _shared_commits((*step.body, *step.action.finally_), re.compile(r"\$\{\{"))
        else:
            yield from _shared_commits(step.body, own_directory)


def _with_item(visible: VisibleNames) -> VisibleNames:
    return msgspec.structs.replace(visible, item=True)


def _amount(fields: Fields, key: str, default: int | None) -> int | str | None:
    node = fields.get(key)
    if node is None:
        return default
    if isinstance(node.value, str) and placeholders.has_placeholders(node.value):
        return node.value
    return fields.count(key, default or 0, minimum=0)


def _failures(fields: Fields, problems: Problems) -> tuple[int, float | None]:
    node = fields.get("max_failures")
    if node is None:
        return 0, None
    if isinstance(node.value, str) and node.value.endswith("%"):
        try:
            percent = float(node.value[:-1])
        except ValueError:
            percent = -1.0
        if 0 <= percent <= 100:
            return 0, percent
        problems.add(node, f"`max_failures` of {fields.what} must be a count or between 0% and 100%, not {node.value!r}")
        return 0, None
    return fields.count("max_failures", 0, minimum=0), None


def _source(fields: Fields, problems: Problems, expressions: Expressions, directory: str) -> Source:
    node = fields.get("over")
    nothing = Source(kind="list", value=[])
    if node is None:
        problems.add(fields.node, f"{fields.what} has no `over`: a list, an expression, or one of {', '.join(SOURCES)}")
        return nothing
    if isinstance(node.value, list):
        expressions.everything(node)
        return Source(kind="list", value=node.plain())
    if not isinstance(node.value, str | dict) or (
        isinstance(node.value, str) and not placeholders.has_placeholders(node.value)
    ):
        allowed = f"a list, an expression, or one of {', '.join(SOURCES)}"
        problems.add(node, f"`over` of {fields.what} must be {allowed}, not {describe(node)}")
        return nothing
    if isinstance(node.value, str):
        expressions.everything(node)
        return Source(kind="expression", value=node.value)
    return _outside_source(node, fields.what, problems, expressions, directory)


def _outside_source(node: Node, what: str, problems: Problems, expressions: Expressions, directory: str) -> Source:
    inner = Fields(node, problems, f"`over` of {what}")
    given = [kind for kind in SOURCES if inner.has(kind)]
    inner.only((*SOURCES, "path", "as"))
    if len(given) != 1:
        problems.add(node, f"`over` of {what} needs exactly one of {', '.join(SOURCES)}")
        return Source(kind="list", value=[])
    kind: Any = given[0]
    value = inner.text(kind)
    if not value.strip() or "\0" in value:
        problems.add(inner.get(kind) or node, f"`{kind}` of `over` of {what} is empty or holds a NUL character")
    for key, owner in (("path", "json"), ("as", "command")):
        if inner.has(key) and kind != owner:
            problems.add(inner.get(key) or node, f"`{key}` is only for `{owner}`")
    if kind == "command":
        expressions.script(inner.get(kind))
    else:
        expressions.everything(inner.get(kind))
    path = inner.text("path")
    if path:
        try:
            jsonpath.parse(path)
        except ValueError as error:
            problems.add(inner.get("path") or node, f"`path`: {error}")
    form: Any = inner.choice("as", ("lines", "json"), "lines")
    return Source(kind=kind, value=value, path=path, form=form, directory=directory)


def read_loop(fields: Fields, problems: Problems) -> Loop:
    """Read the options of a loop; its conditions and its steps are read elsewhere."""
    inner = Fields(fields.get("loop") or fields.node, problems, f"`loop` of {fields.what}")
    _check_steps_key(inner, "loop")
    inner.only((*LOOP_KEYS, "steps"))
    limit = inner.get("max_iterations")
    if limit is None:
        problems.add(inner.node, f"`loop` of {fields.what} has no `max_iterations`")
    count = inner.count("max_iterations", 1)
    if count > MAX_ITERATIONS:
        problems.add(limit or inner.node, f"`max_iterations` of {fields.what} is {count}; {MAX_ITERATIONS} at most")
        count = 1
    stall = inner.get("stop_if_no_progress")
    return Loop(
        steps=(),
        max_iterations=count,
        delay=inner.duration("delay") or 0.0,
        stop_if_no_progress=inner.count("stop_if_no_progress", 0, minimum=1) if stall else 0,
    )


def loop_conditions(fields: Fields, problems: Problems, visible: VisibleNames) -> tuple[str, str]:
    """Read `until` and `while`: they may use the results of every step inside."""
    inner = Fields(fields.get("loop") or fields.node, problems, f"`loop` of {fields.what}")
    expressions = Expressions(problems, visible)
    return expressions.bare(inner, "until"), expressions.bare(inner, "while")
