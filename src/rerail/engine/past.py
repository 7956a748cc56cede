"""What earlier lives left, put in order before the loop begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rerail.core import events as ev
from rerail.core.graph import topological
from rerail.core.hooks import clean_up, unknown
from rerail.core.model import Step
from rerail.core.plan import Decision
from rerail.core.retry import remaining
from rerail.core.state import UnitState
from rerail.engine.job import Job
from rerail.engine.recorder import Recorder
from rerail.engine.schedule import Schedule
from rerail.ports import Clock


class Past:
    """Settles what was decided about it and makes ready what can start."""

    def __init__(self, job: Job, recorder: Recorder, schedule: Schedule, clock: Clock) -> None:
        self._job = job
        self._recorder = recorder
        self._schedule = schedule
        self._clock = clock

    def settle(self) -> None:
        self._end_cut_off()
        for event in self._job.mended:
            self._recorder.stage(event)
        decisions = {decision.step: decision for decision in self._job.plan.decisions}
        order: Iterable[str] = decisions
        if any(decision.kept or decision.decision == "skip" for decision in decisions.values()):
            # What is settled already must come after what it needs, wherever it is declared.
            order = topological({step.id: step.needs for step in self._job.pipeline.steps})
        for step_id in order:
            self._settle(self._schedule.steps[step_id], decisions[step_id])
        self._schedule.asked += unknown(self._job.pipeline.finally_, self._recorder.state)
        for step_id in self._schedule.begin():
            self._make_ready(step_id)

    def _end_cut_off(self) -> None:
        """Attempts that were running when their life ended."""
        now = self._clock.now()
        for (step, item), unit in self._recorder.state.units.items():
            if unit.status == "running":
                spent = self._job.mask.value(self._job.left_by(f"{step}.{unit.attempts}"))
                self._recorder.stage(
                    ev.StepInterrupted(at=now, step=step, item=item, attempt=unit.attempts, reason="crash", metrics=spent)
                )

    def _settle(self, step: Step, decision: Decision) -> None:
        unit = self._recorder.state.unit((step.id, None))
        reused = decision.kept
        if reused:
            self._schedule.reuse(step.id, unit)
        elif decision.decision == "skip":
            self._recorder.stage(ev.StepSkipped(at=self._clock.now(), step=step.id, reason=decision.reason))
            self._schedule.reuse(step.id, self._recorder.state.unit((step.id, None)))
        else:
            self._schedule.expect(step.id, ask=decision.decision == "ask")
        self._finish_clean_up(step, hold=not reused)
        again = decision.decision in ("run", "rerun", "later") and not decision.unless_same
        if again and unit.status in ("completed", "skipped"):  # with flaws, mending has recorded it already
            # What failed keeps its record until it runs again: what is left of its clean-up depends on it.
            invalidate(self._recorder, self._clock, step.id, decision.reason)

    def _finish_clean_up(self, step: Step, *, hold: bool) -> None:
        """What cleans up after a failure is finished; before the step's next attempt, if there is to be one."""
        left = clean_up(step, self._recorder.state)
        if not left.hooks:
            return
        if hold:
            self._schedule.hold(step, left.hooks)
        if left.ask:
            self._schedule.asked.append(left.ask)
        else:
            start_anew(self._recorder, self._clock, self._schedule.chain(left.hooks))
            self._make_ready(left.hooks[0].id)

    def _make_ready(self, step_id: str) -> None:
        """Ready now, or when the wait is over that an earlier life had begun before a retry."""
        unit: UnitState = self._recorder.state.unit((step_id, None))
        if unit.status == "failed" and unit.retry_at is not None and unit.retry_in is not None:
            wait = remaining(unit.retry_in, (unit.retry_at - self._clock.now()).total_seconds())
            self._schedule.wait(step_id, self._clock.monotonic() + wait)
        else:
            self._schedule.ready(step_id)


def invalidate(recorder: Recorder, clock: Clock, step_id: str, reason: str, aside: dict[str, str] | None = None) -> None:
    """What is recorded of a step no longer counts; what stood at its broken paths was moved aside."""
    recorder.stage(ev.StepInvalidated(at=clock.now(), step=step_id, reason=reason, aside=aside or {}))


def start_anew(recorder: Recorder, clock: Clock, hooks: Sequence[Step]) -> None:
    """Hooks run anew each time: what an earlier turn recorded of them no longer counts, but for a retry that is due."""
    for hook in hooks:
        unit = recorder.state.unit((hook.id, None))
        if unit.status not in ("pending", "running") and unit.retry_at is None:
            invalidate(recorder, clock, hook.id, "its turn has come again")
