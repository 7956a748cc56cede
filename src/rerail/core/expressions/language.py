"""The expression language: `${{ … }}` in text, and bare expressions in `when:`.

A sandbox with strict names, bounded work, no I/O. Checked when the file is loaded: syntax, filters, and every name
against those that can exist. Evaluated when the step is about to run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from rerail.core.expressions import placeholders, sandbox
from rerail.core.expressions.sandbox import FILTERS, TESTS

ExpressionError = sandbox.ExpressionError
as_text = sandbox.as_text

MAX_EXPRESSION = 2_000
ROOTS = ("params", "env", "steps", "item", "loop", "run", "pipeline")
PIPELINE_NAMES = ("name",)
LOOP_NAMES = ("iteration",)
RUN_NAMES = ("id", "dir", "status")
STEP_NAMES = ("outputs", "status", "exit_code")
_SOMEWHERE = {"item": "the steps of a map", "loop": "the steps of a loop", "pipeline": "`concurrency`"}
_PATH = re.compile(r"(?:params|env|steps|run|item|loop|pipeline)(?:\.[A-Za-z_]\w*)+", re.ASCII)


class VisibleNames(msgspec.Struct, frozen=True, kw_only=True):
    """Names that can exist where an expression is."""

    params: Collection[str]
    steps: Collection[str]  # those whose results are known by then
    all_steps: Collection[str]  # all those of the pipeline
    item: bool = False
    loop: bool = False
    pipeline: bool = False  # in `concurrency`, which is evaluated before a run is created
    shared: bool = False  # in an `env` that several steps share


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Values of the names in an expression."""

    params: Mapping[str, Any]
    env: Mapping[str, str]
    steps: Mapping[str, Mapping[str, Any]]
    run: Mapping[str, Any]
    more: Mapping[str, Any] = {}  # `item`, `loop` and `pipeline`, where there are any

    def names(self) -> dict[str, Any]:
        return {"params": self.params, "env": self.env, "steps": self.steps, "run": self.run, **self.more}


def is_path(expression: str) -> bool:
    """Return whether it is only names with dots between them: most are, and they need no parser."""
    return _PATH.fullmatch(expression) is not None


def check(expression: str, visible: VisibleNames) -> str:
    """Return the problem with an expression, or ''."""
    if len(expression) > MAX_EXPRESSION:
        return f"the expression has {len(expression)} characters; {MAX_EXPRESSION} at most"
    if is_path(expression):
        wrong = _check_path(expression.split("."), visible)
        return f"`{expression}`: {wrong}" if wrong else ""
    try:
        return _check(expression, visible)
    except RecursionError:
        return "the expression is nested too deeply"


def _check(expression: str, visible: VisibleNames) -> str:
    from jinja2 import TemplateSyntaxError, nodes

    if not expression:
        return "the expression is empty"
    try:
        tree = sandbox.parsed(expression)
    except TemplateSyntaxError as error:
        return f"`{expression}`: {_plain(str(error))}"
    body = tree.body
    if len(body) != 1 or not isinstance(body[0], nodes.Output) or len(body[0].nodes) != 1:
        return f"`{expression}` is not one expression"
    for node in tree.find_all(nodes.Filter):
        if node.name not in FILTERS:
            return f"`{expression}`: unknown filter `{node.name}` (available: {', '.join(sorted(FILTERS))})"
    for node in tree.find_all(nodes.Test):
        if node.name not in TESTS:
            there = ", ".join(sorted(name for name in TESTS if name.isalpha()))
            return f"`{expression}`: unknown test `{node.name}` (available: {there})"
    return _check_names(expression, tree, visible)


def _check_names(expression: str, tree: Any, visible: VisibleNames) -> str:
    from jinja2 import nodes

    # Not `meta.find_undeclared_variables`, which evaluates constants.
    for name in sorted({node.name for node in tree.find_all(nodes.Name)}):
        if name not in ROOTS or (name in _SOMEWHERE and not getattr(visible, name)):
            return f"`{expression}`: {_unknown_root(name, expression, visible)}"
    paths = [_path(node) for node in tree.find_all((nodes.Getattr, nodes.Getitem))]
    for path in paths:
        wrong = _check_path(path, visible) if path else ""
        if wrong:
            return f"`{expression}`: {wrong}"
    return ""


def _unknown_root(name: str, expression: str, visible: VisibleNames) -> str:
    for step in visible.all_steps:
        if "-" in step and f"steps.{step}" in expression.replace(" ", ""):
            return f"write steps['{step}']: an id with `-` needs brackets"
    if name in visible.params:
        return f"unknown name `{name}`, did you mean `params.{name}`?"
    if name in visible.all_steps:
        return f"unknown name `{name}`, did you mean `steps.{name}`?"
    if name in _SOMEWHERE:
        return f"`{name}` exists only in {_SOMEWHERE[name]}"
    there = [*ROOTS[:3], *(root for root in _SOMEWHERE if getattr(visible, root)), "run"]
    return f"unknown name `{name}` (available: {', '.join(there)})"


def _path(node: Any) -> list[str]:
    """Return the names of `a.b['c']`, or [] if it does not start at a plain name or is computed on the way."""
    from jinja2 import nodes

    names: list[str] = []
    while isinstance(node, nodes.Getattr | nodes.Getitem):
        if isinstance(node, nodes.Getattr):
            names.append(node.attr)
        elif isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            names.append(node.arg.value)
        else:
            return []
        node = node.node
    return [node.name, *reversed(names)] if isinstance(node, nodes.Name) else []


def _check_path(path: Sequence[str], visible: VisibleNames) -> str:
    match path:
        case ["params", name, *_] if name not in visible.params:
            return f"no param `{name}`{_near(name, visible.params)}"
        case ["item" | "loop" | "pipeline" as root, *_] if not getattr(visible, root):
            return _unknown_root(root, root, visible)
        case ["pipeline", name, *_] if name not in PIPELINE_NAMES:
            return f"`pipeline` has {', '.join(PIPELINE_NAMES)}, not `{name}`"
        case ["loop", name, *_] if name not in LOOP_NAMES:
            return f"`loop` has {', '.join(LOOP_NAMES)}, not `{name}`"
        case ["run", name, *_] if name not in RUN_NAMES:
            return f"`run` has {', '.join(RUN_NAMES)}, not `{name}`"
        case ["steps", name, *_] if name not in visible.all_steps:
            return f"no step `{name}`{_near(name, visible.all_steps)}"
        case ["steps", name, *_] if name not in visible.steps:
            if visible.shared:
                return (
                    f"step `{name}` may not have run when a step is given this `env`;"
                    " put the variable into the `env` of the step that uses it"
                )
            return f"step `{name}` may not have run yet; add it to `needs`"
        case ["steps", _, name, *_] if name not in STEP_NAMES:
            return f"a step has {', '.join(STEP_NAMES)}, not `{name}`"
        case _:
            return ""


def _near(name: str, names: Collection[str]) -> str:
    import difflib

    likely = [candidate for candidate in names if abs(len(candidate) - len(name)) <= 2][:200]
    close = difflib.get_close_matches(name, likely, n=1)
    return f", did you mean `{close[0]}`?" if close else ""


def evaluate(expression: str, scope: Scope) -> Any:
    """Return the value of an expression; raise ExpressionError if it has none."""
    if is_path(expression):
        value: Any = scope.names()
        for name in expression.split("."):
            if not (isinstance(value, Mapping) and name in value):
                break
            value = value[name]
        else:
            return value if isinstance(value, str | list | dict) or not hasattr(value, "__iter__") else list(value)
    return _evaluated(expression, scope)


def _evaluated(expression: str, scope: Scope) -> Any:
    try:
        value = sandbox.evaluated(expression, scope.names())
        if sandbox.is_undefined(value):
            raise ExpressionError(_plain(str(value._undefined_message)) + _large(expression))
        return value
    except ExpressionError as error:
        raise ExpressionError(f"`{expression}`: {error}") from None
    except Exception as error:  # noqa: BLE001 - the user's expression: any exception is its failure
        reason = _plain(str(error)) or type(error).__name__
        is_missing = type(error).__name__ == "UndefinedError"
        raise ExpressionError(f"`{expression}`: {reason}{_large(expression) if is_missing else ''}") from None


def _large(expression: str) -> str:
    return "; large results of a map are only in `results_file`" if "outputs.results" in expression else ""


def render(text: str, scope: Scope) -> str:
    """Return text with its expressions replaced by their values."""
    parts = []
    for literal, expression, _ in placeholders.split(text):
        parts.append(literal)
        if expression is not None:
            parts.append(as_text(evaluate(expression, scope)))
    return "".join(parts)


def render_value(value: Any, scope: Scope) -> Any:
    """Return a JSON value with the expressions in its texts replaced; a text that is one expression keeps its type."""
    if isinstance(value, str):
        pieces = placeholders.split(value) if placeholders.has_placeholders(value) else []
        if len(pieces) == 2 and not pieces[0][0] and not pieces[1][0] and pieces[0][1] is not None:
            return evaluate(pieces[0][1], scope)
        return render(value, scope) if pieces else value
    if isinstance(value, list):
        return [render_value(item, scope) for item in value]
    if isinstance(value, dict):
        return {key: render_value(item, scope) for key, item in value.items()}
    return value


def _plain(message: str) -> str:
    return re.sub(r"\s+", " ", message.replace("<unknown>", "")).strip()
