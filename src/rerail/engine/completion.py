"""Completion: the end of an attempt as an event, and the tasks that it releases, retries or blocks."""

from __future__ import annotations

from collections.abc import Container
from datetime import timedelta

from rerail.core import events as ev
from rerail.core.model import Approve
from rerail.core.retry import RetryDecision, RetryFacts, decide
from rerail.engine.admission import Admission
from rerail.engine.approvals import Approvals
from rerail.engine.frame import Frame
from rerail.engine.launch import failure_facts, failure_of
from rerail.engine.ready_queue import ReadyQueue, Task
from rerail.engine.recorder import Recorder
from rerail.engine.recovery import Recovery
from rerail.engine.scopes import ScopeBuilder
from rerail.engine.spec import RunSpec, Toolbox
from rerail.ports import Outcome


class CompletionRecorder:
    """Recorder of completed, failed and interrupted attempts."""

    def __init__(
        self,
        spec: RunSpec,
        tools: Toolbox,
        recorder: Recorder,
        queue: ReadyQueue,
        recovery: Recovery,
        admission: Admission,
        scopes: ScopeBuilder,
        approvals: Approvals,
        root: Frame,
        hooks: Container[str],
    ) -> None:
        self._spec = spec
        self._tools = tools
        self._clock = tools.clock
        self._recorder = recorder
        self._state = recorder.state
        self._queue = queue
        self._recovery = recovery
        self._admission = admission
        self._scopes = scopes
        self._approvals = approvals
        self._root = root
        self._hooks = hooks

    def interrupt(self, task: Task, attempt: int, outcome: Outcome, reason: str) -> None:
        """Record an attempt that this process stopped."""
        step, item = task.unit
        self._recorder.stage(
            ev.StepInterrupted(
                at=self._clock.now(),
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
        """Record an attempt that succeeded, and queue the tasks that waited for it."""
        step, item = task.unit
        if task.step.on_failure and self._root.failed:  # an earlier failure of its clean-up no longer counts
            self._root.failed -= {hook.id for hook in task.step.on_failure}
        self._recorder.stage(
            ev.StepCompleted(
                at=self._clock.now(),
                step=step,
                item=item,
                attempt=attempt,
                duration=round(outcome.duration, 6),
                outputs=outcome.outputs,
                left=outcome.left,
                metrics=outcome.metrics,
                models=outcome.models,
                artifacts=artifacts,
                output=outcome.output if item is None else "",  # items are many, and it is in the log
            )
        )
        parent = task.parent
        parent.settle(task, self._state.unit(task.unit))
        parent.leave(task)

    def fail(self, task: Task, attempt: int, outcome: Outcome) -> bool:
        """Record an attempt that failed and retry it if the policy says so; return whether it failed permanently.

        A failure that the step allows does not count.
        """
        now, (step, item) = self._clock.now(), task.unit
        outcome = self._spec.mask.struct(outcome)  # before anything of it is cut: half a secret is a secret, too
        decision = self._decide(task, outcome)
        delay = decision.delay
        allowed = delay is None and task.parent.allows_failure(task)
        self._recorder.stage(
            ev.StepFailed(
                at=now,
                step=step,
                item=item,
                attempt=attempt,
                duration=round(outcome.duration, 6),
                error=failure_of(self._spec, task, outcome, self._state, self._scopes, now),
                retry_at=None if delay is None else now + timedelta(seconds=delay),
                retry_in=delay,
                allowed=allowed,
                left=outcome.left,
                metrics=outcome.metrics,
                models=outcome.models,
                outputs=outcome.outputs if isinstance(task.step.action, Approve) else {},
                output=outcome.output,
                why=decision.why if delay is not None else "",
                refused=decision.refused,
                refusals=self._admission.refusals(task, self._state.unit(task.unit)) + 1 if decision.refused else 0,
            )
        )
        if decision.refused:
            self._admission.refuse(task, decision)
            return False
        if decision.limit is None:
            self._admission.accept(step)
        if delay is not None:
            self._queue.push_at(task, self._clock.monotonic() + delay)
            return False
        self._recovery.rerun_hooks(task.parent.fail(task, allowed=allowed))
        if allowed and step not in self._hooks:  # its failure has released the next hook already
            task.parent.settle(task, self._state.unit(outcome.unit))
        elif isinstance(task.step.action, Approve):
            self._approvals.reject(task)
        task.parent.leave(task)
        return not allowed

    def _decide(self, task: Task, outcome: Outcome) -> RetryDecision:
        record = self._state.unit(outcome.unit)
        failure, endless = failure_facts(task.step, outcome, self._tools.find)
        for pattern in endless:
            self._recorder.warn(f"{task.step.id}: `{pattern}` takes too long to look for; it counts as not found")
        facts = RetryFacts(
            failures=record.failures + 1,
            refusals=self._admission.refusals(task, record),
            at=self._clock.now().astimezone(self._tools.zone),
            random=self._tools.random(),
            over_budget=self._admission.budgets.exceeded(task.unit).why,
            attempts=record.attempts,
        )
        return decide(task.step, failure, facts)
