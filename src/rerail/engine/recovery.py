"""Recovery: apply the plan to a frame before it begins, and reopen units that earlier invocations left unfinished."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rerail.core import events as ev
from rerail.core.audit import Audit
from rerail.core.compaction import closed_iteration, past_loop
from rerail.core.events import Reason
from rerail.core.graph import topological
from rerail.core.hooks import in_doubt, pending_cleanup
from rerail.core.inflight import interrupted_event, last_seen
from rerail.core.model import Step
from rerail.core.plan import Decision, PlanOptions
from rerail.core.planner import StepGroup, StepIndex, decide_steps, has_failed, step_at, step_index
from rerail.core.retry import remaining
from rerail.core.state import RunState, UnitState
from rerail.core.unit_id import UnitId
from rerail.engine.frame import Frame
from rerail.engine.ready_queue import ReadyQueue, Task
from rerail.engine.recorder import Recorder
from rerail.engine.spec import RunSpec, attempt_name
from rerail.ports import Clock

FAILED_BEFORE = Reason("failed before", ev.Cause(kind="failed"))


class Recovery:
    """Applier of plans to frames."""

    def __init__(self, spec: RunSpec, recorder: Recorder, queue: ReadyQueue, clock: Clock) -> None:
        self._spec = spec
        self._recorder = recorder
        self._queue = queue
        self._clock = clock
        self._index: StepIndex | None = None  # built on demand
        self._had_failed: frozenset[UnitId] = frozenset()

    def apply_plan(self, root: Frame) -> None:
        """Settle, reopen or queue the steps of the pipeline itself as the plan says."""
        self._record_interrupted()
        if self._spec.restored:
            self._had_failed = frozenset(self._failed_controllers())
        for event in self._spec.restored:
            self._recorder.stage(event)
        self._settle_all(root, {decision.step: decision for decision in self._spec.plan.decisions})
        self._queue.in_doubt += in_doubt(self._spec.pipeline.finally_, self._recorder.state)
        self._begin(root)

    def open(self, frame: Frame) -> None:
        """Open a frame inside a controller: a new one, or one that was interrupted anywhere."""
        state = self._recorder.state
        if not any(state.units.get(UnitId(step.id, frame.item)) for step in frame.body.steps):
            frame.begin_new()
            return
        planned = StepGroup(steps=frame.body.steps, env=frame.body.env, index=self._steps(), item=frame.item)
        self._settle_all(frame, decide_steps(planned, state, Audit(), PlanOptions(changes="keep")))
        self._begin(frame)

    def _steps(self) -> StepIndex:
        if self._index is None:
            self._index = step_index(self._spec.pipeline)
        return self._index

    def _failed_controllers(self) -> Iterator[UnitId]:
        """Return the controllers that have failed, recorded or not.

        An item that runs again because its files are lost hides a failure that is not recorded.
        """
        for unit, record in self._recorder.state.units.items():
            step = None if record.items is None else step_at(self._steps(), unit)
            if step is not None and has_failed(step, record):
                yield unit

    def _begin(self, frame: Frame) -> None:
        for task in frame.begin():
            self.enqueue(task)

    def _record_interrupted(self) -> None:
        """Record the attempts that were in flight when an earlier invocation ended as interrupted."""
        now, state, traces = self._clock.now(), self._recorder.state, self._spec.left_by
        seen = last_seen(state, lambda unit, attempt: traces(attempt_name(unit, attempt)))
        for unit, trace in seen.items():
            self._recorder.stage(interrupted_event(unit, state.unit(unit), trace, now))

    def _settle_all(self, frame: Frame, decisions: Mapping[str, Decision]) -> None:
        order: Iterable[str] = decisions
        if any(decision.kept or decision.decision == "skip" for decision in decisions.values()):
            # A settled step must come after its dependencies, wherever it is declared.
            order = topological(frame.body.needs)
        for step_id in order:
            self._settle(frame, frame.body.by_id[step_id], decisions[step_id])

    def _settle(self, frame: Frame, step: Step, decision: Decision) -> None:
        unit = UnitId(step.id, frame.item)
        record = self._recorder.state.unit(unit)
        reused = decision.kept
        if reused:
            frame.reuse(step.id, record)
        elif decision.decision == "skip" and not decision.is_requested_skip:  # with all that it depends on
            self._recorder.stage(
                ev.StepSkipped(at=self._clock.now(), step=step.id, item=frame.item, reason=decision.reason)
            )
            frame.reuse(step.id, self._recorder.state.unit(unit))
        else:
            frame.expect(step.id, in_doubt=decision.decision == "in-doubt", of=_in_doubt_inside(decision))
        self._finish_clean_up(frame, step, hold=not reused)
        if decision.decision == "continue":
            if has_failed(step, record) or unit in self._had_failed:
                self._reopen_dead(unit)  # before reopening hides that it has failed
            self._go_on(unit, decision)
            return
        again = decision.decision in ("run", "rerun", "later") and not decision.unless_unchanged
        again = again or decision.is_requested_skip
        if again and (record.status in ("completed", "skipped") or record.items is not None):
            # If an artifact is broken, restoring has recorded it already.
            self.invalidate(unit, decision.why)
        elif again and record.settled:
            # An allowed failure keeps its record until the step runs again, because the rest of its clean-up depends
            # on it. It counts as settled, so its frame has to be told that it runs again all the same.
            frame.require(step.id, decision.why)

    def _go_on(self, unit: UnitId, decision: Decision) -> None:
        """Reopen the units inside a controller that run again, and everything around them."""
        state, reason = self._recorder.state, decision.why
        again = [inner.unit for inner in decision.inner if inner.decision == "rerun"]
        again += [letter for letter in self._spec.execute.retry if letter in state.units and letter.is_within(unit)]
        for inner in again:
            if inner in state.units and state.units[inner].status in ("completed", "failed"):
                self.invalidate(inner, reason, reopened=True)
            outers = list(inner.ancestors())
            loop = past_loop(state, inner)
            if loop is not None:
                self.invalidate(loop, reason)  # later iterations depend on it
                outers = outers[outers.index(loop) + 1 :]
            for outer in outers:
                record, index = state.unit(outer), closed_iteration(state, outer)
                failed = record.status == "failed" and record.retry_at is None
                if failed:
                    self._reopen_dead(outer)
                if failed or record.status == "completed" or index is not None:
                    self.invalidate(outer, reason, reopened=True, index=index)
        if state.unit(unit).settled:
            self.invalidate(unit, reason, reopened=True)

    def _finish_clean_up(self, frame: Frame, step: Step, *, hold: bool) -> None:
        """Queue the rest of the clean-up of a failed step; with `hold`, before the next attempt of the step."""
        pending = pending_cleanup(step, self._recorder.state, frame.item)
        if not pending.hooks:
            return
        if hold:
            frame.hold(step, pending.hooks)
        if pending.in_doubt:
            frame.doubt(pending.in_doubt)
        else:
            self.rerun_hooks(frame.chain(pending.hooks))
            self.enqueue(frame.task(pending.hooks[0].id))

    def enqueue(self, task: Task) -> None:
        """Queue a task, after the rest of the wait before its retry if an earlier invocation began one."""
        record: UnitState = self._recorder.state.unit(task.unit)
        frame = task.parent
        assert isinstance(frame, Frame)
        wait = self.remaining_wait(record)
        if wait is None:
            frame.ready(task)
        else:
            frame.wait(task, self._clock.monotonic() + wait)

    def remaining_wait(self, record: UnitState) -> float | None:
        """Return the rest of the wait before a retry; None if there is none."""
        if record.status != "failed" or record.retry_at is None or record.retry_in is None or record.refusals:
            return None  # after a refusal the throttle of the step decides
        return remaining(record.retry_in, (record.retry_at - self._clock.now()).total_seconds())

    def invalidate(
        self,
        unit: UnitId,
        reason: Reason,
        quarantined: dict[str, str] | None = None,
        *,
        reopened: bool = False,
        index: int | None = None,
    ) -> None:
        """Discard the record of a unit; `quarantined` says where its broken artifacts were moved."""
        self._recorder.stage(
            ev.StepInvalidated(
                at=self._clock.now(),
                step=unit.step,
                item=unit.item,
                reason=reason.text,
                because=reason.cause,
                quarantined=quarantined or {},
                index=self._recorder.state.unit(unit).index if index is None else index,
                reopened=reopened,
            )
        )

    def rerun_hooks(self, hooks: Sequence[Task]) -> None:
        """Discard the records of hooks that run again, but for a retry that is due."""
        for hook in hooks:
            record = self._recorder.state.unit(hook.unit)
            if record.status not in ("pending", "running") and record.retry_at is None:
                self.invalidate(hook.unit, Reason("hooks run again", ev.Cause(kind="hook")))

    def reopen_failed(self, unit: UnitId) -> None:
        """Reopen a failed controller with its failed items, or those of them that are to be retried."""
        state = self._recorder.state
        self._reopen_dead(unit)
        if state.unit(unit).status == "failed" and state.unit(unit).retry_at is None:
            self.invalidate(unit, FAILED_BEFORE, reopened=True)

    def _reopen_dead(self, unit: UnitId) -> None:
        """Reopen the items of a map that failed permanently, or those of them that are to be retried."""
        for dead in list(dead_items(self._recorder.state, unit)):
            if not self._spec.execute.retry or dead in self._spec.execute.retry:
                self.invalidate(dead, FAILED_BEFORE, reopened=True)


def _in_doubt_inside(decision: Decision) -> list[str]:
    """Return the units in doubt inside a controller."""
    return [str(one.unit) for one in decision.inner if one.decision == "in-doubt"]


def dead_items(state: RunState, controller: UnitId) -> Iterator[UnitId]:
    """Return the items of a map that failed permanently."""
    for unit, record in state.units.items():
        mine = record.index is not None and unit.is_item_of(controller)
        if mine and record.status == "failed" and record.retry_at is None and not record.allowed:
            yield unit
