"""What an attempt is given, and what is kept of one that failed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from rerail.core.events import Failure
from rerail.core.masking import Mask
from rerail.core.model import Call, Run, Step
from rerail.core.render import Rendered, StepResults, rendered, shell
from rerail.core.retry import Symptoms, patterns
from rerail.core.state import RunState
from rerail.core.template import Scope
from rerail.engine.job import Find, Job
from rerail.ports import Attempt, Kind, Outcome, ProcessWork

MOST_MESSAGE = 2000


def scope_of(job: Job, state: RunState, run_status: str) -> Scope:
    """What the names in an expression stand for now."""
    return Scope(
        params=job.header.params,
        env=job.base_env,
        steps=StepResults(state),
        run={"id": job.header.run_id, "dir": job.environment["RERAIL_RUN_DIR"], "status": run_status},
    )


def attempt_of(job: Job, step: Step, state: RunState, number: int, run_status: str) -> Attempt:
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
        made = rendered(step, declared, scope_of(job, state, run_status))
    env = {
        **made.env,
        **job.environment,  # after the user's: nobody takes his processes out of our sight by accident
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
        capture={name: capture.form for name, capture in step.outputs.items()},
        timeout=step.timeout,
        log_name=log_name,
        channel=channel,
    )


def with_checks(job: Job, step: Step, state: RunState, attempt: Attempt, kinds: Mapping[type, Kind]) -> Attempt:
    """The attempt with the work of its checks; raises ExpressionError."""
    made = []
    for number, check in enumerate(step.checks, 1):
        script = check
        values: dict[str, str] = {}
        if step.dynamic:
            script, values = shell(check, scope_of(job, state, state.status))
        of_check = msgspec.structs.replace(
            attempt, action=Run(script=script), values=values, channel=f"{attempt.channel}.check-{number}"
        )
        work = kinds[Run].work(of_check)
        assert isinstance(work, ProcessWork)
        made.append(msgspec.structs.replace(work, label=check.strip().splitlines()[0]))
    return msgspec.structs.replace(attempt, checks=tuple(made))


def masked(outcome: Outcome, mask: Mask) -> Outcome:
    """The outcome without secrets; says so where that changed what the step handed out."""
    outputs = mask.value(outcome.outputs)
    warnings = [mask.text(warning) for warning in outcome.warnings]
    if outputs != outcome.outputs:
        warnings.append("its outputs held a secret, which is masked for everybody who reads them")
    return msgspec.structs.replace(
        outcome,
        outputs=outputs,
        metrics={mask.text(name): value for name, value in outcome.metrics.items()},
        output=mask.text(outcome.output),
        message=mask.text(outcome.message),
        stderr_tail=mask.text(outcome.stderr_tail),
        traceback=mask.text(outcome.traceback),
        warnings=tuple(warnings),
    )


def place_of(job: Job, step: Step) -> str:
    """Where the commits of a step are looked for."""
    return os.path.join(job.work_dir, step.cwd) if step.cwd and "${{" not in step.cwd else job.work_dir


def without_commit(outcome: Outcome, uncommitted: Sequence[str], head: str) -> Outcome:
    """The failure of a step that had to commit: HEAD is where it was when the step was first tried."""
    what = f"changed and not committed: {', '.join(uncommitted)}" if uncommitted else "nothing was changed either"
    if not head:
        what = "there is no git work tree with a commit here"
    message = f"commit_required, but no commit was created; {what}"
    return msgspec.structs.replace(outcome, status="failed", type="CommitRequired", message=message, outputs={})


def failure_of(job: Job, step: Step, outcome: Outcome, state: RunState, at: datetime) -> Failure:
    """Everything that is known about why an attempt failed."""
    variables: dict[str, Any] = {"params": job.header.params, "env": {**job.pipeline.env, **step.env}}
    outputs = {need: unit.outputs for need in step.needs if (unit := state.unit((need, None))).outputs}
    if outputs:
        variables["outputs"] = outputs
    return Failure(
        type=outcome.type,
        message=outcome.message[:MOST_MESSAGE],  # cut only now that it is masked: half a secret is one too
        step=step.id,
        item=outcome.unit[1],
        at=at,
        command=step.command,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        retryable=outcome.retryable,
        stderr_tail=outcome.stderr_tail,
        traceback=outcome.traceback,
        variables=job.mask.value(variables),
    )


def unstartable(step: Step, kind: str, message: str) -> Outcome:
    """The outcome of an attempt that was never launched."""
    return Outcome(unit=(step.id, None), status="failed", duration=0.0, type=kind, message=message, retryable=False)


def symptoms_of(step: Step, outcome: Outcome, find: Find) -> tuple[Symptoms, tuple[str, ...]]:
    """What a retry policy looks at, and its patterns that took too long to look for."""
    symptoms = Symptoms(
        type=outcome.type,
        message=outcome.message,
        exit_code=outcome.exit_code,
        stderr=outcome.stderr_tail,
        retryable=outcome.retryable,
    )
    wanted = patterns(step.retry)
    if not wanted:
        return symptoms, ()
    matching, endless = find(wanted, symptoms.text)
    return msgspec.structs.replace(symptoms, matching=matching), endless
