"""What earlier lives left, put in order before a frame begins: the pipeline's, and each one inside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rerail.core import events as ev
from rerail.core.audit import Audit
from rerail.core.compaction import closed_iteration, past_loop
from rerail.core.graph import topological
from rerail.core.hooks import pending_cleanup, unknown
from rerail.core.inflight import interrupted_event, last_seen
from rerail.core.items import around, is_inside, parent_of
from rerail.core.model import Step
from rerail.core.plan import Decision, PlanOptions
from rerail.core.planner import StepGroup, StepIndex, decide_steps, has_failed, step_index
from rerail.core.retry import remaining
from rerail.core.state import RunState, Unit, UnitState, name
from rerail.engine.frame import Frame
from rerail.engine.ready_queue import ReadyQueue, Task
from rerail.engine.recorder import Recorder
from rerail.engine.spec import RunSpec, attempt_name
from rerail.ports import Clock


class Recovery:
    """Settles what was decided about it and makes ready what can start."""

    def __init__(self, job: RunSpec, recorder: Recorder, turns: ReadyQueue, clock: Clock) -> None:
        self._job = job
        self._recorder = recorder
        self._turns = turns
        self._clock = clock
        self._index: StepIndex | None = None  # made when it is needed

    def settle(self, root: Frame) -> None:
        """The pipeline's own steps, as the plan says."""
        self._end_cut_off()
        for event in self._job.mended:
            self._recorder.stage(event)
        self._settle_all(root, {decision.step: decision for decision in self._job.plan.decisions})
        self._turns.asked += unknown(self._job.pipeline.finally_, self._recorder.state)
        self._begin(root)

    def open(self, frame: Frame) -> None:
        """A frame inside a controller: nothing may have happened in it yet, or it may have been cut off anywhere."""
        state = self._recorder.state
        if not any(state.units.get((step.id, frame.item)) for step in frame.body.steps):
            frame.begin_new()
            return
        if self._index is None:
            self._index = step_index(self._job.pipeline)
        planned = StepGroup(steps=frame.body.steps, env=frame.body.env, index=self._index, item=frame.item)
        self._settle_all(frame, decide_steps(planned, state, Audit(), PlanOptions(changes="keep")))
        self._begin(frame)

    def _begin(self, frame: Frame) -> None:
        for task in frame.begin():
            self.make_ready(task)

    def _end_cut_off(self) -> None:
        """Attempts that were running when their life ended."""
        now, state, left_by = self._clock.now(), self._recorder.state, self._job.left_by
        seen = last_seen(state, lambda unit, attempt: left_by(attempt_name(unit, attempt)))
        for unit, far in seen.items():
            self._recorder.stage(interrupted_event(unit, state.unit(unit), far, now))

    def _settle_all(self, frame: Frame, decisions: Mapping[str, Decision]) -> None:
        order: Iterable[str] = decisions
        if any(decision.kept or decision.decision == "skip" for decision in decisions.values()):
            # What is settled already must come after what it needs, wherever it is declared.
            order = topological(frame.body.needs)
        for step_id in order:
            self._settle(frame, frame.body.by_id[step_id], decisions[step_id])

    def _settle(self, frame: Frame, step: Step, decision: Decision) -> None:
        unit = (step.id, frame.item)
        known = self._recorder.state.unit(unit)
        reused = decision.kept
        if reused:
            frame.reuse(step.id, known)
        elif decision.decision == "skip":
            self._recorder.stage(
                ev.StepSkipped(at=self._clock.now(), step=step.id, item=frame.item, reason=decision.reason)
            )
            frame.reuse(step.id, self._recorder.state.unit(unit))
        else:
            frame.expect(step.id, ask=decision.decision == "ask", of=_asked_inside(decision))
        self._finish_clean_up(frame, step, hold=not reused)
        if decision.decision == "continue":
            if has_failed(step, known):
                self._reopen_dead(unit)  # before reopening hides that it has failed
            self._go_on(unit, decision)
            return
        again = decision.decision in ("run", "rerun", "later") and not decision.unless_same
        if again and (known.status in ("completed", "skipped") or known.items is not None):
            # With flaws, mending has recorded it already.
            self.invalidate(unit, decision.reason)
        elif again and known.settled:
            # A failure that was allowed keeps its record until the step runs again: what is left of its clean-up
            # depends on it. That it counts as settled must not save it, whatever becomes of what it needs.
            frame.require(step.id, decision.reason)

    def _go_on(self, unit: Unit, decision: Decision) -> None:
        """A controller goes on: what is to run again inside it is reopened, and so is everything around that."""
        state = self._recorder.state
        again = [one.unit for one in decision.inner if one.decision == "rerun"]
        again += [one for one in self._job.retry if one in state.units and is_inside(one, unit)]
        for inner in again:
            if inner in state.units and state.units[inner].status in ("completed", "failed"):
                self.invalidate(inner, decision.reason, reopened=True)
            outers = [outer for outer in dict.fromkeys(around(inner)) if outer != inner]
            past = past_loop(state, inner)
            if past is not None:
                self.invalidate(past, decision.reason)  # all that came after stands on it
                outers = outers[outers.index(past) + 1 :]
            for outer in outers:
                known, index = state.unit(outer), closed_iteration(state, outer)
                failed = known.status == "failed" and known.retry_at is None
                if failed:
                    self._reopen_dead(outer)
                if failed or known.status == "completed" or index is not None:
                    self.invalidate(outer, decision.reason, reopened=True, index=index)
        if state.unit(unit).settled:
            self.invalidate(unit, decision.reason, reopened=True)

    def _finish_clean_up(self, frame: Frame, step: Step, *, hold: bool) -> None:
        """What cleans up after a failure is finished; before the step's next attempt, if there is to be one."""
        left = pending_cleanup(step, self._recorder.state, frame.item)
        if not left.hooks:
            return
        if hold:
            frame.hold(step, left.hooks)
        if left.ask:
            frame.ask(left.ask)
        else:
            self.start_anew(frame.chain(left.hooks))
            self.make_ready(frame.task(left.hooks[0].id))

    def make_ready(self, task: Task) -> None:
        """Ready now, or when the wait is over that an earlier life had begun before a retry."""
        known: UnitState = self._recorder.state.unit(task.unit)
        frame = task.home
        assert isinstance(frame, Frame)
        wait = self.left_to_wait(known)
        if wait is None:
            frame.ready(task)
        else:
            frame.wait(task, self._clock.monotonic() + wait)

    def left_to_wait(self, known: UnitState) -> float | None:
        """What is left of the wait before a retry; None if there is none."""
        if known.status != "failed" or known.retry_at is None or known.retry_in is None or known.refusals:
            return None  # who was refused is held by the gate of the step
        return remaining(known.retry_in, (known.retry_at - self._clock.now()).total_seconds())

    def invalidate(
        self,
        unit: Unit,
        reason: str,
        aside: dict[str, str] | None = None,
        *,
        reopened: bool = False,
        index: int | None = None,
    ) -> None:
        """What is recorded of a unit no longer counts; what stood at its broken paths was moved aside."""
        self._recorder.stage(
            ev.StepInvalidated(
                at=self._clock.now(),
                step=unit[0],
                item=unit[1],
                reason=reason,
                aside=aside or {},
                index=self._recorder.state.unit(unit).index if index is None else index,
                reopened=reopened,
            )
        )

    def start_anew(self, hooks: Sequence[Task]) -> None:
        """Hooks run anew each time: what is recorded of an earlier turn counts no more, but for a retry that is due."""
        for hook in hooks:
            known = self._recorder.state.unit(hook.unit)
            if known.status not in ("pending", "running") and known.retry_at is None:
                self.invalidate(hook.unit, "its turn has come again")

    def reopen_failed(self, unit: Unit) -> None:
        """A controller that failed is tried again: so are the items that failed in it, or those that were asked for."""
        state = self._recorder.state
        self._reopen_dead(unit)
        if state.unit(unit).status == "failed" and state.unit(unit).retry_at is None:
            self.invalidate(unit, "it had failed", reopened=True)

    def _reopen_dead(self, unit: Unit) -> None:
        """The items of a map that failed permanently are tried again, or those of them that were asked for."""
        for dead in list(dead_items(self._recorder.state, unit)):
            if not self._job.retry or dead in self._job.retry:
                self.invalidate(dead, "it had failed", reopened=True)


def _asked_inside(decision: Decision) -> list[str]:
    """The units that a person has to judge before a controller goes on."""
    return [name(one.unit) for one in decision.inner if one.decision == "ask"]


def dead_items(state: RunState, controller: Unit) -> Iterator[Unit]:
    """The items of a map that failed for good."""
    step, item = controller
    for unit, known in state.units.items():
        mine = unit[0] == step and unit[1] is not None and known.index is not None and parent_of(unit[1]) == item
        if mine and known.status == "failed" and known.retry_at is None and not known.allowed:
            yield unit
