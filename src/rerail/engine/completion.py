"""How attempts end, as events, and what that means for what waits for them."""

from __future__ import annotations

from collections.abc import Container
from datetime import timedelta

from rerail.core import events as ev
from rerail.core.model import Approve
from rerail.core.retry import RetryDecision, RetryFacts, decide
from rerail.engine.admission import Admission
from rerail.engine.desk import Desk
from rerail.engine.frame import Frame
from rerail.engine.launch import failure_of, symptoms_of
from rerail.engine.ready_queue import Task
from rerail.ports import Outcome


class CompletionRecorder:
    """Records ends."""

    def __init__(self, desk: Desk, root: Frame, hooks: Container[str], holds: Admission) -> None:
        self._desk = desk
        self._holds = holds
        self._root = root
        self._hooks = hooks
        self._stage = desk.recorder.stage
        self._now = desk.clock.now
        self._unit = desk.state.unit

    def interrupt(self, task: Task, attempt: int, outcome: Outcome, reason: str) -> None:
        """An attempt was cut off by us."""
        step, item = task.unit
        self._desk.recorder.stage(
            ev.StepInterrupted(
                at=self._desk.clock.now(),
                step=step,
                item=item,
                attempt=attempt,
                reason=reason,
                metrics=outcome.metrics,
                models=outcome.models,
                elapsed=round(outcome.duration, 6),
            )
        )

    def complete(self, task: Task, attempt: int, outcome: Outcome, artifacts: tuple[ev.ArtifactRecord, ...] = ()) -> None:
        step, item = task.unit
        if task.step.on_failure and self._root.failed:  # a clean-up that failed before it is history now
            self._root.failed -= {hook.id for hook in task.step.on_failure}
        self._stage(
            ev.StepCompleted(
                at=self._now(),
                step=step,
                item=item,
                attempt=attempt,
                duration=round(outcome.duration, 6),
                outputs=outcome.outputs,
                metrics=outcome.metrics,
                models=outcome.models,
                artifacts=artifacts,
                output=outcome.output if item is None else "",  # of items there are many, and it is in the log
            )
        )
        home = task.home
        home.settle(task, self._unit(task.unit))
        home.leave(task)

    def fail(self, task: Task, attempt: int, outcome: Outcome) -> bool:
        """An attempt failed; whether that is the end of it, and not allowed."""
        desk, now, (step, item) = self._desk, self._desk.clock.now(), task.unit
        outcome = desk.job.mask.struct(outcome)  # before anything of it is cut: half a secret is one too
        decision = self._decide(task, outcome)
        delay = decision.delay
        allowed = delay is None and task.home.allows_failure(task)
        desk.recorder.stage(
            ev.StepFailed(
                at=now,
                step=step,
                item=item,
                attempt=attempt,
                duration=round(outcome.duration, 6),
                error=failure_of(desk.job, task, outcome, desk.state, now),
                retry_at=None if delay is None else now + timedelta(seconds=delay),
                retry_in=delay,
                allowed=allowed,
                metrics=outcome.metrics,
                models=outcome.models,
                output=outcome.output,
                why=decision.why if delay is not None else "",
                refused=decision.refused,
                refusals=self._holds.refusals(task, desk.state.unit(task.unit)) + 1 if decision.refused else 0,
            )
        )
        if decision.refused:
            self._holds.refused(task, decision)
            return False
        if decision.limit is None:
            self._holds.got_through(step)
        if delay is not None:
            desk.turns.wait(task, desk.clock.monotonic() + delay)
            return False
        desk.past.start_anew(task.home.fail(task, allowed=allowed))
        if allowed and step not in self._hooks:  # the next hook was released by its failure already
            task.home.settle(task, desk.state.unit(outcome.unit))
        elif isinstance(task.step.action, Approve):
            self._holds.rejected(task)
        task.home.leave(task)
        return not allowed

    def _decide(self, task: Task, outcome: Outcome) -> RetryDecision:
        desk = self._desk
        known = desk.state.unit(outcome.unit)
        symptoms, endless = symptoms_of(task.step, outcome, desk.tools.find)
        for pattern in endless:
            desk.recorder.warn(f"{task.step.id}: `{pattern}` takes too long to look for; it counts as not found")
        around = RetryFacts(
            failures=known.failures + 1,
            refusals=self._holds.refusals(task, known),
            at=desk.clock.now().astimezone(desk.tools.zone),
            dice=desk.tools.dice(),
            over_budget=self._holds.allowances.why_not(task.unit).why,
            attempts=known.attempts,
        )
        return decide(task.step, symptoms, around)
