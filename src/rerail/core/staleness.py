"""Staleness: whether the record of a completed unit still counts.

It counts while the definition of the step is the same (its fingerprint), and no dependency has produced something
different since the unit started, by journal order. With declared inputs only the dependencies that its expressions name
count. Comments, formatting and display names do not matter.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from rerail.core.events import Cause, Reason
from rerail.core.expressions import placeholders
from rerail.core.model import Action, Approve, Loop, Map, Python, Run, Step, Subpipeline, Write
from rerail.core.run_state import RunState, UnitState
from rerail.core.unit_id import UnitId, outer_step, step_path

DIGEST_CHARS = 16

_encode = msgspec.json.Encoder(order="deterministic").encode


def fingerprint(step: Step, pipeline_env: Mapping[str, str]) -> str:
    """Return a digest of the work of an attempt of this step: action, environment, directory.

    Retries, timeouts and needs change when it runs, not its work, so they are left out.
    """
    canonical = _encode([_normalised(step.action, pipeline_env), {**pipeline_env, **step.env}, step.cwd, _extras(step)])
    digest = hashlib.sha256(canonical).hexdigest()[:DIGEST_CHARS]
    if isinstance(step.action, Map):
        action = step.action
        source = _encode([action.over, action.key, action.filter, action.sort, action.limit, action.offset])
        digest += "." + hashlib.sha256(source).hexdigest()[:DIGEST_CHARS]
    elif isinstance(step.action, Loop):
        conditions = _encode([step.action.until, step.action.while_])
        digest += "." + hashlib.sha256(conditions).hexdigest()[:DIGEST_CHARS]
    return digest


def same_body(first: str, second: str) -> bool:
    """Return whether two fingerprints differ at most in the source of a map's items, or in the conditions of a loop."""
    return "." in first and first.partition(".")[0] == second.partition(".")[0]


def _extras(step: Step) -> list[object]:
    """Return the other options that decide whether and how a step completes; empty for most steps."""
    extras: list[object] = []
    if step.when or step.checks or step.outputs or step.commit_required:
        extras = [step.when, step.checks, step.outputs, step.commit_required]
    if step.artifacts or step.inputs:
        # Checks of their content are repeated on resume; their paths are part of the definition.
        extras += [[artifact.path for artifact in step.artifacts], [input_.path for input_ in step.inputs]]
    return extras


def _normalised(action: Action, env: Mapping[str, str]) -> object:
    if isinstance(action, Run):
        # White space around a script comes from YAML block styles; inside it may matter to the shell.
        return Run(script=action.script.strip())
    if isinstance(action, Map | Loop | Subpipeline):
        # Its body; parallelism, iterations and allowed failures change when it ends, not its work.
        body = [[step.id, fingerprint(step, env), step.needs] for step in action.steps]
        match action:
            case Loop():
                return ["loop", body]
            case Subpipeline(arguments=arguments, outputs=outputs):
                return ["pipeline", body, arguments, outputs]
            case _:
                return ["map", body]
    return action


EVERYTHING = "*"  # the expression does not name which

_NAME = re.compile(r"\b(params|steps)\b(?:\s*\.\s*([A-Za-z_]\w*)|\s*\[\s*['\"]([^'\"]+)['\"]\s*\])?")


def references(step: Step, shared_env: Mapping[str, str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the params and the steps that the expressions of a step name."""
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
        if placeholders.has_placeholders(text):
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
        case Subpipeline(arguments=arguments):
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


def takes_in(pattern: str, path: str) -> bool:
    """Return whether a path equals, is below, or matches a declared path."""
    return path == pattern or path.startswith(pattern.rstrip("/") + "/") or fnmatchcase(path, pattern)


def covers(pattern: str, path: str) -> bool:
    """Return whether an input may include a path. For patterns it errs on the side of yes."""
    literal = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    if literal != pattern:
        return path.startswith(literal)
    return path == pattern or path.startswith(pattern.rstrip("/") + "/")


def upstream_seq(step: Step, unit: UnitState, lineage: Mapping[str, int]) -> int:
    """Return the journal position at which this step or any dependency last produced something different."""
    newest = unit.changed_seq
    for need in step.needs:
        newest = max(newest, lineage[need])
    return newest


def named_needs(step: Step, shared_env: Mapping[str, str]) -> list[str] | None:
    """Return the steps whose results alone count, as its expressions name them; None if all needs count.

    All of them count unless inputs are declared: then the inputs are compared by themselves.
    """
    if not step.inputs:
        return None
    named = references(step, shared_env)[1]
    if EVERYTHING in named:
        return None
    # Names inside an instance are those of its neighbours; steps outside are its controller's concern.
    outer = outer_step(step.id)
    return sorted(step_path(outer, name) for name in named)


def nearest(step_id: str, needs: Mapping[str, Sequence[str]], wanted: Callable[[str], bool]) -> str | None:
    """Return the nearest dependency of a step for which `wanted` holds, in the order of declaration; None if none."""
    seen: set[str] = set()
    level = list(needs[step_id])
    while level:
        for need in level:
            if wanted(need):
                return need
        seen.update(level)
        level = list(dict.fromkeys(below for need in level for below in needs[need] if below not in seen))
    return None


def stale_reason(
    step: Step,
    unit: UnitState,
    lineage: Mapping[str, int],
    needs: Mapping[str, Sequence[str]],
    state: RunState,
    shared_env: Mapping[str, str],
    item: str | None = None,
) -> Reason | None:
    """Return why a unit is stale: the dependency whose result changed since the unit started, or None.

    It is the nearest one; a dependency that had no result when the unit started is new.
    """

    def changed(need: str) -> bool:
        return state.unit(UnitId(need, item)).changed_seq > unit.started_seq

    named = named_needs(step, shared_env)
    if named is not None:
        found = next(filter(changed, named), None)
    elif any(lineage[need] > unit.started_seq for need in step.needs):
        found = nearest(step.id, needs, changed)
    else:
        found = None
    if found is None:
        return None
    if state.unit(UnitId(found, item)).settled_seq > unit.started_seq:
        return new_dependency(found, item)
    return Reason(f"result of {found} changed", Cause(kind="result-changed", step=found, item=item))


def new_dependency(step_id: str, item: str | None) -> Reason:
    """Return the reason of a unit that depends on a step which had no result when the unit started."""
    return Reason(f"new dependency {step_id}", Cause(kind="new-dependency", step=step_id, item=item))
