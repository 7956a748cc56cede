"""The expression language: `${{ … }}` in text, and bare expressions in `when:`.

A sandbox with strict names, bounded work, no I/O. Checked when the file is loaded: syntax, filters, and every name
against those that can exist. Evaluated when the step is about to run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rerail.core.expressions import placeholders, sandbox
from rerail.core.expressions.sandbox import FILTERS, TESTS
from rerail.core.expressions.syntax import Finding, explain
from rerail.core.model import Approve, Map, Run, Step
from rerail.text import nearest

ExpressionError = sandbox.ExpressionError
as_text = sandbox.as_text

MAX_EXPRESSION = 2_000
ROOTS = ("params", "env", "steps", "item", "loop", "run", "pipeline")
PIPELINE_NAMES = ("name",)
LOOP_NAMES = ("iteration",)
RUN_NAMES = ("id", "dir", "status")
STEP_NAMES = ("outputs", "status", "exit_code")
STEP_STATUSES = ("pending", "running", "completed", "failed", "interrupted", "skipped")
RUN_STATUSES = ("pending", "running", "completed", "failed", "interrupted", "paused")
_STATUS_WORDS = {
    **dict.fromkeys("success successful succeeded succeed ok done passed complete finished".split(), "completed"),
    **dict.fromkeys("failure fail error errored".split(), "failed"),
    **dict.fromkeys("cancelled canceled aborted stopped killed".split(), "interrupted"),
    **dict.fromkeys("skip skipping omitted".split(), "skipped"),
}
_OUTPUTS: dict[type, tuple[str, ...]] = {
    Map: ("total", "completed", "failed", "skipped", "results", "results_file", "results_sha256", "failures"),
    Approve: ("approved", "by", "at", "reason"),
}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_APPLIED = {"map": ("filter", 0), "select": ("test", 0), "reject": ("test", 0)} | {
    "selectattr": ("test", 1),
    "rejectattr": ("test", 1),
}
# Names of other tools, and the way to say it here.
_INSTEAD = {
    **dict.fromkeys(
        "match search regex regex_search regex_match test matches".split(),
        "there are no patterns; use `'…' in …`, `.startswith('…')` or `.endswith('…')`",
    ),
    **dict.fromkeys("inputs input param parameters vars args workflow".split(), "did you mean `params`?"),
    **dict.fromkeys("secrets environment environ".split(), "did you mean `env`?"),
    **dict.fromkeys("needs tasks task jobs job step nodes".split(), "did you mean `steps`?"),
    **dict.fromkeys("outputs output result results".split(), "outputs are those of a step: `steps.ID.outputs.NAME`"),
    **dict.fromkeys("null nil None_ undefined".split(), "did you mean `none`?"),
    **dict.fromkeys("contains includes".split(), "use `'…' in …`"),
    **dict.fromkeys("startsWith startswith".split(), "use `.startswith('…')`"),
    **dict.fromkeys("endsWith endswith".split(), "use `.endswith('…')`"),
    **dict.fromkeys("len size".split(), "use `… | length`"),
    **dict.fromkeys("str toString".split(), "use `… | string`"),
    **dict.fromkeys("toJSON toJson to_json json".split(), "use `… | tojson`"),
    **dict.fromkeys("now today date".split(), "there is no clock in expressions; use `date` in a step"),
    "format": "use `~` to join texts",
    "empty": "use `… | length == 0`",
    "exists": "use `is defined`",
}
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
    declared: Mapping[str, Step] = {}  # as far as they are known, by name


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


def check(expression: str, visible: VisibleNames) -> Finding | None:
    """Return the problem with an expression, if there is one."""
    if len(expression) > MAX_EXPRESSION:
        return Finding(f"the expression has {len(expression)} characters; {MAX_EXPRESSION} at most")
    if is_path(expression):
        return _check_path(expression.split("."), visible, expression)
    try:
        return _check(expression, visible)
    except RecursionError:
        return Finding("the expression is nested too deeply")


def _check(expression: str, visible: VisibleNames) -> Finding | None:
    from jinja2 import TemplateSyntaxError, nodes

    if not expression:
        return Finding("the expression is empty")
    try:
        tree = sandbox.parsed(expression)
    except TemplateSyntaxError as error:
        return explain(expression, _plain(str(error)))
    body = tree.body
    if len(body) != 1 or not isinstance(body[0], nodes.Output) or len(body[0].nodes) != 1:
        return explain(expression, "more than one expression")
    for kind, name in _functions(tree):
        known = FILTERS if kind == "filter" else TESTS
        if name not in known:
            return _unknown_function(kind, name, known, expression)
    return _check_names(expression, tree, visible)


def _functions(tree: Any) -> Iterator[tuple[str, str]]:
    """Yield the kinds and names of the filters and tests of an expression, also of those that other filters apply."""
    from jinja2 import nodes

    for node in tree.find_all((nodes.Filter, nodes.Test)):
        yield "filter" if isinstance(node, nodes.Filter) else "test", node.name
        at = _APPLIED.get(node.name) if isinstance(node, nodes.Filter) else None
        if at is not None and len(node.args) > at[1] and isinstance(node.args[at[1]], nodes.Const):
            yield at[0], str(node.args[at[1]].value)


def _unknown_function(kind: str, name: str, known: Collection[str], expression: str) -> Finding:
    words = sorted(word for word in known if word.isalpha())
    guess = nearest(name, words)
    other = FILTERS if kind == "test" else TESTS
    if guess:
        fix = f"did you mean `{guess}`?"
    elif name in _INSTEAD:
        fix = _INSTEAD[name]
    elif name in other:
        fix = f"`{name}` is a {'filter: … | ' if kind == 'test' else 'test: … is '}{name}"
    else:
        fix = f"available: {', '.join(words)}"
    return _finding(f"unknown {kind} `{name[:60]}`", fix, expression, name, "unknown-name")


def _finding(message: str, fix: str, expression: str, piece: str, code: str = "expression") -> Finding:
    """Return a problem of a name in an expression, where it stands as a word."""
    match = re.search(rf"(?<![\w]){re.escape(piece)}(?![\w])", expression) if piece else None
    return Finding(message, fix, match.start() if match else 0, piece if match else "", code)


def _check_names(expression: str, tree: Any, visible: VisibleNames) -> Finding | None:
    from jinja2 import nodes

    # Not `meta.find_undeclared_variables`, which evaluates constants.
    for name in sorted({node.name for node in tree.find_all(nodes.Name)}):
        if name not in ROOTS or (name in _SOMEWHERE and not getattr(visible, name)):
            return _unknown_root(name, expression, visible)
    for node in tree.find_all((nodes.Getattr, nodes.Getitem)):
        path = _path(node)
        wrong = _check_path(path, visible, expression) if path else None
        if wrong:
            return wrong
    return None


def _unknown_root(name: str, expression: str, visible: VisibleNames) -> Finding:
    for step in visible.all_steps:
        if "-" in step and f"steps.{step}" in expression.replace(" ", ""):
            message, fix = "an id with `-` needs brackets", f"write `steps['{step}']`"
            return _finding(message, fix, expression, f"steps.{step}", "unknown-name")
    if name in _SOMEWHERE and name not in visible.params and name not in visible.all_steps:
        message = f"`{name}` exists only in {_SOMEWHERE[name]}"
        return _finding(message, "", expression, name, "unknown-name")
    there = [*ROOTS[:3], *(root for root in _SOMEWHERE if getattr(visible, root)), "run"]
    message, fix = f"unknown name `{name[:60]}` (available: {', '.join(there)})", ""
    if name in visible.params:
        fix = f"did you mean `params.{name}`?"
    elif name in visible.all_steps:
        fix = f"did you mean `steps.{name}`?"
    elif name in _INSTEAD:
        fix = _INSTEAD[name]
    elif guess := nearest(name, there):
        fix = f"did you mean `{guess}`?"
    if fix:
        message = f"unknown name `{name[:60]}`"
    return _finding(message, fix, expression, name, "unknown-name")


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


def _check_path(path: Sequence[str], visible: VisibleNames, expression: str) -> Finding | None:
    def wrong(message: str, piece: str, fix: str = "") -> Finding:
        return _finding(message, fix, expression, piece, "unknown-name")

    match path:
        case ["params", name, *_] if name not in visible.params:
            return wrong(f"no param `{name}`", name, _near(name, visible.params, "params"))
        case ["item" | "loop" | "pipeline" as root, *_] if not getattr(visible, root):
            return _unknown_root(root, root, visible)
        case ["pipeline", name, *_] if name not in PIPELINE_NAMES:
            return wrong(f"`pipeline` has {', '.join(PIPELINE_NAMES)}, not `{name}`", name)
        case ["loop", name, *_] if name not in LOOP_NAMES:
            return wrong(f"`loop` has {', '.join(LOOP_NAMES)}, not `{name}`", name)
        case ["run", name, *_] if name not in RUN_NAMES:
            return wrong(f"`run` has {', '.join(RUN_NAMES)}, not `{name}`", name)
        case ["steps", name, *_] if name not in visible.all_steps:
            return wrong(f"no step `{name}`", name, _near(name, visible.all_steps, "steps"))
        case ["steps", name, *_] if name not in visible.steps:
            if visible.shared:
                message = f"step `{name}` may not have run when a step is given this `env`"
                return wrong(message, name, "put the variable into the `env` of the step that uses it")
            return wrong(f"step `{name}` may not have run yet; add it to `needs`", name)
        case ["steps", step, name, *_] if name not in STEP_NAMES:
            fix = f"did you mean `steps.{step}.{near}`?" if (near := nearest(name, STEP_NAMES)) else ""
            return wrong(f"a step has {', '.join(STEP_NAMES)}, not `{name}`", name, fix)
        case ["steps", step, "outputs", name, *_] if name not in (there := _only_outputs(visible, step) or (name,)):
            fix = f"did you mean `{near}`?" if (near := nearest(name, there)) else ""
            return wrong(f"step `{step}` has no output `{name}` (it sets: {', '.join(there)})", name, fix)
        case _:
            return None


def _near(name: str, names: Collection[str], root: str) -> str:
    ordered = sorted(names)  # they may come from a set, whose order is another one in every process
    near = nearest(name, ordered)
    if near:
        return f"did you mean `{near}`?"
    shown = ", ".join(ordered[:12]) + (", …" if len(ordered) > 12 else "")
    return f"known here: {shown}" if ordered else f"there are no {root}"


def _only_outputs(visible: VisibleNames, step: str) -> tuple[str, ...]:
    """Return the outputs of a step that can set no others; () for all other steps."""
    action = visible.declared[step].action if step in visible.declared else None
    return _OUTPUTS.get(type(action), ())


def _is_typed(visible: VisibleNames, step: str, name: str) -> bool:
    """Return whether an output comes from a line `name=value`, where numbers and booleans are no text."""
    found = visible.declared.get(step)
    return found is not None and isinstance(found.action, Run) and name not in found.outputs


def warnings(expression: str, visible: VisibleNames) -> Iterator[Finding]:
    """Yield comparisons that can never be true: of a status with another word, of an output with a number in quotes."""
    if is_path(expression) or len(expression) > MAX_EXPRESSION:
        return
    from jinja2 import TemplateSyntaxError, nodes

    try:
        tree = sandbox.parsed(expression)
        compared = list(tree.find_all(nodes.Compare))
    except (TemplateSyntaxError, RecursionError):
        return  # an error already
    for node in compared:
        for operand in node.ops:
            if operand.op in ("eq", "ne", "in", "notin"):
                yield from _odd_comparison(node.expr, operand.expr, expression, visible)
                yield from _odd_comparison(operand.expr, node.expr, expression, visible)


def _odd_comparison(value: Any, with_: Any, expression: str, visible: VisibleNames) -> Iterator[Finding]:
    from jinja2 import nodes

    listed = with_.items if isinstance(with_, nodes.List | nodes.Tuple) else [with_]
    words = [one.value for one in listed if isinstance(one, nodes.Const) and isinstance(one.value, str)]
    match _path(value):
        case ["steps", step, "status"]:
            known, subject = STEP_STATUSES, f"the status of step `{step}`"
        case ["run", "status"]:
            known, subject = RUN_STATUSES, "the status of the run"
        case ["steps", step, "outputs", name] if _is_typed(visible, step, name):
            for word in words:
                if word in ("true", "false", "null") or _NUMBER.fullmatch(word):
                    kind = "a number" if word[-1].isdigit() else "null" if word == "null" else "a boolean"
                    message = f"never equal to the text '{word}': `{name}={word}` of step `{step}` is {kind}"
                    yield _quoted(message, f"write {word} without quotes", expression, word, "quoted-value")
            return
        case _:
            return
    for word in words:
        if word not in known:
            near = _STATUS_WORDS.get(word.lower()) or nearest(word, known)
            fix = f"did you mean `{near}`?" if near in known else f"one of {', '.join(known)}"
            yield _quoted(f"{subject} is never `{word[:60]}`", fix, expression, word, "unknown-status")


def _quoted(message: str, fix: str, expression: str, word: str, code: str) -> Finding:
    """Return a finding about a text in an expression, where it stands in quotes."""
    for quote in "'\"":
        at = expression.find(f"{quote}{word}{quote}")
        if at >= 0:
            return Finding(message, fix, at, f"{quote}{word}{quote}", code)
    return Finding(message, fix, code=code)


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


def is_one_expression(text: str) -> bool:
    """Return whether a text is one expression and nothing else: it keeps the type of its value."""
    return placeholders.has_placeholders(text) and _is_one(placeholders.split(text))


def _is_one(pieces: Sequence[tuple[str, str | None, int]]) -> bool:
    return len(pieces) == 2 and not pieces[0][0] and not pieces[1][0]


def render_value(value: Any, scope: Scope) -> Any:
    """Return a JSON value with the expressions in its texts replaced; a text that is one expression keeps its type."""
    if isinstance(value, str):
        pieces = placeholders.split(value) if placeholders.has_placeholders(value) else []
        if _is_one(pieces) and pieces[0][1] is not None:
            return evaluate(pieces[0][1], scope)
        return render(value, scope) if pieces else value
    if isinstance(value, list):
        return [render_value(item, scope) for item in value]
    if isinstance(value, dict):
        return {key: render_value(item, scope) for key, item in value.items()}
    return value


def _plain(message: str) -> str:
    return re.sub(r"\s+", " ", message.replace("<unknown>", "")).strip()
