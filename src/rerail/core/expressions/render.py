"""Rendering of a step for an attempt: its texts with the values of their expressions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from rerail.core.expressions import language, placeholders
from rerail.core.expressions.language import ExpressionError, Scope
from rerail.core.expressions.sandbox import StepOutputs
from rerail.core.masking import Mask
from rerail.core.model import Action, Artifact, Python, Run, Step, Write
from rerail.core.shell import lexer, quoting
from rerail.core.state import RunState
from rerail.core.unit_id import UnitId

REJECTED = "Rejected"  # type of the failure of an `approve` step
ITEM = "RERAIL_ITEM"  # the variable that holds an item as JSON


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """Rendered parts of an attempt. `values` are the variables that the script refers to."""

    action: Action
    env: dict[str, str]
    cwd: str
    values: dict[str, str] = {}


class Inherited(msgspec.Struct, frozen=True, kw_only=True):
    """Environment of a step from the map, loop or pipeline around it, evaluated there once."""

    values: Mapping[str, str] = {}
    dynamic: frozenset[str] = frozenset()  # the names whose values came from expressions

    def within(self, env: Mapping[str, str], scope: Scope) -> Inherited:
        """Return it with the variables of one more enclosing step added; raise ExpressionError."""
        if not env:
            return self
        settled = {name: language.render(text, scope) for name, text in env.items()}
        dynamic = {name for name, text in env.items() if placeholders.has_placeholders(text)}
        return Inherited(values={**self.values, **settled}, dynamic=(self.dynamic - env.keys()) | dynamic)


NOTHING = Inherited()
NO_SECRETS = Mask()


class StepResults(Mapping[str, Any]):
    """Value of `steps` in expressions, looked up on use: a view costs nothing however many steps there are."""

    def __init__(self, state: RunState, lookup: Callable[[str], UnitId] = UnitId) -> None:
        self._state = state
        self._lookup = lookup

    def __getitem__(self, step: str) -> dict[str, Any]:
        unit = self._state.unit(self._lookup(step))
        done = unit.status == "completed"
        exit_code = 0 if done else unit.error.exit_code if unit.error else None
        # A step that failed has outputs if it was rejected; those of an earlier completion are not its outputs any more.
        answered = unit.status == "failed" and unit.error is not None and unit.error.type == REJECTED
        outputs = StepOutputs(unit.outputs if done or answered else {}, step, unit.status)
        return {"outputs": outputs, "status": unit.status, "exit_code": exit_code}

    def __iter__(self) -> Iterator[str]:
        return (step for step, item in self._state.units if item is None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def directory(step: Step, env: Mapping[str, str], scope: Scope, around: Inherited = NOTHING) -> str:
    """Return the directory of a step, relative to the run's; raise ExpressionError."""
    settled = {**around.values, **{name: language.render(text, scope) for name, text in env.items()}}
    return language.render(step.cwd, msgspec.structs.replace(scope, env={**scope.env, **settled}))


def rendered(step: Step, env: Mapping[str, str], scope: Scope, around: Inherited = NOTHING) -> Rendered:
    """Evaluate all expressions of a step; raise ExpressionError. Inherited variables are evaluated already."""
    settled = {**around.values, **{name: language.render(text, scope) for name, text in env.items()}}
    inner = msgspec.structs.replace(scope, env={**scope.env, **settled})
    cwd = language.render(step.cwd, inner)
    match step.action:
        case Run(script=script):
            given = {name: settled[name] for name, value in env.items() if placeholders.has_placeholders(value)}
            given |= {name: settled[name] for name in around.dynamic if name not in env}
            if "item" in scope.more and ITEM in script:
                given[ITEM] = msgspec.json.encode(scope.more["item"]).decode()
            text, values = shell(script, inner, given)
            return Rendered(action=Run(script=text), env=settled, cwd=cwd, values=values)
        case Python(target=target, arguments=arguments):
            action: Action = Python(target=target, arguments=language.render_value(arguments, inner))
        case Write(path=path, content=content, mode=mode):
            action = Write(path=language.render(path, inner), content=language.render(content, inner), mode=mode)
        case other:
            action = other
    return Rendered(action=action, env=settled, cwd=cwd)


def command_of(
    step: Step, env: Mapping[str, str], scope: Scope, around: Inherited = NOTHING, *, mask: Mask = NO_SECRETS
) -> str:
    """Return the command of a step for people, with the values of its expressions; raise ExpressionError.

    Secrets are masked before the expressions are evaluated, too: a part of one, or one in capitals, is not recognised.
    """
    outer = around.values
    if mask:
        scope = msgspec.structs.replace(scope, env={name: mask.text(value) for name, value in scope.env.items()})
        outer = {name: mask.text(value) for name, value in outer.items()}
    settled = {**outer, **{name: language.render(text, scope) for name, text in env.items()}}
    inner = msgspec.structs.replace(scope, env={**scope.env, **settled})
    return mask.text(_command(step, inner))


def _command(step: Step, inner: Scope) -> str:
    if not isinstance(step.action, Run):
        return language.render(step.command, inner)
    pieces = placeholders.split(step.command)
    expressions = [expression for _, expression, _ in pieces if expression is not None]
    values = [language.as_text(language.evaluate(expression, inner)) for expression in expressions]
    try:
        return quoting.legible(lexer.slots([literal for literal, _, _ in pieces]), values)
    except lexer.NotAllowedHere as error:
        raise ExpressionError(str(error)) from None


def filled(declared: tuple[Artifact, ...], scope: Scope) -> tuple[Artifact, ...]:
    """Evaluate the expressions in the paths of artifacts or inputs; wildcards in a value are literal."""
    return tuple(
        msgspec.structs.replace(artifact, path=pattern(artifact.path, scope))
        if placeholders.has_placeholders(artifact.path)
        else artifact
        for artifact in declared
    )


def pattern(text: str, scope: Scope) -> str:
    """Evaluate the expressions in a path or pattern; wildcards in a value are literal."""
    return "".join(
        literal + ("" if expression is None else _as_name(language.as_text(language.evaluate(expression, scope))))
        for literal, expression, _ in placeholders.split(text)
    )


def _as_name(value: str) -> str:
    if "\0" in value:
        raise ExpressionError("a path cannot hold a NUL character")
    return re.sub(r"([*?[])", r"[\1]", value)


def mentioned(env: Mapping[str, str], script: str) -> dict[str, str]:
    """Return the variables of an environment that a script refers to by name."""
    return {name: value for name, value in env.items() if name in script}


def shell(script: str, scope: Scope, env: Mapping[str, str] = {}) -> tuple[str, dict[str, str]]:
    """Return a script with its expressions evaluated, and the variables it refers to.

    `env` has the evaluated variables of its environment.
    """
    pieces = placeholders.split(script)
    literals = [literal for literal, _, _ in pieces]
    expressions = [expression for _, expression, _ in pieces if expression is not None]
    values = [language.as_text(language.evaluate(expression, scope)) for expression in expressions]
    try:
        return quoting.fill(lexer.slots(literals), values, env)
    except lexer.NotAllowedHere as error:
        raise ExpressionError(f"`{expressions[error.index]}`: {error}") from None
    except quoting.ValueRefused as error:
        subject = f"env `{error.env}`" if error.env else f"`{expressions[error.index]}`"
        raise ExpressionError(f"{subject}: {error}") from None
