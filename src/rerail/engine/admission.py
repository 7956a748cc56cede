"""Why a step whose turn has come does not start: a service asked to be left alone, its budget is spent, nobody approved.

What is held for a short time waits here. What is held for long is parked: everything else goes on, and when nothing else
is left the run is paused. What was decided follows from the state alone, so the next life decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from datetime import datetime, timedelta

import msgspec

from rerail.core import events as ev
from rerail.core.events import PauseCause
from rerail.core.expressions.language import ExpressionError, render_value
from rerail.core.items import is_inside
from rerail.core.model import Approve
from rerail.core.money import amount
from rerail.core.retry import RetryDecision, remaining
from rerail.core.state import Unit, UnitState, name
from rerail.engine.budgets import StepBudgets
from rerail.engine.desk import Desk
from rerail.engine.frame import Frame
from rerail.engine.progress import Running
from rerail.engine.ready_queue import Task
from rerail.engine.spec import STOP_GRACE, Ask
from rerail.engine.throttle import Throttle
from rerail.ports import Outcome

SHOWN = 3  # parked units that a message names
_FIRST: list[PauseCause] = ["quota", "approval", "budget"]  # what a run waits for that waits for several things


class _AllBut:
    """Every step but one and what is inside it."""

    def __init__(self, step: str) -> None:
        self._step = step

    def __contains__(self, step: object) -> bool:
        return step != self._step and not str(step).startswith(self._step + "/")


def _begins_an_item(task: Task) -> bool:
    """Whether it is all that an item of an outermost map begins with: if it cannot start, no other item can."""
    if "::" in (task.unit[1] or ""):
        return False
    if not isinstance(task.home, Frame):
        return True
    beginnings = [step for step in task.home.body.steps if not step.needs]
    return beginnings == [task.step] and task.step.id.count("/") == 1


def _is_news(said: ev.ApprovalGiven, known: UnitState) -> bool:
    """Whether an answer was not acted on before, and nobody has said something else since.

    Who had seen all that happened to the step answers that, whatever the clocks say; else the times must tell.
    """
    if said.seen and said.seen >= max(known.started_seq, known.verdict.seq if known.verdict else 0):
        return True
    last = max((at for at in (known.finished_at, known.verdict and known.verdict.at) if at), default=None)
    return last is None or said.at > last


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """What a parked unit waits for."""

    cause: PauseCause
    why: str
    until: datetime | None = None
    aside: bool = False  # whatever else there is where it stands goes on without it
    waiting: tuple[str, ...] = ()  # `approve` steps without an answer
    hooks: tuple[str, ...] = ()  # parked steps that clean up or come last


class Admission:
    """Holds back tasks of one invocation."""

    def __init__(self, desk: Desk, running: Running) -> None:
        self._desk = desk
        self._running = running
        self._gates: dict[str, Throttle] = {}
        self._queues: dict[str, list[Task]] = {}  # those for whom the gate is open, and too narrow
        self._rejected: dict[Unit, Task] = {}  # of the pipeline itself: they can be taken up again
        self._anew: list[Unit] = []  # what had failed, was answered again and has to wait for the next life
        self._news = False  # something happened while a person was being asked
        self._parked: dict[Unit, tuple[Task, Blocked]] = {}
        self.questions: dict[Unit, Task] = {}  # those of them that wait for an answer
        self._stopped: set[str] = set()  # steps whose attempts are being stopped
        self.allowances = StepBudgets(desk.job.pipeline, desk.recorder, running)
        self._approves = desk.job.pipeline.has_approvals
        self.idle = not self._approves and not self.allowances.any  # nothing can be held

    def restore(self) -> None:
        """Count what earlier lives have spent and how often they were refused; close the gates that they found closed."""
        self.allowances.restore()
        desk, now, at = self._desk, self._desk.clock.monotonic(), self._desk.clock.now()
        for (step, _), known in desk.state.units.items():
            if known.refusals and known.status == "failed" and known.retry_at is not None and desk.job.wait != "no":
                left = remaining(known.retry_in or 0.0, (known.retry_at - at).total_seconds())
                gate = self._gate(step)
                if left > 0:
                    if not gate.is_closed(now):
                        desk.recorder.warn(f"{step} waits {amount('time', left)} more: {known.reason}")
                    gate.refuse(now, left, at + timedelta(seconds=left), 1)
                gate.refusals = max(gate.refusals, known.refusals)  # also if the wait is over: they are in a row
                gate.name = known.reason or gate.name

    def _gate(self, step: str) -> Throttle:
        self.idle = False
        return self._gates.setdefault(step, Throttle())

    def holds(self, task: Task) -> bool:
        """Whether a task may not start now; if so it is seen to that it comes back, or that the run pauses."""
        if isinstance(task.step.action, Approve) and not self._is_answered(task):
            self.questions[task.unit] = task
            self._park(task, Blocked(cause="approval", why=f"{name(task.unit)} waits for approval", aside=True))
            return True
        spent = self.allowances.why_not(task.unit)
        if spent:
            self._park(task, Blocked(cause="budget", why=spent.why, aside=spent.of_item))
            return True
        gate = self._gates.get(task.step.id)
        return gate is not None and self._waits(task, gate)

    def _is_answered(self, task: Task) -> bool:
        """Whether a person has answered, and about what there is now: not about what was made anew since."""
        self.read_letters()  # the last word before it starts is the one that counts
        state = self._desk.state
        verdict = state.unit(task.unit).verdict
        if verdict is None:
            return False
        needs = [state.unit((need, task.unit[1])) for need in task.step.needs]
        if any(need.changed_seq > verdict.seq and need.completions > 1 for need in needs):
            self._desk.past.invalidate(task.unit, "what was asked about has changed since")
            return False
        return True

    def _under_way(self, step: str, since: float = float("-inf")) -> int:
        """How many attempts of a step are, of those that began since."""
        running = self._running.values()
        return sum(task.step.id == step and not task.controls and began >= since for task, _, began in running)

    def _waits(self, task: Task, gate: Throttle) -> bool:
        now = self._desk.clock.monotonic()
        if now < gate.opens:
            longest = float("inf") if self._desk.job.wait == "yes" else task.step.rate_limit.pause_after
            if gate.opens - now > longest:
                aside = task.unit[1] is not None and not _begins_an_item(task)
                why = f"{gate.name} of {task.step.id}"
                self._park(task, Blocked(cause="quota", why=why, until=gate.opens_at, aside=aside))
            else:
                self._desk.turns.wait(task, gate.turn(self._desk.tools.dice()))
            return True
        if task.controls:
            return False
        if self._under_way(task.step.id, gate.opens) >= gate.allowed:
            self._queues.setdefault(task.step.id, []).append(task)
            return True
        due = gate.wait_for_pace(now)
        if due is not None:
            self._desk.turns.wait(task, due)
            return True
        gate.start(now, self._desk.tools.dice())
        return False

    def _park(self, task: Task, held: Blocked) -> None:
        self._parked[task.unit] = (task, held)
        if held.aside:
            task.home.set_aside(task)

    def _take_back(self, unit: Unit) -> Task:
        task, held = self._parked.pop(unit)
        if held.aside:
            task.home.take_back(task)
        return task

    @property
    def expects_letters(self) -> bool:
        """Whether something stands open, or may be taken back, that people elsewhere can answer."""
        return bool(self.questions or self._rejected)

    # What becomes of attempts

    def rejected(self, task: Task) -> None:
        """A person has said no. As long as anything else runs, that can be taken back."""
        if isinstance(task.home, Frame) and task.home.owner is None:
            self._rejected[task.unit] = task

    def refusals(self, task: Task, known: UnitState) -> int:
        """How often in a row nothing of a step got through."""
        gate = self._gates.get(task.step.id)
        if gate is None:
            return known.refusals
        return gate.refusals - gate.is_closed(self._desk.clock.monotonic())

    def refused(self, task: Task, decision: RetryDecision) -> None:
        """An attempt was refused: all others of its step slow down with it."""
        assert decision.delay is not None
        assert decision.limit is not None
        gate, desk = self._gate(task.step.id), self._desk
        gate.name = decision.limit.name
        at = desk.clock.now() + timedelta(seconds=decision.delay)
        gate.refuse(desk.clock.monotonic(), decision.delay, at, self._under_way(task.step.id) + 1)
        desk.turns.ready(task)

    def ended(self, task: Task, outcome: Outcome) -> None:
        """An attempt ended: it has used something up, and others of its step may have their turn."""
        for spent in self.allowances.took(task.unit, outcome.metrics, 0.0 if task.controls else outcome.duration):
            self._stop(spent)
        step = task.step.id
        gate = self._gates.get(step)
        if gate is None:
            return
        if outcome.status == "ok" and not task.controls:
            self.got_through(step)
        for waiting in self._queues.pop(step, ()):
            self._desk.turns.next(waiting)

    def got_through(self, step: str) -> None:
        """The service did not refuse an attempt, whatever became of it."""
        gate, now = self._gates.get(step), self._desk.clock.monotonic()
        if gate is not None:
            gate.let_through(now)
            if gate.is_over and not gate.is_closed(now):
                del self._gates[step]

    def overspent(self, task: Task) -> bool:
        """Whether it was cut off because its own budget is spent: then it is parked, not lost."""
        return any(task.step.id == step or task.step.id.startswith(step + "/") for step in self._stopped)

    def _stop(self, step: str) -> None:
        self._stopped.add(step)
        self._desk.tools.executor.stop(STOP_GRACE, spare=_AllBut(step))

    def mind_clock(self) -> None:
        """A machine that slept, or whose clock was set, need not wait for what is over."""
        now, at = self._desk.clock.monotonic(), self._desk.clock.now()
        for step, gate in self._gates.items():
            if gate.put_forward(now, at):
                self._desk.turns.hurry(step, now)
        self.wake()

    def mind_budgets(self) -> None:
        """Stop what spends more than its step may, where the budget says so."""
        for step in self.allowances.overdrawn():
            self._stop(step)

    def wake(self) -> bool:
        """Let what was parked until a time go on if that has come meanwhile; whether there was any."""
        now = self._desk.clock.monotonic()
        due = []
        for unit, (task, held) in self._parked.items():
            gate = self._gates.get(task.step.id)
            if held.cause == "quota" and (gate is None or not gate.is_closed(now)):
                due.append(unit)
        for unit in due:
            self._desk.turns.ready(self._take_back(unit))
        return bool(due)

    def forget_inside(self, controller: Unit) -> None:
        """A controller has come to its end, whatever waited inside it."""
        if self._parked:
            self.keep(lambda task: task.unit == controller or not is_inside(task.unit, controller))

    def keep(self, wanted: Callable[[Task], bool]) -> None:
        """Forget all tasks but these."""
        self._queues = {step: [task for task in queue if wanted(task)] for step, queue in self._queues.items()}
        self._parked = {unit: one for unit, one in self._parked.items() if wanted(one[0])}
        self.questions = {unit: task for unit, task in self.questions.items() if wanted(task)}

    # The end

    def read_letters(self) -> bool:
        """Take up what people elsewhere have answered; whether there was anything."""
        taken = False
        state = self._desk.state
        for said in self._desk.tools.letters() if self._approves else ():
            if said.item is not None and said.item not in state.inner:
                continue  # of an item that is done with
            known = state.unit(said.unit)
            if _is_news(said, known) and known.status in ("pending", "failed", "interrupted"):
                failed = known.status == "failed"
                self._answered(said.unit, said)
                if failed:
                    self._reopen(said.unit)
                taken = True
            elif known.verdict is None or said.at > known.verdict.at:
                late = "approval" if said.approved else "rejection"
                self._desk.recorder.warn(
                    f"{name(said.unit)}: the {late} by {said.by} came too late: it is {known.status}"
                )
        return taken

    def _reopen(self, unit: Unit) -> None:
        """What had failed was answered again."""
        task = self._rejected.pop(unit, None)
        if task is None or not (isinstance(task.home, Frame) and task.home.reopen(task)):
            self._anew.append(unit)  # nothing more comes of it in this life, unless what is around it goes on

    def _answered(self, unit: Unit, said: ev.ApprovalGiven) -> None:
        self._desk.recorder.stage(said)
        if unit in self._parked:
            self.questions.pop(unit, None)  # it may be its budget that it waits for
            self._desk.turns.next(self._take_back(unit))

    def ask(self, ask: Ask, is_urgent: Callable[[], bool]) -> bool:
        """Ask a person who is there; whether anything was answered, here or elsewhere, or is urgent."""
        asked = self._news = False

        def is_over() -> bool:
            self._news = self._news or self.read_letters() or self.wake() or is_urgent()
            return self._news or bool(self._desk.tools.signals.received)

        for task in list(self.questions.values()):
            step, item = task.unit
            if self._news or task.unit not in self.questions:
                continue
            answer = ask(name(task.unit), self._question(task), is_over)
            if answer.approved is None:
                continue
            asked = True
            at = self._desk.clock.now()
            said = ev.ApprovalGiven(
                at=at, step=step, item=item, approved=answer.approved, by=answer.by, reason=answer.reason
            )
            self._answered(task.unit, said)
        return asked or self._news

    def _question(self, task: Task) -> str:
        assert isinstance(task.step.action, Approve)
        try:
            text = str(render_value(task.step.action.message, self._desk.view.of(task)))
        except ExpressionError:
            text = task.step.action.message
        return self._desk.job.mask.text(text)

    def pause(self, hooks: Container[str]) -> Blocked | None:
        """What the run waits for when nothing else is left, if it is for something."""
        held = [self._held_now(task, one) for task, one in self._parked.values()]
        anew = [name(unit) for unit in self._anew if self._desk.state.unit(unit).verdict is not None]
        if anew and not held:
            return Blocked(cause="", why=f"{', '.join(anew)} was answered anew")
        if not held:
            return None
        cause = min((one.cause for one in held), key=_FIRST.index)
        times = [one.until for one in held if one.until is not None]
        reasons = list(dict.fromkeys(one.why for one in held))
        more = f" and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else ""
        return Blocked(
            cause=cause,
            why="; ".join(reasons[:SHOWN]) + more,
            until=min(times, default=None),
            waiting=tuple(map(name, self.questions)),
            hooks=tuple(name(unit) for unit in self._parked if unit[0] in hooks),
        )

    def closed(self) -> Blocked | None:
        """A service that is being waited for: who resumes a life that ends before then should know."""
        now = self._desk.clock.monotonic()
        gates = [(step, gate) for step, gate in self._gates.items() if gate.is_closed(now)]
        if not gates or self._desk.turns.empty:
            return None
        step, gate = min(gates, key=lambda one: one[1].opens)
        return Blocked(cause="quota", why=f"{gate.name} of {step}", until=gate.opens_at)

    def _held_now(self, task: Task, held: Blocked) -> Blocked:
        """With the sum as it is now: others went on spending."""
        why = self.allowances.why_not(task.unit).why if held.cause == "budget" else ""
        return msgspec.structs.replace(held, why=why) if why else held
