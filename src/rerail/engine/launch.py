"""What an attempt is given, and what is kept of one that failed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from rerail.core.compaction import is_pipeline
from rerail.core.events import Approval, Failure
from rerail.core.expressions.language import ExpressionError, evaluate
from rerail.core.expressions.render import Rendered, directory, mentioned, rendered, shell
from rerail.core.items import around
from rerail.core.model import Approve, Call, Run, Step
from rerail.core.retry import FailureFacts, patterns
from rerail.core.state import RunState, Unit
from rerail.engine.desk import Desk
from rerail.engine.ready_queue import Task
from rerail.engine.scopes import ScopeBuilder
from rerail.engine.spec import Find, RunSpec, attempt_name
from rerail.engine.step_files import StepFiles
from rerail.ports import Attempt, Kind, Outcome, ProcessWork

MOST_MESSAGE = 2000


def attempt_of(job: RunSpec, task: Task, state: RunState, number: int, view: ScopeBuilder) -> Attempt:
    """The attempt to launch, with everything its kind and executor need; raises ExpressionError."""
    step = task.step
    names = task.home.names(task)
    if isinstance(step.action, Call):
        # A function of this process has no environment of its own, and is what a tiny step costs most by.
        return Attempt(
            unit=task.unit, number=number, action=step.action, timeout=step.timeout, item=names.get("item", msgspec.UNSET)
        )
    log_name = attempt_name(task.unit, number)
    channel, variables = job.channel(log_name)
    around = task.home.env
    declared = declared_env(job, task)
    made = Rendered(action=step.action, env={**around.values, **declared}, cwd=step.cwd)
    if step.dynamic or around.dynamic:
        made = rendered(step, declared, view.of(task), around)
    env = {
        **made.env,
        **job.environment,  # after the user's: nobody takes his processes out of our sight by accident
        **variables,
        "RERAIL_STEP": step.id,
        "RERAIL_STEP_KEY": _key(job, task, state),
        "RERAIL_ATTEMPT": str(number),
    }
    if "item" in names:
        env["RERAIL_ITEM"] = msgspec.json.encode(names["item"]).decode()
    return Attempt(
        unit=task.unit,
        number=number,
        action=made.action,
        cwd=os.path.join(job.work_dir, made.cwd) if made.cwd else job.work_dir,
        env=env,
        values=made.values,
        capture={name: capture.form for name, capture in step.outputs.items()},
        timeout=step.timeout,
        log_name=log_name,
        channel=channel,
    )


def declared_env(job: RunSpec, task: Task) -> dict[str, str]:
    """The variables that are evaluated for a step itself: its own, and of the pipeline's what no step around it gives."""
    shared = {name: text for name, text in job.pipeline.env.items() if name not in task.home.env.values}
    return {**shared, **task.step.env}


def _key(job: RunSpec, task: Task, state: RunState) -> str:
    """The same for every attempt until the step has completed; what runs again after that is new work."""
    step, item = task.unit
    # An item is one part of the key, whatever characters it has: else `docs` in its second round were `docs/round-1`.
    parts = [job.header.run_id, step, *([] if item is None else [item.replace("%", "%25").replace("/", "%2F")])]
    rounds = _rounds(task.unit, state)
    parts += [f"round-{rounds}"] if rounds else []
    completions = state.unit(task.unit).completions
    return "/".join([*parts, str(completions)] if completions else parts)


def _rounds(unit: Unit, state: RunState) -> int:
    """In which round a unit is: it grows when a list, an item or a pipeline around it is replaced or given up."""
    outers = (state.units[outer] for outer in set(around(unit)) if outer in state.units)
    return sum(known.rounds for known in outers if known.index is not None or is_pipeline(known))


def with_checks(task: Task, attempt: Attempt, view: ScopeBuilder, kinds: Mapping[type, Kind]) -> Attempt:
    """The attempt with the work of its checks; raises ExpressionError."""
    made = []
    step = task.step
    for number, check in enumerate(step.checks, 1):
        script = check
        values: dict[str, str] = {}
        if step.dynamic or task.home.env.dynamic:
            script, values = shell(check, view.of(task), mentioned(attempt.env, check))
        of_check = msgspec.structs.replace(
            attempt, action=Run(script=script), values=values, channel=f"{attempt.channel}.check-{number}"
        )
        work = kinds[Run].work(of_check)
        assert isinstance(work, ProcessWork)
        made.append(msgspec.structs.replace(work, label=check.strip().splitlines()[0]))
    return msgspec.structs.replace(attempt, checks=tuple(made))


def directory_of(job: RunSpec, task: Task, view: ScopeBuilder) -> str:
    """The directory a step runs in, for what has to be known of it before and after; raises ExpressionError."""
    cwd = task.step.cwd
    if "${{" in cwd:
        cwd = directory(task.step, declared_env(job, task), view.of(task), task.home.env)
    return os.path.join(job.work_dir, cwd) if cwd else job.work_dir


def failure_of(job: RunSpec, task: Task, outcome: Outcome, state: RunState, at: datetime) -> Failure:
    """Everything that is known about why an attempt failed."""
    step = task.step
    variables: dict[str, Any] = {
        "params": job.header.params,
        "env": {**task.home.env.values, **declared_env(job, task)},
        **task.home.names(task),
    }
    outputs = {need: unit.outputs for need in step.needs if (unit := state.unit((need, task.home.item))).outputs}
    if outputs:
        variables["outputs"] = outputs
    return Failure(
        type=outcome.type,
        message=outcome.message[:MOST_MESSAGE],
        step=step.id,
        item=outcome.unit[1],
        at=at,
        command=step.command,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        retryable=outcome.retryable,
        stderr_tail=outcome.stderr_tail,
        traceback=outcome.traceback,
        variables=variables,
    )


def unstartable(unit: Unit, kind: str, message: str) -> Outcome:
    """The outcome of an attempt that was never launched."""
    return Outcome(unit=unit, status="failed", duration=0.0, type=kind, message=message, retryable=False)


def judged(unit: Unit, verdict: Approval | None) -> Outcome:
    """The outcome of an `approve` step: what a person answered."""
    assert verdict is not None  # it is held until there is one
    said = {"approved": verdict.approved, "by": verdict.by, "at": verdict.at.isoformat(), "reason": verdict.reason}
    if verdict.approved:
        return Outcome(unit=unit, status="ok", duration=0.0, outputs=said)
    message = f"rejected by {verdict.by}" + (f": {verdict.reason}" if verdict.reason else "")
    return Outcome(unit=unit, status="failed", duration=0.0, type="Rejected", message=message, retryable=False)


def symptoms_of(step: Step, outcome: Outcome, find: Find) -> tuple[FailureFacts, tuple[str, ...]]:
    """What a retry policy looks at, and its patterns that took too long to look for."""
    symptoms = FailureFacts(
        type=outcome.type,
        message=outcome.message,
        exit_code=outcome.exit_code,
        stderr=outcome.stderr_tail,
        retryable=outcome.retryable,
    )
    wanted = patterns(step)
    if not wanted:
        return symptoms, ()
    matching, endless = find(wanted, symptoms.text)
    return msgspec.structs.replace(symptoms, matching=matching), endless


class Launcher:
    """Launches the attempts of one life."""

    def __init__(self, desk: Desk, files: StepFiles) -> None:
        self._desk = desk
        self._files = files
        self.instant: list[Outcome] = []  # of what could not start, and of what people answered

    def take_instant(self) -> list[Outcome]:
        """The outcomes that nobody has to be waited for."""
        taken, self.instant = self.instant, []
        return taken

    def launch(self, task: Task, number: int) -> bool:
        """Launch an attempt; whether it is that of a controller, which has to be begun instead."""
        step = task.step
        try:
            if step.when:  # one that has no value was not skipped: it fails here
                evaluate(step.when, self._desk.view.of(task))
            kind, problem = self._files.take(task) if step.inputs or step.artifacts else ("", "")
            if problem:
                self.instant.append(unstartable(task.unit, kind, problem))
                return False
            if task.controls:
                return True  # what goes wrong in it is not a start that failed
            if isinstance(step.action, Approve):
                self.instant.append(judged(task.unit, self._desk.state.unit(task.unit).verdict))
                return False
            self._start(task, number)
        except ExpressionError as error:
            self.instant.append(unstartable(task.unit, "ExpressionError", str(error)))
        except (ValueError, KeyError, OSError) as error:
            self.instant.append(unstartable(task.unit, "CouldNotStart", f"could not start: {error}"))
        return False

    def _start(self, task: Task, number: int) -> None:
        desk, tools = self._desk, self._desk.tools
        attempt = attempt_of(desk.job, task, desk.state, number, desk.view)
        work = tools.kinds[type(task.step.action)].work(attempt)
        if task.step.checks:
            attempt = with_checks(task, attempt, desk.view, tools.kinds)
        tools.executor.start(attempt, work)
