"""Admission: may a ready task start now, or is it blocked by a rate limit, its budget, a missing approval or crashes?

A task that is blocked for a short time waits in the queue. A task that is blocked for long is kept here: everything
else goes on, and when nothing else is left the run is paused. Every decision follows from the state alone, so the next
invocation decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from datetime import datetime, timedelta

import msgspec

from rerail.core.events import PauseCause
from rerail.core.inflight import crashes_in_a_row, describe_crashes
from rerail.core.model import Approve
from rerail.core.money import amount
from rerail.core.retry import RetryDecision, remaining
from rerail.core.state import UnitState
from rerail.core.unit_id import UnitId, is_step_within, step_depth
from rerail.engine.approvals import Approvals
from rerail.engine.budgets import StepBudgets
from rerail.engine.frame import Frame
from rerail.engine.ready_queue import ReadyQueue, RunningTasks, Task
from rerail.engine.recorder import Recorder
from rerail.engine.spec import STOP_GRACE, RunSpec, Toolbox
from rerail.engine.throttle import Throttle
from rerail.ports import Outcome

MAX_NAMED = 3  # blocked units that a message names
_PRECEDENCE: list[PauseCause] = ["quota", "crashes", "approval", "budget"]  # the cause of a pause that has several


class _AllBut:
    """All steps but one and the steps inside it."""

    def __init__(self, step: str) -> None:
        self._step = step

    def __contains__(self, step: object) -> bool:
        return not is_step_within(str(step), self._step)


def _begins_an_item(task: Task) -> bool:
    """Return whether every item of an outermost map begins with this step alone: if it is blocked, all items are."""
    if task.unit.depth > 1:
        return False
    if not isinstance(task.parent, Frame):
        return True
    beginnings = [step for step in task.parent.body.steps if not step.needs]
    return beginnings == [task.step] and step_depth(task.step.id) == 1


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """Cause of a blocked unit, or of a paused run."""

    cause: PauseCause
    why: str
    until: datetime | None = None
    alone: bool = False  # the other steps of its frame or items of its map go on without it
    waiting: tuple[str, ...] = ()  # `approve` steps without an answer
    hooks: tuple[str, ...] = ()  # blocked hooks


class Admission:
    """Blocked tasks of one invocation, and the throttles and budgets that block them."""

    def __init__(
        self,
        spec: RunSpec,
        tools: Toolbox,
        recorder: Recorder,
        queue: ReadyQueue,
        running: RunningTasks,
        approvals: Approvals,
    ) -> None:
        self.budgets = StepBudgets(spec.pipeline, recorder, running)
        self.idle = not approvals.any and not self.budgets.any  # nothing can be blocked
        self._approvals = approvals
        approvals.on_answer = self._unblock_answered
        self._throttles: dict[str, Throttle] = {}
        self._queues: dict[str, list[Task]] = {}  # tasks whose throttle is open, and full
        self._blocked: dict[UnitId, tuple[Task, Blocked]] = {}
        self._stopped: set[str] = set()  # steps whose attempts are stopped because their budget is spent
        self._suspects: set[UnitId] = set()  # units that so many crashes have interrupted in a row
        self._max_crashes = spec.pipeline.max_crashes
        self._definition = spec.definition
        self._wait = spec.execute.wait
        self._executor = tools.executor
        self._random = tools.random
        self._clock = tools.clock
        self._recorder = recorder
        self._state = recorder.state
        self._queue = queue
        self._running = running

    def restore(self) -> None:
        """Restore budgets and throttles from the state: spent amounts, refusals in a row, waits that are not over."""
        self.budgets.restore()
        now, at = self._clock.monotonic(), self._clock.now()
        most = self._max_crashes
        self._suspects = {unit for unit, record in self._state.units.items() if record.crashes >= most}
        self.idle = self.idle and not self._suspects
        for (step, _), record in self._state.units.items():
            if record.refusals and record.status == "failed" and record.retry_at is not None and self._wait != "no":
                left = remaining(record.retry_in or 0.0, (record.retry_at - at).total_seconds())
                throttle = self._throttle(step)
                if left > 0:
                    if not throttle.is_closed(now):
                        self._recorder.warn(f"{step} waits {amount('time', left)} more: {record.reason}")
                    throttle.refuse(now, left, at + timedelta(seconds=left), 1)
                throttle.refusals = max(throttle.refusals, record.refusals)  # in a row, even if the wait is over
                throttle.name = record.reason or throttle.name

    def _throttle(self, step: str) -> Throttle:
        self.idle = False
        return self._throttles.setdefault(step, Throttle())

    # Before an attempt

    def blocks(self, task: Task) -> bool:
        """Return whether a task may not start now. If so, it comes back by itself, or the run is going to pause."""
        if isinstance(task.step.action, Approve) and not self._approvals.is_answered(task):
            self._approvals.questions[task.unit] = task
            self._block(task, Blocked(cause="approval", why=f"{task.unit} waits for approval", alone=True))
            return True
        if task.unit in self._suspects and not task.controls:
            crashes = crashes_in_a_row(self._state.unit(task.unit), self._definition(task.step))
            if crashes >= self._max_crashes:
                why = f"{task.unit}: {describe_crashes(crashes)}"
                self._block(task, Blocked(cause="crashes", why=why, alone=True))
                return True
        exceeded = self.budgets.exceeded(task.unit)
        if exceeded:
            self._block(task, Blocked(cause="budget", why=exceeded.why, alone=exceeded.of_item))
            return True
        throttle = self._throttles.get(task.step.id)
        return throttle is not None and self._is_throttled(task, throttle)

    def _is_throttled(self, task: Task, throttle: Throttle) -> bool:
        now = self._clock.monotonic()
        if now < throttle.opens:
            longest = float("inf") if self._wait == "yes" else task.step.rate_limit.pause_after
            if throttle.opens - now > longest:
                alone = task.unit.item is not None and not _begins_an_item(task)
                why = f"{throttle.name} of {task.step.id}"
                self._block(task, Blocked(cause="quota", why=why, until=throttle.opens_at, alone=alone))
            else:
                self._queue.push_at(task, throttle.turn(self._random()))
            return True
        if task.controls:
            return False
        if self._running.count(task.step.id, throttle.opens) >= throttle.allowed:
            self._queues.setdefault(task.step.id, []).append(task)
            return True
        due = throttle.wait_for_pace(now)
        if due is not None:
            self._queue.push_at(task, due)
            return True
        throttle.start(now, self._random())
        return False

    def _block(self, task: Task, blocked: Blocked) -> None:
        self._blocked[task.unit] = (task, blocked)
        if blocked.alone:
            task.parent.block(task)

    def _unblock(self, unit: UnitId) -> Task:
        task, blocked = self._blocked.pop(unit)
        if blocked.alone:
            task.parent.unblock(task)
        return task

    def _unblock_answered(self, unit: UnitId) -> None:
        if unit in self._blocked:
            self._approvals.questions.pop(unit, None)  # its budget may block it, not its question
            self._queue.push_front(self._unblock(unit))

    # After an attempt

    def refusals(self, task: Task, record: UnitState) -> int:
        """Return how often in a row a service refused the attempts of a step."""
        throttle = self._throttles.get(task.step.id)
        if throttle is None:
            return record.refusals
        return throttle.refusals - throttle.is_closed(self._clock.monotonic())

    def refuse(self, task: Task, decision: RetryDecision) -> None:
        """Slow all attempts of a step down after a service refused one of them."""
        assert decision.delay is not None
        assert decision.limit is not None
        throttle = self._throttle(task.step.id)
        throttle.name = decision.limit.name
        at = self._clock.now() + timedelta(seconds=decision.delay)
        throttle.refuse(self._clock.monotonic(), decision.delay, at, self._running.count(task.step.id) + 1)
        self._queue.push(task)

    def accept(self, step: str) -> None:
        """Let a step go faster: its service did not refuse an attempt, which may have failed all the same."""
        throttle, now = self._throttles.get(step), self._clock.monotonic()
        if throttle is not None:
            throttle.let_through(now)
            if throttle.is_over and not throttle.is_closed(now):
                del self._throttles[step]

    def finish(self, task: Task, outcome: Outcome) -> None:
        """Charge the budgets for an attempt that ended, and let the next task of its step through."""
        for step in self.budgets.charge(task.unit, outcome.metrics, 0.0 if task.controls else outcome.duration):
            self._stop(step)
        step = task.step.id
        if step not in self._throttles:
            return
        if outcome.status == "ok" and not task.controls:
            self.accept(step)
        for waiting in self._queues.pop(step, ()):
            self._queue.push_front(waiting)

    def was_overspent(self, task: Task) -> bool:
        """Return whether an attempt was stopped because its own budget is spent: then it is blocked, not lost."""
        return any(is_step_within(task.step.id, step) for step in self._stopped)

    def _stop(self, step: str) -> None:
        self._stopped.add(step)
        self._executor.stop(STOP_GRACE, spare=_AllBut(step))

    # As time passes

    def recheck_clock(self) -> None:
        """Open the throttles whose wall-clock time has come: the machine slept, or its clock was set."""
        now, at = self._clock.monotonic(), self._clock.now()
        for step, throttle in self._throttles.items():
            if throttle.put_forward(now, at):
                self._queue.expedite(step, now)
        self.unblock_due()

    def check_budgets(self) -> None:
        """Stop the attempts that spend more than the budget of their step, where it says `on_exceed: stop`."""
        for step in self.budgets.overdrawn():
            self._stop(step)

    def unblock_due(self) -> bool:
        """Queue the tasks whose quota is available again; return whether there were any."""
        now = self._clock.monotonic()
        due = []
        for unit, (task, blocked) in self._blocked.items():
            throttle = self._throttles.get(task.step.id)
            if blocked.cause == "quota" and (throttle is None or not throttle.is_closed(now)):
                due.append(unit)
        for unit in due:
            self._queue.push(self._unblock(unit))
        return bool(due)

    def forget_inside(self, controller: UnitId) -> None:
        """Drop the blocked tasks inside a controller that has ended."""
        if self._blocked:
            self.keep(lambda task: task.unit == controller or not task.unit.is_within(controller))

    def keep(self, wanted: Callable[[Task], bool]) -> None:
        """Drop all blocked tasks but the wanted ones."""
        self._queues = {step: [task for task in queue if wanted(task)] for step, queue in self._queues.items()}
        self._blocked = {unit: entry for unit, entry in self._blocked.items() if wanted(entry[0])}
        self._approvals.keep(wanted)

    # When nothing else is left

    def pause(self, hooks: Container[str]) -> Blocked | None:
        """Return the cause of the pause, or None if nothing is blocked."""
        held = [self._update(task, blocked) for task, blocked in self._blocked.values()]
        if not held and self._approvals.reopened:
            return Blocked(cause="", why=f"{', '.join(self._approvals.reopened)} was answered again")
        if not held:
            return None
        cause = min((blocked.cause for blocked in held), key=_PRECEDENCE.index)
        times = [blocked.until for blocked in held if blocked.until is not None]
        reasons = list(dict.fromkeys(blocked.why for blocked in held))
        more = f" and {len(reasons) - MAX_NAMED} more" if len(reasons) > MAX_NAMED else ""
        return Blocked(
            cause=cause,
            why="; ".join(reasons[:MAX_NAMED]) + more,
            until=min(times, default=None),
            waiting=tuple(map(str, self._suspected() if cause == "crashes" else self._approvals.questions)),
            hooks=tuple(str(unit) for unit in self._blocked if unit.step in hooks),
        )

    def _suspected(self) -> list[UnitId]:
        return [unit for unit, (_, blocked) in self._blocked.items() if blocked.cause == "crashes"]

    def next_quota(self) -> Blocked | None:
        """Return the quota that queued tasks wait for, if any: an invocation that ends before then reports it."""
        now = self._clock.monotonic()
        closed = [(step, throttle) for step, throttle in self._throttles.items() if throttle.is_closed(now)]
        if not closed or self._queue.empty:
            return None
        step, throttle = min(closed, key=lambda entry: entry[1].opens)
        return Blocked(cause="quota", why=f"{throttle.name} of {step}", until=throttle.opens_at)

    def _update(self, task: Task, blocked: Blocked) -> Blocked:
        """Return the entry with the amount spent by now: other attempts went on spending."""
        why = self.budgets.exceeded(task.unit).why if blocked.cause == "budget" else ""
        return msgspec.structs.replace(blocked, why=why) if why else blocked
