"""Steps of a pipeline file: one reader for the main list, `on_failure` and `finally`."""

from __future__ import annotations

import copy
import os
import re
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec

from rerail.core.expressions.language import VisibleNames
from rerail.core.graph import Ancestors, find_cycle
from rerail.core.model import Action, Artifact, Map, Step, Subpipeline
from rerail.loaders.actions import (
    KINDS,
    MAX_CHECKS,
    OPTIONS,
    PLAIN,
    read_action,
    read_directory,
    read_outputs,
    read_retry,
)
from rerail.loaders.artifacts import read_artifacts
from rerail.loaders.budgets import read_budget, read_rate_limit
from rerail.loaders.composites import CONTROLLERS, check_commits, loop_conditions, read_loop, read_map
from rerail.loaders.document import Node
from rerail.loaders.expressions import Expressions
from rerail.loaders.fields import Fields, Problems
from rerail.text import nearest

MAX_STEPS = 10_000
MAX_DEPTH = 8  # of maps, loops and pipelines in each other
TEXTS = ("env", "cwd", "with", "write", "approve", "inputs", "artifacts")  # that may hold expressions
DEFAULTABLE = ("timeout", "retry", "env", "rate_limit")

_ON_FAILURE = "-on-failure"
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class Enclosing(msgspec.Struct, frozen=True, kw_only=True):
    """Scope around a list of steps: a pipeline, or a step of one."""

    prefix: str = ""  # of the ids of its steps: the path to it
    names: Collection[str] = ()  # steps outside whose results are visible inside
    all_names: Collection[str] = ()
    declared: ChainMap[str, Step] = ChainMap()  # the steps outside by name
    item: bool = False
    loop: bool = False
    carries: bool = False  # a loop: every step inside is visible everywhere, from the iteration before
    single: bool = False  # its only step is the item itself
    depth: int = 0
    directory: str = ""  # of its file, relative to that of the pipeline
    include: Callable[[Fields, Enclosing], Subpipeline] | None = None  # reads another pipeline file


class _VisibleSteps(Collection[str]):
    """Names of the steps that are visible at a place: earlier ones of the same list, and those outside."""

    def __init__(self, prefix: str, inside: Collection[str], outside: Collection[str], own: Collection[str]) -> None:
        self._prefix = prefix
        self._inside = inside
        self._outside = outside
        self._own = own  # all steps inside: they hide the same names outside

    def __contains__(self, step: object) -> bool:
        path = f"{self._prefix}{step}"
        return path in self._inside if path in self._own else step in self._outside

    def __iter__(self) -> Iterator[str]:
        yield from (path[len(self._prefix) :] for path in self._inside)
        yield from self._outside

    def __len__(self) -> int:
        return len(self._inside) + len(self._outside)


class StepReader:
    """Reader of steps that collects problems, and knows every id in use."""

    def __init__(
        self,
        problems: Problems,
        defaults: Fields,
        params: Collection[str],
        shared_env: Node | None,
        enclosing: Enclosing | None = None,
    ) -> None:
        self._problems = problems
        self._params = params
        self._enclosing = enclosing or Enclosing()
        self._shared = (shared_env, defaults.get("env"))
        self._places: dict[str, Node] = {}
        self._sources: dict[str, Fields] = {}
        self._timeout = defaults.time_limit()
        self._retry = read_retry(defaults, problems)
        self._rate_limit = read_rate_limit(defaults)
        self._env = defaults.variables("env")
        # Shared values are checked once, unless they depend on the steps before each one.
        texts = [
            str(child.value)
            for node in self._shared
            if node and isinstance(node.value, dict)
            for child in node.value.values()
        ]
        self._shared_needs_steps = any("steps" in text and "${{" in text for text in texts)
        once = Expressions(problems, VisibleNames(params=params, steps=(), all_steps=()))
        if not self._shared_needs_steps:
            for node in self._shared:
                once.everything(node)
        self._shared_is_dynamic = once.found
        self._declared = self._enclosing.declared

    def nested(self, enclosing: Enclosing) -> StepReader:
        """Return a reader of the steps inside a step: the same defaults, other names."""
        inner = copy.copy(self)
        inner._enclosing = enclosing
        inner._places, inner._sources = {}, {}
        inner._env = {}  # inherited from the step they are in
        return inner

    def main(self, node: Node) -> tuple[Step, ...]:
        """Read the steps of the pipeline, resolve their needs and check their expressions."""
        needed: list[tuple[str, Node]] = []
        steps = self._list(node, "step", needed)
        names = {step.id for step in steps}
        self._declared = self._enclosing.declared.new_child({step.local: step for step in steps})
        if not self._check_needs(steps, needed) or self._enclosing.carries:  # other problems can still be reported
            return tuple(self._checked(step, self._visible(names, names)) for step in steps)
        ancestors = Ancestors({step.id: step.needs for step in steps})
        return tuple(self._checked(step, self._visible(ancestors.of(step.id), names)) for step in steps)

    def _visible(self, before: Collection[str], names: Collection[str]) -> VisibleNames:
        enclosing = self._enclosing
        steps: Collection[str] = before
        every: Collection[str] = names
        if enclosing.prefix:
            steps = _VisibleSteps(enclosing.prefix, before, enclosing.names, names)
            every = _VisibleSteps(enclosing.prefix, names, enclosing.all_names, names)
        return VisibleNames(
            params=self._params,
            steps=steps,
            all_steps=every,
            item=enclosing.item,
            loop=enclosing.loop,
            declared=self._declared,
        )

    def hooks(self, node: Node | None, prefix: str, names: set[str]) -> tuple[Step, ...]:
        """Read steps that run after others, in order; they may use the results of any step."""
        if node is None:
            return ()
        steps = self._list(node, prefix, [])
        return tuple(self._checked(step, self._visible(names, names)) for step in steps)

    def outputs(self, node: Node | None, names: set[str]) -> dict[str, Any]:
        """Read the outputs of a pipeline that is a step of another: values with expressions over all its steps."""
        if node is None:
            return {}
        if not isinstance(node.value, dict):
            self._problems.add(node, f"`outputs` must be a mapping, not {node.kind}")
            return {}
        Expressions(self._problems, self._visible(names, names)).everything(node)
        return dict(node.plain())

    def with_hooks(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """Return the steps with their `on_failure` hooks."""
        names = {step.id for step in steps}
        result = []
        for step in steps:
            node = self._sources[step.id].get("on_failure")
            hooks = self.hooks(node, step.local[:40] + _ON_FAILURE, names)
            result.append(msgspec.structs.replace(step, on_failure=hooks) if hooks else step)
        return tuple(result)

    def _list(self, node: Node, prefix: str, needed: list[tuple[str, Node]]) -> tuple[Step, ...]:
        if not isinstance(node.value, list) or not node.value:
            self._problems.add(node, f"{_key_of(prefix)} must be a list of at least one step")
            return ()
        if len(node.value) > MAX_STEPS:
            self._problems.add(node, f"{len(node.value)} steps; {MAX_STEPS} at most")
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
                for key in ("needs", "on_failure", "approve", *CONTROLLERS):
                    if fields.has(key):
                        self._problems.add(fields.get(key) or child, f"`{key}` makes no sense in {_key_of(prefix)}")
            steps.append(step)
        return tuple(steps)

    def _step(self, fields: Fields, default_id: str, previous: tuple[str, ...], needed: list[tuple[str, Node]]) -> Step:
        fields.only((*OPTIONS, *KINDS, "with", "steps"))
        step_id = fields.text("id") or default_id
        if not _ID.fullmatch(step_id):
            where = fields.get("id") or fields.node
            self._problems.add(where, f"{step_id[:70]!r} cannot be a step id: at most 64 letters, digits, _ . -")
        fields.what = f"step `{step_id[:70]}`"
        needs = fields.names("needs")
        needed += needs or ()
        enclosing = self._enclosing
        return Step(
            id=enclosing.prefix[:-1] if enclosing.single else enclosing.prefix + step_id,
            name=fields.text("name"),
            action=read_action(fields, self._problems),
            needs=previous if needs is None else tuple(dict.fromkeys(enclosing.prefix + name for name, _ in needs)),
            env={**self._env, **fields.variables("env")},
            cwd=os.path.join(enclosing.directory, read_directory(fields, self._problems)),
            timeout=fields.time_limit() if fields.has("timeout") else self._timeout,
            retry=read_retry(fields, self._problems) if fields.has("retry") else self._retry,
            rate_limit=read_rate_limit(fields) if fields.has("rate_limit") else self._rate_limit,
            budget=read_budget(fields, may_stop=not (enclosing.item or enclosing.loop)),
            allow_failure=fields.flag("allow_failure", default=False),
            idempotent=fields.flag("idempotent", default=True),
            checks=self._checks(fields),
            outputs=read_outputs(fields, self._problems),
            commit_required=fields.flag("commit_required", default=False),
            inputs=_placed(read_artifacts(fields, "inputs", self._problems), enclosing.directory),
            artifacts=_placed(read_artifacts(fields, "artifacts", self._problems), enclosing.directory),
            line=fields.node.line,
        )

    def _checks(self, fields: Fields) -> tuple[str, ...]:
        named = fields.names("checks") or ()
        if len(named) > MAX_CHECKS:
            self._problems.add(fields.node, f"{len(named)} `checks` of {fields.what}; {MAX_CHECKS} at most")
            return ()
        for text, node in named:
            if not text.strip() or "\0" in text:
                self._problems.add(node, f"a check of {fields.what} is empty or holds a NUL character")
        return tuple(text for text, _ in named)

    def _check_needs(self, steps: tuple[Step, ...], needed: list[tuple[str, Node]]) -> bool:
        """Report needs without a step, and cycles; return whether there are none."""
        ids, prefix = {step.id for step in steps}, self._enclosing.prefix
        unknown = [(name, node) for name, node in needed if prefix + name not in ids]
        there = sorted(step.local for step in steps) if unknown else []
        for name, node in unknown:
            near = "" if self._problems.many else nearest(name, there)
            names = "" if near else f" (steps: {', '.join(there[:12])})"
            fix = f"did you mean `{near}`?" if near else ""
            self._problems.add(node, f"unknown step `{name[:100]}`{names}", fix=fix, code="unknown-step")
        if unknown or any(need not in ids for step in steps for need in step.needs):
            return False
        cycle = find_cycle({step.id: step.needs for step in steps})
        if cycle:
            place = self._places[cycle[0]]
            self._problems.add(place, f"dependency cycle: {_chain(cycle)}", code="cycle")
        return not cycle

    def _checked(self, step: Step, visible: VisibleNames) -> Step:
        """Return the step, its expressions checked against the names that can exist there."""
        fields = self._sources[step.id]
        expressions = Expressions(self._problems, visible)
        expressions.found = self._shared_is_dynamic
        if self._shared_needs_steps:
            shared = Expressions(self._problems, msgspec.structs.replace(visible, shared=True))
            for node in self._shared:
                shared.everything(node)
            expressions.found = expressions.found or shared.found
        for key in TEXTS:
            expressions.everything(fields.get(key))
        expressions.script(fields.get("run"))
        for _, node in fields.names("checks") or ():
            expressions.script(node)
        when = expressions.bare(fields, "when")
        if step.is_controller:
            return msgspec.structs.replace(step, when=when, dynamic=True, action=self._with_body(step, fields, visible))
        return msgspec.structs.replace(step, when=when, dynamic=expressions.found)

    def _with_body(self, step: Step, fields: Fields, visible: VisibleNames) -> Action:
        """Read the steps inside a controller, now that the steps before it are known."""
        enclosing, action = self._enclosing, step.action
        inner = Enclosing(
            prefix=f"{step.id}/",
            names=visible.steps,
            all_names=visible.all_steps,
            declared=self._declared,
            item=visible.item,
            loop=visible.loop,
            depth=enclosing.depth + 1,
            directory=enclosing.directory,
            include=enclosing.include,
        )
        if inner.depth > MAX_DEPTH:
            self._problems.add(fields.node, f"{fields.what} is nested deeper than {MAX_DEPTH} levels")
            return action
        if isinstance(action, Subpipeline):
            assert enclosing.include is not None
            return enclosing.include(fields, inner)
        node = fields.get("steps")
        if node is None:
            self._problems.add(fields.node, f"{fields.what} has no `steps`")
            return action
        if isinstance(action, Map):
            map_ = read_map(fields, self._problems, visible, enclosing.directory)
            single = _is_single(node)
            reader = self.nested(msgspec.structs.replace(inner, item=True, single=single))
            map_ = msgspec.structs.replace(map_, steps=reader.with_hooks(reader.main(node)), single=single)
            check_commits(fields, self._problems, map_)
            return map_
        reader = self.nested(msgspec.structs.replace(inner, loop=True, carries=True))
        steps = reader.with_hooks(reader.main(node))
        paths = {inner_step.id for inner_step in steps}
        until, while_ = loop_conditions(fields, self._problems, reader._visible(paths, paths))
        return msgspec.structs.replace(read_loop(fields, self._problems), steps=steps, until=until, while_=while_)


def _key_of(prefix: str) -> str:
    """Return the name of a list of steps in the file, given the prefix of the ids in it."""
    if prefix.endswith(_ON_FAILURE):
        return f"`on_failure` of step `{prefix.removesuffix(_ON_FAILURE)}`"
    return "`steps`" if prefix == "step" else f"`{prefix}`"


def _is_single(node: Node) -> bool:
    """Return whether a body is one plain step, which is then the item."""
    if not isinstance(node.value, list) or len(node.value) != 1 or not isinstance(node.value[0].value, dict):
        return False
    keys = node.value[0].value
    return any(kind in keys for kind in PLAIN) and not keys.keys() & {"on_failure", "allow_failure", "when"}


def _placed(artifacts: tuple[Artifact, ...], directory: str) -> tuple[Artifact, ...]:
    """Return artifacts with their paths relative to the pipeline's directory."""
    if not directory:
        return artifacts
    return tuple(
        msgspec.structs.replace(artifact, path=os.path.normpath(os.path.join(directory, artifact.path)))
        for artifact in artifacts
    )


def _chain(names: list[str]) -> str:
    shown = names if len(names) <= 12 else [*names[:6], f"({len(names) - 11} more)", *names[-5:]]
    return " → ".join(shown)
