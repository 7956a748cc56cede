"""Launch: from a task to an attempt for the executor, and from a failed outcome to its record."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from rerail.core.compaction import is_pipeline
from rerail.core.events import Approval, Failure
from rerail.core.expressions import placeholders
from rerail.core.expressions.language import ExpressionError, evaluate
from rerail.core.expressions.render import REJECTED, Rendered, command_of, directory, mentioned, rendered, shell
from rerail.core.model import Approve, Call, Run, Step
from rerail.core.retry import FailureFacts, patterns
from rerail.core.state import RunState
from rerail.core.unit_id import UnitId
from rerail.engine.ready_queue import Task
from rerail.engine.scopes import ScopeBuilder
from rerail.engine.spec import Find, RunSpec, Toolbox, attempt_name
from rerail.engine.step_files import StepFiles
from rerail.ports import Attempt, Kind, Outcome, ProcessWork

MAX_MESSAGE = 2000


def attempt_of(spec: RunSpec, task: Task, state: RunState, number: int, view: ScopeBuilder) -> Attempt:
    """Build the attempt of a task with everything its kind and executor need; raises ExpressionError."""
    step = task.step
    names = task.parent.names(task)
    if isinstance(step.action, Call):
        # A function of this process has no environment of its own; building one would be most of the cost of a tiny step.
        return Attempt(
            unit=task.unit, number=number, action=step.action, timeout=step.timeout, item=names.get("item", msgspec.UNSET)
        )
    log_name = attempt_name(task.unit, number)
    channel, variables = spec.channel(log_name)
    around = task.parent.env
    declared = declared_env(spec, task)
    made = Rendered(action=step.action, env={**around.values, **declared}, cwd=step.cwd)
    if step.dynamic or around.dynamic:
        made = rendered(step, declared, view.of(task), around)
    env = {
        **made.env,
        **spec.environment,  # after the user's, so that no step hides its processes from us by accident
        **variables,
        "RERAIL_STEP": step.id,
        "RERAIL_STEP_KEY": _key(spec, task, state),
        "RERAIL_ATTEMPT": str(number),
    }
    if "item" in names:
        env["RERAIL_ITEM"] = msgspec.json.encode(names["item"]).decode()
    return Attempt(
        unit=task.unit,
        number=number,
        action=made.action,
        cwd=os.path.join(spec.work_dir, made.cwd) if made.cwd else spec.work_dir,
        env=env,
        values=made.values,
        capture={name: capture.form for name, capture in step.outputs.items()},
        timeout=step.timeout,
        log_name=log_name,
        channel=channel,
    )


def declared_env(spec: RunSpec, task: Task) -> dict[str, str]:
    """Return the variables evaluated for a step: its own, and those of the pipeline that no step around it sets."""
    shared = {name: text for name, text in spec.pipeline.env.items() if name not in task.parent.env.values}
    return {**shared, **task.step.env}


def _key(spec: RunSpec, task: Task, state: RunState) -> str:
    """Return the idempotency key: the same for every attempt until the step completes; a rerun after that is new work."""
    step, item = task.unit
    # An item is one part of the key, whatever characters it has: else `docs` in its second round were `docs/round-1`.
    parts = [spec.header.run_id, step, *([] if item is None else [item.replace("%", "%25").replace("/", "%2F")])]
    generation = _generation(task.unit, state)
    parts += [f"round-{generation}"] if generation else []
    completions = state.unit(task.unit).completions
    return "/".join([*parts, str(completions)] if completions else parts)


def _generation(unit: UnitId, state: RunState) -> int:
    """Return how often a list, an item or a pipeline around a unit was replaced or discarded."""
    outers = (state.units[outer] for outer in (unit, *unit.ancestors()) if outer in state.units)
    return sum(record.generation for record in outers if record.index is not None or is_pipeline(record))


def with_checks(task: Task, attempt: Attempt, view: ScopeBuilder, kinds: Mapping[type, Kind]) -> Attempt:
    """Return the attempt with the work of its checks; raises ExpressionError."""
    made = []
    step = task.step
    for number, check in enumerate(step.checks, 1):
        script = check
        values: dict[str, str] = {}
        if step.dynamic or task.parent.env.dynamic:
            script, values = shell(check, view.of(task), mentioned(attempt.env, check))
        of_check = msgspec.structs.replace(
            attempt, action=Run(script=script), values=values, channel=f"{attempt.channel}.check-{number}"
        )
        work = kinds[Run].work(of_check)
        assert isinstance(work, ProcessWork)
        made.append(msgspec.structs.replace(work, label=check.strip().splitlines()[0]))
    return msgspec.structs.replace(attempt, checks=tuple(made))


def directory_of(spec: RunSpec, task: Task, view: ScopeBuilder) -> str:
    """Return the directory that a step runs in; raises ExpressionError."""
    cwd = task.step.cwd
    if "${{" in cwd:
        cwd = directory(task.step, declared_env(spec, task), view.of(task), task.parent.env)
    return os.path.join(spec.work_dir, cwd) if cwd else spec.work_dir


def _command(spec: RunSpec, task: Task, view: ScopeBuilder) -> str:
    """Return the command of a task with the values of its expressions, without secrets, cut to a limit."""
    step = task.step
    command = step.command
    if placeholders.has_placeholders(command) and not task.controls:
        with contextlib.suppress(ExpressionError):  # that is why it failed, then
            env = declared_env(spec, task)
            command = command_of(step, env, view.of(task), task.parent.env, mask=spec.mask)
    command = spec.mask.text(command)  # before it is cut: half a secret is a secret, too
    return command if len(command) <= MAX_MESSAGE else command[: MAX_MESSAGE - 1] + "…"


def failure_of(spec: RunSpec, task: Task, outcome: Outcome, state: RunState, view: ScopeBuilder, at: datetime) -> Failure:
    """Build the record of a failed attempt: error, command, variables, outputs of its dependencies."""
    step = task.step
    variables: dict[str, Any] = {
        "params": spec.header.params,
        "env": {**task.parent.env.values, **declared_env(spec, task)},
        **task.parent.names(task),
    }
    outputs = {need: unit.outputs for need in step.needs if (unit := state.unit(UnitId(need, task.parent.item))).outputs}
    if outputs:
        variables["outputs"] = outputs
    return Failure(
        type=outcome.type,
        message=outcome.message[:MAX_MESSAGE],
        step=step.id,
        item=outcome.unit.item,
        at=at,
        command=_command(spec, task, view),
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        retryable=outcome.retryable,
        stderr_tail=outcome.stderr_tail,
        traceback=outcome.traceback,
        variables=variables,
    )


def unstartable(unit: UnitId, kind: str, message: str) -> Outcome:
    """Return the outcome of an attempt that was never launched."""
    return Outcome(unit=unit, status="failed", duration=0.0, type=kind, message=message, retryable=False)


def approval_outcome(unit: UnitId, approval: Approval | None) -> Outcome:
    """Return the outcome of an `approve` step: the answer of a person."""
    assert approval is not None  # admission blocks the step until there is one
    said = {"approved": approval.approved, "by": approval.by, "at": approval.at.isoformat(), "reason": approval.reason}
    if approval.approved:
        return Outcome(unit=unit, status="ok", duration=0.0, outputs=said)
    message = f"rejected by {approval.by}" + (f": {approval.reason}" if approval.reason else "")
    return Outcome(
        unit=unit, status="failed", duration=0.0, type=REJECTED, message=message, retryable=False, outputs=said
    )


def failure_facts(step: Step, outcome: Outcome, find: Find) -> tuple[FailureFacts, tuple[str, ...]]:
    """Return the facts a retry policy looks at, and those of its patterns that took too long to search for."""
    facts = FailureFacts(
        type=outcome.type,
        message=outcome.message,
        exit_code=outcome.exit_code,
        stderr=outcome.stderr_tail,
        retryable=outcome.retryable,
    )
    wanted = patterns(step)
    if not wanted:
        return facts, ()
    matching, endless = find(wanted, facts.text)
    return msgspec.structs.replace(facts, matching=matching), endless


class Launcher:
    """Launcher of attempts."""

    def __init__(self, spec: RunSpec, tools: Toolbox, state: RunState, scopes: ScopeBuilder, files: StepFiles) -> None:
        self._spec = spec
        self._tools = tools
        self._state = state
        self._scopes = scopes
        self._files = files
        self.immediate: list[Outcome] = []  # of attempts that could not start, and of answered approvals

    def take_immediate(self) -> list[Outcome]:
        """Return the outcomes that came without waiting."""
        taken, self.immediate = self.immediate, []
        return taken

    def launch(self, task: Task, number: int) -> bool:
        """Launch an attempt; return True for a controller, which the caller opens instead."""
        step = task.step
        try:
            if step.when:  # a condition without a value does not skip the step: it fails here
                evaluate(step.when, self._scopes.of(task))
            kind, problem = self._files.take(task) if step.inputs or step.artifacts else ("", "")
            if problem:
                self.immediate.append(unstartable(task.unit, kind, problem))
                return False
            if task.controls:
                return True  # a failure inside it is not a failed start
            if isinstance(step.action, Approve):
                self.immediate.append(approval_outcome(task.unit, self._state.unit(task.unit).approval))
                return False
            self._start(task, number)
        except ExpressionError as error:
            self.immediate.append(unstartable(task.unit, "ExpressionError", str(error)))
        except (ValueError, KeyError, OSError) as error:
            self.immediate.append(unstartable(task.unit, "CouldNotStart", f"could not start: {error}"))
        return False

    def _start(self, task: Task, number: int) -> None:
        attempt = attempt_of(self._spec, task, self._state, number, self._scopes)
        work = self._tools.kinds[type(task.step.action)].work(attempt)
        if task.step.checks:
            attempt = with_checks(task, attempt, self._scopes, self._tools.kinds)
        self._tools.executor.start(attempt, work)
