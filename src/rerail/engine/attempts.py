"""What an attempt is given, and what is kept of one that failed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from rerail.core.events import Failure
from rerail.core.model import Call, Pipeline, RunHeader, RunOptions, Step
from rerail.core.plan import Plan
from rerail.core.render import Rendered, StepResults, rendered
from rerail.core.state import RunState
from rerail.core.template import Scope
from rerail.ports import Attempt, Outcome


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be driven, and how."""

    header: RunHeader
    pipeline: Pipeline
    plan: Plan
    options: RunOptions
    work_dir: str
    environment: dict[str, str]  # of every attempt, in addition to rerail's own
    base_env: Mapping[str, str]  # rerail's own
    channel: Callable[[str], tuple[str, dict[str, str]]]  # attempt name → channel prefix and its variables


def scope_of(job: Job, state: RunState) -> Scope:
    """What the names in an expression stand for now."""
    return Scope(
        params=job.header.params,
        env=job.base_env,
        steps=StepResults(state),
        run={"id": job.header.run_id, "dir": job.environment["RERAIL_RUN_DIR"], "status": state.status},
    )


def attempt_of(job: Job, step: Step, state: RunState, number: int) -> Attempt:
    """The attempt to launch, with everything its kind and executor need; raises ExpressionError."""
    if isinstance(step.action, Call):
        # A function of this process has no environment of its own, and is what a tiny step costs most by.
        return Attempt(unit=(step.id, None), number=number, action=step.action, timeout=step.timeout)
    log_name = f"{step.id}.{number}"
    channel, variables = job.channel(log_name)
    unit = state.unit((step.id, None))
    key = f"{job.header.run_id}/{step.id}"
    declared = {**job.pipeline.env, **step.env}
    made = Rendered(action=step.action, env=declared, cwd=step.cwd)
    if step.dynamic:
        made = rendered(step, declared, scope_of(job, state))
    env = {
        **job.environment,
        **made.env,
        **variables,
        "RERAIL_STEP": step.id,
        # The same for every attempt until the step has completed; what runs again after that is new work.
        "RERAIL_STEP_KEY": f"{key}/{unit.completions}" if unit.completions else key,
        "RERAIL_ATTEMPT": str(number),
    }
    return Attempt(
        unit=(step.id, None),
        number=number,
        action=made.action,
        cwd=os.path.join(job.work_dir, made.cwd) if made.cwd else job.work_dir,
        env=env,
        values=made.values,
        timeout=step.timeout,
        log_name=log_name,
        channel=channel,
    )


def failure_of(job: Job, step: Step, outcome: Outcome, state: RunState, at: datetime) -> Failure:
    """Everything that is known about why an attempt failed."""
    variables: dict[str, Any] = {"params": job.header.params, "env": {**job.pipeline.env, **step.env}}
    outputs = {need: unit.outputs for need in step.needs if (unit := state.unit((need, None))).outputs}
    if outputs:
        variables["outputs"] = outputs
    return Failure(
        type=outcome.type,
        message=outcome.message,
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
