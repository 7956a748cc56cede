"""Steps of a pipeline file: one reader for the main list, `on_failure` and `finally`."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from rerail.core.graph import Ancestors, find_cycle
from rerail.core.model import Action, Capture, Python, Retry, Run, Step, Write
from rerail.core.template import Known
from rerail.loaders.artifacts import read_artifacts
from rerail.loaders.document import Node
from rerail.loaders.expressions import Expressions
from rerail.loaders.fields import Fields, Problems, describe

OPTIONS = tuple(
    "id name needs when env cwd timeout retry inputs artifacts outputs checks idempotent allow_failure on_failure"
    " commit_required".split()
)
KINDS = ("run", "python", "write")
MOST_STEPS = 10_000
MOST_CHECKS = 100
MOST_PATTERN = 1_000  # characters of a pattern in `retry.on`
DEFAULTABLE = ("timeout", "retry", "env")

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_OUTPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class StepReader:
    """Reads steps, noting problems; knows every id that is taken."""

    def __init__(self, problems: Problems, defaults: Fields, params: set[str], shared_env: Node | None) -> None:
        self._problems = problems
        self._params = params
        self._shared = (shared_env, defaults.get("env"))
        self._places: dict[str, Node] = {}
        self._sources: dict[str, Fields] = {}
        self._timeout = defaults.time_limit()
        self._retry = _retry(defaults, problems)
        self._env = defaults.variables("env")
        # What all steps share is checked once, unless it depends on what has run before each.
        texts = [
            str(child.value)
            for node in self._shared
            if node and isinstance(node.value, dict)
            for child in node.value.values()
        ]
        self._shared_needs_steps = any("steps" in text and "${{" in text for text in texts)
        once = Expressions(problems, Known(params=params, steps=(), all_steps=()))
        if not self._shared_needs_steps:
            for node in self._shared:
                once.everything(node)
        self._shared_is_dynamic = once.found

    def main(self, node: Node) -> tuple[Step, ...]:
        """The steps of the pipeline, their needs resolved and their expressions checked."""
        needed: list[tuple[str, Node]] = []
        steps = self._list(node, "step", needed)
        names = {step.id for step in steps}
        if not self._check_needs(steps, needed):  # whatever else is wrong can still be told
            return tuple(self._checked(step, Known(params=self._params, steps=names, all_steps=names)) for step in steps)
        ancestors = Ancestors({step.id: step.needs for step in steps})
        return tuple(
            self._checked(step, Known(params=self._params, steps=ancestors.of(step.id), all_steps=names))
            for step in steps
        )

    def hooks(self, node: Node | None, prefix: str, names: set[str]) -> tuple[Step, ...]:
        """Steps that run after others, in order; they may read the results of any step."""
        if node is None:
            return ()
        steps = self._list(node, prefix, [])
        known = Known(params=self._params, steps=names, all_steps=names)
        return tuple(self._checked(step, known) for step in steps)

    def with_hooks(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """The steps with what cleans up after them."""
        names = {step.id for step in steps}
        result = []
        for step in steps:
            node = self._sources[step.id].get("on_failure")
            hooks = self.hooks(node, f"{step.id[:40]}-on-failure", names)
            result.append(msgspec.structs.replace(step, on_failure=hooks) if hooks else step)
        return tuple(result)

    def _list(self, node: Node, prefix: str, needed: list[tuple[str, Node]]) -> tuple[Step, ...]:
        if not isinstance(node.value, list) or not node.value:
            self._problems.add(node, f"`{'steps' if prefix == 'step' else prefix}` must be a list of at least one step")
            return ()
        if len(node.value) > MOST_STEPS:
            self._problems.add(node, f"{len(node.value)} steps; {MOST_STEPS} at most")
            return ()
        steps: list[Step] = []
        for position, child in enumerate(node.value, 1):
            fields = Fields(child, self._problems, f"{prefix} {position}")
            previous = (steps[-1].id,) if steps and prefix == "step" else ()
            step = self._step(fields, f"{prefix}-{position}", previous, needed)
            if step.id in self._places:
                self._problems.add(child, f"the id `{step.id}` is taken by the step in line {self._places[step.id].line}")
                continue
            self._places[step.id] = child
            self._sources[step.id] = fields
            if prefix != "step":
                for key in ("needs", "on_failure"):
                    if fields.has(key):
                        self._problems.add(fields.get(key) or child, f"`{key}` makes no sense in {prefix}")
            steps.append(step)
        return tuple(steps)

    def _step(self, fields: Fields, default_id: str, previous: tuple[str, ...], needed: list[tuple[str, Node]]) -> Step:
        fields.only((*OPTIONS, *KINDS, "with"))
        step_id = fields.text("id") or default_id
        if not _ID.fullmatch(step_id):
            where = fields.get("id") or fields.node
            self._problems.add(where, f"{step_id[:70]!r} cannot be a step id: at most 64 letters, digits, _ . -")
        fields.what = f"step `{step_id[:70]}`"
        needs = fields.names("needs")
        needed += needs or ()
        return Step(
            id=step_id,
            name=fields.text("name"),
            action=_action(fields, self._problems),
            needs=previous if needs is None else tuple(dict.fromkeys(name for name, _ in needs)),
            env={**self._env, **fields.variables("env")},
            cwd=_directory(fields, self._problems),
            timeout=fields.time_limit() if fields.has("timeout") else self._timeout,
            retry=_retry(fields, self._problems) if fields.has("retry") else self._retry,
            allow_failure=fields.flag("allow_failure", default=False),
            idempotent=fields.flag("idempotent", default=True),
            checks=self._checks(fields),
            outputs=_outputs(fields, self._problems),
            commit_required=fields.flag("commit_required", default=False),
            inputs=read_artifacts(fields, "inputs", self._problems),
            artifacts=read_artifacts(fields, "artifacts", self._problems),
            line=fields.node.line,
        )

    def _checks(self, fields: Fields) -> tuple[str, ...]:
        named = fields.names("checks") or ()
        if len(named) > MOST_CHECKS:
            self._problems.add(fields.node, f"{len(named)} `checks` of {fields.what}; {MOST_CHECKS} at most")
            return ()
        for text, node in named:
            if not text.strip() or "\0" in text:
                self._problems.add(node, f"a check of {fields.what} is empty or holds a NUL character")
        return tuple(text for text, _ in named)

    def _check_needs(self, steps: tuple[Step, ...], needed: list[tuple[str, Node]]) -> bool:
        """Note needs that lead nowhere or in a circle; whether all is well."""
        known = {step.id for step in steps}
        unknown = [(name, node) for name, node in needed if name not in known]
        there = ", ".join(sorted(known)[:12])
        for name, node in unknown:
            self._problems.add(node, f"no step `{name[:100]}`; there is {there}")
        if unknown or any(need not in known for step in steps for need in step.needs):
            return False
        cycle = find_cycle({step.id: step.needs for step in steps})
        if cycle:
            place = self._places[cycle[0]]
            self._problems.add(place, f"the steps need each other in a circle: {_chain(cycle)}")
        return not cycle

    def _checked(self, step: Step, known: Known) -> Step:
        """The step with its expressions checked against what can exist where they stand."""
        fields = self._sources[step.id]
        expressions = Expressions(self._problems, known)
        expressions.found = self._shared_is_dynamic
        shared = self._shared if self._shared_needs_steps else ()
        for node in (*shared, *(fields.get(key) for key in ("env", "cwd", "with", "write", "inputs", "artifacts"))):
            expressions.everything(node)
        expressions.script(fields.get("run"))
        for _, node in fields.names("checks") or ():
            expressions.script(node)
        when = expressions.bare(fields, "when")
        return msgspec.structs.replace(step, when=when, dynamic=expressions.found)


def _chain(names: list[str]) -> str:
    shown = names if len(names) <= 12 else [*names[:6], f"({len(names) - 11} more)", *names[-5:]]
    return " → ".join(shown)


def _directory(fields: Fields, problems: Problems) -> str:
    path = fields.text("cwd")
    if "\0" in path:
        problems.add(fields.get("cwd") or fields.node, f"`cwd` of {fields.what} holds a NUL character")
    return path


def _action(fields: Fields, problems: Problems) -> Action:
    given = [kind for kind in KINDS if fields.has(kind)]
    if len(given) != 1:
        if isinstance(fields.node.value, dict):
            what = "has none" if not given else f"has {' and '.join(f'`{kind}`' for kind in given)}"
            problems.add(fields.node, f"{fields.what} needs exactly one of {', '.join(KINDS)}; it {what}")
        return Run(script="")
    if given != ["python"] and fields.has("with"):
        problems.add(fields.node, f"`with` of {fields.what} goes with `python` only")
    match given[0]:
        case "run":
            return Run(script=_text(fields, "run", problems))
        case "python":
            target = _text(fields, "python", problems)
            if target and not _TARGET.fullmatch(target):
                problems.add(fields.get("python") or fields.node, f"`python` must be module:function, not {target!r}")
            arguments = fields.get("with")
            if arguments is not None and not isinstance(arguments.value, dict):
                problems.add(arguments, f"`with` of {fields.what} must be a mapping, not {arguments.kind}")
                arguments = None
            return Python(target=target, arguments=arguments.plain() if arguments else {})
        case _:
            write = Fields(fields.get("write") or fields.node, problems, f"`write` of {fields.what}")
            write.only(("path", "content"))
            return Write(path=_text(write, "path", problems), content=write.text("content"))


def _text(fields: Fields, key: str, problems: Problems) -> str:
    value = fields.text(key)
    node = fields.get(key)
    if not value.strip() and (node is None or not isinstance(node.value, list | dict)):
        problems.add(node or fields.node, f"`{key}` of {fields.what} is empty")
    if "\0" in value:
        problems.add(node or fields.node, f"`{key}` of {fields.what} holds a NUL character")
    return value


def _outputs(fields: Fields, problems: Problems) -> dict[str, Capture]:
    node = fields.get("outputs")
    if node is None:
        return {}
    if not isinstance(node.value, dict):
        problems.add(node, f"`outputs` of {fields.what} must be a mapping, not {node.kind}")
        return {}
    captures = {}
    for name, child in node.value.items():
        if not _OUTPUT_NAME.fullmatch(name):
            problems.add(child, f"{name[:60]!r} cannot be the name of an output")
        inner = Fields(child, problems, f"output `{name}`")
        inner.only(("from", "as"))
        inner.choice("from", ("stdout",), "stdout")
        form: Any = inner.choice("as", ("text", "json", "lines"), "text")
        captures[name] = Capture(form=form)
    return captures


def _retry(owner: Fields, problems: Problems) -> Retry:
    node = owner.get("retry")
    if node is None:
        return Retry()
    if not isinstance(node.value, dict):
        if not isinstance(node.value, int):
            problems.add(node, f"`retry` must be a number of attempts or a mapping, not {describe(node)}")
            return Retry()
        return Retry(attempts=owner.count("retry", 1))
    fields = Fields(node, problems, "`retry`")
    fields.only(("attempts", "backoff", "delay", "max_delay", "jitter", "on"))
    base = Retry()
    delay, max_delay = fields.duration("delay"), fields.duration("max_delay")
    backoff: Any = fields.choice("backoff", ("fixed", "linear", "exponential"), base.backoff)
    return Retry(
        attempts=fields.count("attempts", base.attempts),
        backoff=backoff,
        delay=base.delay if delay is None else delay,
        max_delay=base.max_delay if max_delay is None else max_delay,
        jitter=fields.flag("jitter", default=base.jitter),
        on=_retry_on(fields.get("on"), problems),
    )


def _retry_on(node: Node | None, problems: Problems) -> tuple[str | int, ...]:
    if node is None:
        return ()
    wanted: list[str | int] = []
    if isinstance(node.value, list) and len(node.value) > MOST_CHECKS:
        problems.add(node, f"{len(node.value)} conditions in `on` of `retry`; {MOST_CHECKS} at most")
        return ()
    for child in node.value if isinstance(node.value, list) else [node]:
        value = child.value
        if isinstance(value, bool) or not isinstance(value, str | int):
            problems.add(child, "`on` of `retry` lists rate_limit, timeout, exit codes and patterns on stderr")
            continue
        if isinstance(value, str):
            if len(value) > MOST_PATTERN:
                problems.add(child, f"`on` of `retry`: a pattern of {len(value)} characters; {MOST_PATTERN} at most")
                continue
            try:
                re.compile(value)
            except (re.error, RecursionError, OverflowError) as error:
                problems.add(child, f"`on` of `retry`: {value[:60]!r} is no pattern: {error}")
                continue
        wanted.append(value)
    return tuple(wanted)
