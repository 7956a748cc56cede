"""What an attempt is given, and what is kept of one that failed."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from rerail.core.events import Failure
from rerail.core.model import Call, Pipeline, RunHeader, RunOptions, Step
from rerail.core.plan import Plan
from rerail.core.state import RunState, UnitState
from rerail.ports import Attempt, Outcome


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be driven, and how."""

    header: RunHeader
    pipeline: Pipeline
    plan: Plan
    options: RunOptions
    work_dir: str
    environment: dict[str, str]  # of every attempt, in addition to rerail's own
    channel: Callable[[str], tuple[str, dict[str, str]]]  # attempt name → channel prefix and its variables


def attempt_of(job: Job, step: Step, unit: UnitState, number: int) -> Attempt:
    """The attempt to launch, with everything its kind and executor need."""
    if isinstance(step.action, Call):
        # A function of this process has no environment of its own, and is what a tiny step costs most by.
        return Attempt(unit=(step.id, None), number=number, action=step.action, timeout=step.timeout)
    log_name = f"{step.id}.{number}"
    channel, variables = job.channel(log_name)
    key = f"{job.header.run_id}/{step.id}"
    env = {
        **job.environment,
        **job.pipeline.env,
        **step.env,
        **variables,
        "RERAIL_STEP": step.id,
        # The same for every attempt until the step has completed; what runs again after that is new work.
        "RERAIL_STEP_KEY": f"{key}/{unit.completions}" if unit.completions else key,
        "RERAIL_ATTEMPT": str(number),
    }
    return Attempt(
        unit=(step.id, None),
        number=number,
        action=step.action,
        cwd=os.path.join(job.work_dir, step.cwd) if step.cwd else job.work_dir,
        env=env,
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
