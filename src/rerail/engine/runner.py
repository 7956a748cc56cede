"""The loop: start what is ready, wait, record what happened, until nothing is left.

A new run is a resume from nothing: there is no other path.

One batch is one write and one sync: all outcomes that have arrived, with the starts they release. Work is launched
only after its start is durable, and acknowledged only after its outcome is.
"""

from __future__ import annotations

import heapq
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Literal

import msgspec

from rerail.core import events as ev
from rerail.core.fingerprint import fingerprint
from rerail.core.graph import Frontier, topological
from rerail.core.model import Step
from rerail.core.plan import lineage_of, stale
from rerail.core.retry import decide, remaining
from rerail.core.state import RunState, UnitState
from rerail.core.template import ExpressionError, evaluate
from rerail.engine.attempts import Job, attempt_of, failure_of, scope_of
from rerail.engine.recorder import Recorder
from rerail.engine.signals import Signals
from rerail.errors import StateUnwritable
from rerail.ports import Clock, Executor, Kind, Outcome

STOP_GRACE = 5.0


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """What it is driven with."""

    executor: Executor
    kinds: Mapping[type, Kind]
    clock: Clock
    dice: Callable[[], float]  # uniform in [0, 1)
    signals: Signals


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How this life of the run ended."""

    status: Literal["completed", "failed", "interrupted", "paused"]
    reason: str = ""
    signal: signal.Signals | None = None
    lost: StateUnwritable | None = None  # the journal could not be written
    unrecorded: tuple[str, ...] = ()  # steps whose end could not be recorded


class Runner:
    """Drives one run through one life of this process."""

    def __init__(self, job: Job, tools: Tools, recorder: Recorder) -> None:
        self._job = job
        self._executor = tools.executor
        self._tools = tools
        self._clock = tools.clock
        self._recorder = recorder
        self._state: RunState = recorder.state
        self._steps = {step.id: step for step in job.pipeline.steps}
        self._needs = {step.id: step.needs for step in job.pipeline.steps}
        self._frontier = Frontier(self._needs)
        self._lineage: dict[str, int] = {}
        self._ready: deque[str] = deque()
        self._waiting: list[tuple[float, str]] = []  # retries, by the monotonic time they are due
        self._running: dict[str, int] = {}  # step → attempt number
        self._unstartable: list[Outcome] = []
        self._asked: list[str] = []  # steps a person has to judge first
        self._unfinished = 0
        self._stop_reason = ""  # why nothing new may start
        self._stop_signal: signal.Signals | None = None
        self._last_interval = self._clock.monotonic()

    def drive(self, opening: ev.RunStarted | ev.RunResumed) -> End:
        """Run to the end of this life. What happened is recorded before this returns, if it can be."""
        self._recorder.stage(opening)
        self._settle_past()
        starts: list[Step] = []
        while True:
            self._fill(starts)
            if self._flush(starts):
                self._launch(starts)
            starts.clear()
            if not self._running and (self._stop_reason or not (self._waiting or self._ready)):
                break
            self._recorder.snapshot_if_due()
            self._collect()
        return self._finish()

    # What earlier lives left

    def _settle_past(self) -> None:
        now = self._clock.now()
        for (step, item), unit in self._state.units.items():
            if unit.status == "running":
                self._recorder.stage(
                    ev.StepInterrupted(at=now, step=step, item=item, attempt=unit.attempts, reason="crash")
                )
        decisions = {decision.step: decision for decision in self._job.plan.decisions}
        for step_id in topological(self._needs):
            decision = decisions[step_id]
            unit = self._state.unit((step_id, None))
            if decision.decision == "reuse":
                self._lineage[step_id] = lineage_of(self._steps[step_id], unit, self._lineage)
                self._frontier.settle(step_id)
                continue
            self._unfinished += 1
            if decision.decision == "ask":
                self._asked.append(step_id)
            elif not decision.unless_same and _has_ended(unit):
                self._recorder.stage(ev.StepInvalidated(at=now, step=step_id, reason=decision.reason))
        reused = set(self._lineage)
        blocked = set(self._asked)
        self._ready.extend(step for step in self._frontier.ready() if step not in reused and step not in blocked)

    # Starting

    def _fill(self, starts: list[Step]) -> None:
        """Stage the start of whatever is ready while there is room."""
        if self._stop_reason:
            return
        now = self._clock.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            self._ready.appendleft(heapq.heappop(self._waiting)[1])
        while self._ready and len(self._running) < self._job.options.parallel:
            step = self._steps[self._ready.popleft()]
            unit = self._state.unit((step.id, None))
            if unit.settled:
                changed = stale(step, unit, self._lineage)
                if changed is None:
                    self._recorder.warn(f"{step.id}: kept, what it needs came out the same")
                    self._settle(step)
                    continue
                reason = f"{changed} produced something different"
                self._recorder.stage(ev.StepInvalidated(at=self._clock.now(), step=step.id, reason=reason))
            elif self._must_wait(step, unit) or self._skipped(step):
                continue
            number = unit.attempts + 1
            self._recorder.stage(ev.StepStarted(at=self._clock.now(), step=step.id, attempt=number))
            self._running[step.id] = number
            starts.append(step)

    def _skipped(self, step: Step) -> bool:
        """Settle a step whose `when` does not hold. One that has no value is left to fail as an attempt."""
        if not step.when:
            return False
        try:
            if evaluate(step.when, scope_of(self._job, self._state)):
                return False
        except ExpressionError:
            return False
        reason = f"`when: {step.when}` does not hold"
        if self._state.unit((step.id, None)).status != "pending":
            self._recorder.stage(ev.StepInvalidated(at=self._clock.now(), step=step.id, reason=reason))
        self._recorder.stage(ev.StepSkipped(at=self._clock.now(), step=step.id, reason=reason))
        self._settle(step)
        return True

    def _must_wait(self, step: Step, unit: UnitState) -> bool:
        """A retry that an earlier life had put off is still put off."""
        if unit.status != "failed" or unit.retry_at is None or unit.retry_in is None:
            return False
        wait = remaining(unit.retry_in, (unit.retry_at - self._clock.now()).total_seconds())
        if wait <= 0:
            return False
        heapq.heappush(self._waiting, (self._clock.monotonic() + wait, step.id))
        return True

    def _flush(self, starts: Sequence[Step]) -> bool:
        """Make the batch durable. False: it is not, and nothing of it may be launched."""
        try:
            self._recorder.flush()
        except StateUnwritable as error:
            if self._job.pipeline.checkpoint.on_error == "stop":
                self._stop_starting(error.message)
                for step in starts:
                    self._unlaunch(step, "it was never launched: its start could not be recorded")
                return False
            self._recorder.warn(f"{error.message}; going on without a record, as `checkpoint.on_error: warn` asks")
        if self._recorder.degraded and not self._stop_reason:
            self._stop_starting(self._recorder.degraded)
            for step in starts:
                self._unlaunch(step, f"it was never launched: {self._recorder.degraded}")
            return False
        return True

    def _unlaunch(self, step: Step, reason: str) -> None:
        del self._running[step.id]
        self._recorder.stage(ev.StepInvalidated(at=self._clock.now(), step=step.id, reason=reason))

    def _launch(self, starts: Sequence[Step]) -> None:
        for step in starts:
            try:
                attempt = attempt_of(self._job, step, self._state, self._running[step.id])
                work = self._tools.kinds[type(step.action)].work(attempt)
            except ExpressionError as error:
                self._unstartable.append(_unstartable(step, "ExpressionError", str(error)))
            except (ValueError, KeyError, OSError) as error:
                self._unstartable.append(_unstartable(step, "CouldNotStart", f"could not start: {error}"))
            else:
                self._executor.start(attempt, work)

    # Waiting and recording

    def _collect(self) -> None:
        """Wait for something to happen and stage it."""
        outcomes = self._unstartable or self._executor.wait(self._patience())
        self._unstartable = []
        for outcome in outcomes:
            self._end(outcome)
        if self._tools.signals.received:
            self._heed_signals()
        now = self._clock.monotonic()
        if now - self._last_interval >= self._job.pipeline.checkpoint.interval:
            self._last_interval = now
            self._recorder.snapshot("interval")

    def _patience(self) -> float:
        now = self._clock.monotonic()
        patience = self._last_interval + self._job.pipeline.checkpoint.interval - now
        if self._waiting and not self._stop_reason:
            patience = min(patience, self._waiting[0][0] - now)
        return max(patience, 0.0)

    def _heed_signals(self) -> None:
        received = list(self._tools.signals.received)
        self._tools.signals.received.clear()
        again = self._stop_signal is not None
        if not again:
            self._stop_signal = received[0]
            self._stop_starting(f"stopped by {received[0].name}")
        self._executor.stop(0.0 if again or len(received) > 1 else STOP_GRACE)

    def _stop_starting(self, reason: str) -> None:
        self._stop_reason = self._stop_reason or reason

    def _end(self, outcome: Outcome) -> None:
        """Stage how an attempt ended, and what follows from it."""
        step_id, item = outcome.unit
        step = self._steps[step_id]
        attempt = self._running.pop(step_id)
        now = self._clock.now()
        match outcome.status:
            case "ok":
                self._recorder.stage(
                    ev.StepCompleted(
                        at=now,
                        step=step_id,
                        item=item,
                        attempt=attempt,
                        duration=round(outcome.duration, 6),
                        fingerprint=fingerprint(step, self._job.pipeline.env),
                        outputs=outcome.outputs,
                        metrics=outcome.metrics,
                        output=outcome.output,
                    )
                )
                self._settle(step)
            case "stopped":
                reason = self._stop_signal.name if self._stop_signal else self._stop_reason
                self._recorder.stage(
                    ev.StepInterrupted(
                        at=now,
                        step=step_id,
                        item=item,
                        attempt=attempt,
                        reason=reason,
                        metrics=outcome.metrics,
                    )
                )
            case "failed":
                self._fail(step, attempt, outcome)

    def _fail(self, step: Step, attempt: int, outcome: Outcome) -> None:
        now = self._clock.now()
        failures = self._state.unit(outcome.unit).failures + 1
        decision = decide(step.retry, failures, retryable=outcome.retryable, dice=self._tools.dice())
        final = decision.delay is None
        self._recorder.stage(
            ev.StepFailed(
                at=now,
                step=step.id,
                item=outcome.unit[1],
                attempt=attempt,
                duration=round(outcome.duration, 6),
                error=failure_of(self._job, step, outcome, self._state, now),
                retry_at=None if decision.delay is None else now + timedelta(seconds=decision.delay),
                retry_in=decision.delay,
                allowed=final and step.allow_failure,
                metrics=outcome.metrics,
                output=outcome.output,
            )
        )
        if decision.delay is not None:
            heapq.heappush(self._waiting, (self._clock.monotonic() + decision.delay, step.id))
        elif step.allow_failure:
            self._settle(step)
        elif self._job.options.fail_fast and not self._stop_reason:
            self._stop_starting(f"{step.id} failed and --fail-fast is on")
            self._executor.stop(STOP_GRACE)

    def _settle(self, step: Step) -> None:
        """A step is done: its dependants may be ready."""
        self._unfinished -= 1
        self._lineage[step.id] = lineage_of(step, self._state.unit((step.id, None)), self._lineage)
        self._ready.extend(released for released in self._frontier.settle(step.id) if released not in self._asked)

    # The end

    def _finish(self) -> End:
        now = self._clock.now()
        end = self._ending()
        match end.status:
            case "completed" | "failed":
                self._recorder.stage(ev.RunFinished(at=now, status=end.status))
            case "paused":
                self._recorder.stage(ev.RunPaused(at=now, reason=end.reason))
            case "interrupted":
                name = end.signal.name if end.signal else None
                self._recorder.stage(ev.RunInterrupted(at=now, reason=end.reason, signal=name))
        unrecorded = self._recorder.unacknowledged_ends()
        if self._recorder.last_words():
            unrecorded = ()
        self._recorder.snapshot()
        return msgspec.structs.replace(end, unrecorded=unrecorded)

    def _ending(self) -> End:
        lost = self._recorder.lost
        if lost is not None:
            return End(status="interrupted", reason=lost.message, lost=lost)
        if self._recorder.degraded:
            stopped = StateUnwritable(
                f"{self._recorder.degraded}: stopped before the state could no longer be written",
                hint=f"rerail resume {self._job.header.run_id}, once there is room",
            )
            return End(status="interrupted", reason=self._recorder.degraded, lost=stopped)
        if self._stop_signal is not None:
            return End(status="interrupted", reason=self._stop_reason, signal=self._stop_signal)
        failed = any(unit.status == "failed" and not unit.allowed for unit in self._state.units.values())
        if self._asked and not failed:
            steps = ", ".join(self._asked)
            return End(status="paused", reason=f"the outcome of {steps} is unknown")
        return End(status="completed" if self._unfinished == 0 else "failed", reason=self._stop_reason)


def _unstartable(step: Step, kind: str, message: str) -> Outcome:
    return Outcome(unit=(step.id, None), status="failed", duration=0.0, type=kind, message=message, retryable=False)


def _has_ended(unit: UnitState) -> bool:
    """Whether the unit's record must be taken back before it can run again; a put-off retry goes on as it is."""
    return unit.status in ("completed", "skipped") or (unit.status == "failed" and unit.retry_at is None)
