"""Approvals: questions of `approve` steps, and the answers of people at the terminal or elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from rerail.core import events as ev
from rerail.core.events import Cause, Reason
from rerail.core.expressions.language import ExpressionError, render_value
from rerail.core.model import Approve
from rerail.core.state import UnitState
from rerail.core.unit_id import UnitId
from rerail.engine.frame import Frame
from rerail.engine.ready_queue import Task
from rerail.engine.recorder import Recorder
from rerail.engine.recovery import Recovery
from rerail.engine.scopes import ScopeBuilder
from rerail.engine.spec import Ask, RunSpec, Toolbox


def _is_newer(approval: ev.ApprovalGiven, record: UnitState) -> bool:
    """Return whether an answer was not acted on before and no other answer came after it.

    An answer given in view of the latest start and answer of the step is newer, whatever the clocks say; otherwise
    the times decide.
    """
    if approval.seen and approval.seen >= max(record.started_seq, record.approval.seq if record.approval else 0):
        return True
    last = max((at for at in (record.finished_at, record.approval and record.approval.at) if at), default=None)
    return last is None or approval.at > last


class Approvals:
    """Open questions of one invocation."""

    def __init__(
        self, spec: RunSpec, tools: Toolbox, recorder: Recorder, recovery: Recovery, scopes: ScopeBuilder
    ) -> None:
        self.any = spec.pipeline.has_approvals
        self.questions: dict[UnitId, Task] = {}  # blocked tasks without an answer
        self.on_answer: Callable[[UnitId], None] = lambda _unit: None
        self._rejected: dict[UnitId, Task] = {}  # steps of the pipeline itself, whose rejection can be taken back
        self._reopened: list[UnitId] = []  # failed units with a new answer, left to the next invocation
        self._mask = spec.mask
        self._messages = tools.take_messages
        self._signals = tools.signals
        self._clock = tools.clock
        self._recorder = recorder
        self._state = recorder.state
        self._recovery = recovery
        self._scopes = scopes

    @property
    def expects_messages(self) -> bool:
        """Whether a question is open, or a rejection may be taken back, by people elsewhere."""
        return bool(self.questions or self._rejected)

    @property
    def reopened(self) -> list[str]:
        """Names of the failed units whose new answer the next invocation acts on."""
        return [str(unit) for unit in self._reopened if self._state.unit(unit).approval is not None]

    def is_answered(self, task: Task) -> bool:
        """Return whether the question of a task has an answer, given since the step it asks about last changed."""
        self.take_messages()  # the last answer before the start counts
        approval = self._state.unit(task.unit).approval
        if approval is None:
            return False
        needs = ((need, self._state.unit(UnitId(need, task.unit.item))) for need in task.step.needs)
        changed = next((need for need, at in needs if at.changed_seq > approval.seq and at.completions > 1), None)
        if changed is not None:
            cause = Cause(kind="result-changed", step=changed, item=task.unit.item)
            self._recovery.invalidate(task.unit, Reason(f"result of {changed} changed since the answer", cause))
            return False
        return True

    def reject(self, task: Task) -> None:
        """Remember a rejected step: as long as anything else runs, the rejection can be taken back."""
        if isinstance(task.parent, Frame) and task.parent.owner is None:
            self._rejected[task.unit] = task

    def keep(self, wanted: Callable[[Task], bool]) -> None:
        """Drop all questions but those of the wanted tasks."""
        self.questions = {unit: task for unit, task in self.questions.items() if wanted(task)}

    def take_messages(self) -> bool:
        """Record the answers that people elsewhere have given; return whether there were any."""
        taken = False
        for approval in self._messages() if self.any else ():
            if approval.item is not None and approval.item not in self._state.inner:
                continue  # the item is done
            record = self._state.unit(approval.unit)
            if _is_newer(approval, record) and record.status in ("pending", "failed", "interrupted"):
                failed = record.status == "failed"
                self._record(approval)
                if failed:
                    self._reopen(approval.unit)
                taken = True
            elif record.approval is None or approval.at > record.approval.at:
                late = "approval" if approval.approved else "rejection"
                self._recorder.warn(f"{approval.unit}: the {late} by {approval.by} came too late: it is {record.status}")
        return taken

    def prompt(self, ask: Ask, is_urgent: Callable[[], bool]) -> bool:
        """Ask the person at the terminal; return whether an answer came, here or elsewhere, or something is urgent."""
        answered = interrupted = False

        def is_over() -> bool:
            nonlocal interrupted
            interrupted = interrupted or self.take_messages() or is_urgent()
            return interrupted or bool(self._signals.received)

        for task in list(self.questions.values()):
            if interrupted or task.unit not in self.questions:
                continue
            answer = ask(str(task.unit), self._question(task), is_over)
            if answer.approved is None:
                continue
            answered = True
            step, item = task.unit
            self._record(
                ev.ApprovalGiven(
                    at=self._clock.now(),
                    step=step,
                    item=item,
                    approved=answer.approved,
                    by=answer.by,
                    reason=answer.reason,
                )
            )
        return answered or interrupted

    def _record(self, approval: ev.ApprovalGiven) -> None:
        self._recorder.stage(approval)
        self.on_answer(approval.unit)

    def _reopen(self, unit: UnitId) -> None:
        task = self._rejected.pop(unit, None)
        if task is None or not (isinstance(task.parent, Frame) and task.parent.reopen(task)):
            self._reopened.append(unit)  # it does not run in this invocation, unless what is around it goes on

    def _question(self, task: Task) -> str:
        assert isinstance(task.step.action, Approve)
        try:
            text = str(render_value(task.step.action.message, self._scopes.of(task)))
        except ExpressionError:
            text = task.step.action.message
        return self._mask.text(text)
