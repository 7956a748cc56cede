"""The loop: start what is ready, wait, record what happened, until nothing is left.

A new run is a resume from nothing: there is no other path. One batch is one write and one sync: all outcomes that have
arrived, with the starts they release. Work is launched only after its start is durable, and acknowledged only after its
outcome is.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from datetime import timedelta

import msgspec

from rerail.core import events as ev
from rerail.core.fingerprint import fingerprint
from rerail.core.hooks import Rest, last_hooks
from rerail.core.model import Step
from rerail.core.retry import decide
from rerail.core.state import RunState, UnitState
from rerail.core.template import ExpressionError, Scope, evaluate
from rerail.engine.attempts import (
    attempt_of,
    failure_of,
    masked,
    place_of,
    scope_of,
    symptoms_of,
    unstartable,
    with_checks,
    without_commit,
)
from rerail.engine.ending import Stop, ending_of, finish
from rerail.engine.files import StepFiles
from rerail.engine.job import End, Job, Tools
from rerail.engine.past import Past, invalidate, start_anew
from rerail.engine.recorder import Recorder
from rerail.engine.schedule import Schedule
from rerail.errors import StateUnwritable
from rerail.ports import Looked, Outcome

STOP_GRACE = 5.0


class Runner:
    """Drives one run through one life of this process."""

    def __init__(self, job: Job, tools: Tools, recorder: Recorder) -> None:
        self._job = job
        self._tools = tools
        self._executor = tools.executor
        self._clock = tools.clock
        self._recorder = recorder
        self._state: RunState = recorder.state
        self._schedule = Schedule(job.pipeline, job.until)
        self._running: dict[str, int] = {}  # step → attempt number
        self._unstartable: list[Outcome] = []
        self._files = StepFiles(tools.workshop, job.spared)
        self._failed: set[str] = set()  # for good, and not allowed to
        self._stop_reason = ""  # why nothing new may start
        self._stop_signal: signal.Signals | None = None
        self._final_status = ""  # what the run has come to, once only its last hooks are left
        self._last_interval = self._clock.monotonic()

    def drive(self, opening: ev.RunStarted | ev.RunResumed) -> End:
        """Run to the end of this life. What happened is recorded before this returns, if it can be."""
        self._recorder.stage(opening)
        Past(self._job, self._recorder, self._schedule, self._clock).settle()
        self._loop()
        end = ending_of(self._job, self._recorder, self._schedule, self._stop(), failed=bool(self._failed))
        if end.status in ("completed", "failed") and self._job.pipeline.finally_:
            end = self._last_hooks(end)
        return finish(self._recorder, self._clock, end)

    def _last_hooks(self, end: End) -> End:
        """What comes last, whatever happened; only what is left of it if that is where an earlier life was cut off."""
        pipeline = self._job.pipeline
        left = last_hooks(pipeline, self._state) if self._job.plan.ending_cut_off else Rest(pipeline.finally_)
        unknown = [hook.id for hook in pipeline.finally_ if hook.id in self._schedule.asked]
        if unknown:
            return End(status="paused", reason=f"the outcome of {unknown[0]} is unknown", asked=tuple(unknown))
        self._final_status = end.status
        self._schedule.halt()
        start_anew(self._recorder, self._clock, self._schedule.start_hooks(left.hooks))
        self._loop()
        return ending_of(self._job, self._recorder, self._schedule, self._stop(), failed=bool(self._failed))

    def _loop(self) -> None:
        starts: list[Step] = []
        while True:
            self._fill(starts)
            if self._flush(starts):
                self._launch(starts)
            starts.clear()
            idle = not self._running and not self._unstartable and not self._files.examining
            if idle and (self._is_stopping() or self._schedule.empty):
                return
            self._recorder.snapshot_if_due()
            self._collect()

    def _is_stopping(self) -> bool:
        if self._final_status:  # the last hooks run whatever happened, unless we are told to stop or cannot record
            return self._stop_signal is not None or self._recorder.lost is not None
        return bool(self._stop_reason)

    # Starting

    def _fill(self, starts: list[Step]) -> None:
        """Stage the start of whatever is ready while there is room."""
        if self._is_stopping() or self._is_full():
            return
        for step in self._schedule.turns(self._clock.monotonic()):
            unit = self._state.unit((step.id, None))
            if step.inputs and step.id not in self._files.examined:
                self._files.examine(step, self._scope())
                if self._is_full():
                    return
                continue
            if unit.settled and not self._runs_after_all(step, unit):
                continue
            if unit.status == "failed" and unit.retry_at is None:
                invalidate(self._recorder, self._clock, step.id, "it had failed")
            if self._skips(step):
                continue
            self._stage_start(step, unit.attempts + 1)
            starts.append(step)
            if self._is_full():
                return

    def _runs_after_all(self, step: Step, unit: UnitState) -> bool:
        """Whether a settled step runs again now that what it needs has come out; if not, it is settled, or looked at."""
        changed = self._schedule.outdated(step, unit, self._state)
        why = f"{changed} produced something different" if changed else self._files.changed(step, unit)
        lost = "" if why else self._files.confirm(step, unit)
        if why or lost:
            aside = self._files.clear(step, unit)
            if aside is not None:
                invalidate(self._recorder, self._clock, step.id, why or f"{lost} while others ran", aside)
            return aside is not None
        if lost is not None:
            self._recorder.warn(f"{step.id}: kept, what it needs came out the same")
            self._files.forget(step)
            self._schedule.settle(step, unit)
        return False

    def _is_full(self) -> bool:
        return len(self._running) + self._files.examining >= self._job.options.parallel

    def _scope(self) -> Scope:
        return scope_of(self._job, self._state, self._run_status())

    def _stage_start(self, step: Step, number: int) -> None:
        head = self._tools.head(place_of(self._job, step)) if step.commit_required else ""
        definition = fingerprint(step, self._job.pipeline.env)
        self._recorder.stage(
            ev.StepStarted(
                at=self._clock.now(),
                step=step.id,
                attempt=number,
                fingerprint=definition,
                head=head,
                inputs=self._files.inputs(step) if step.inputs else (),
            )
        )
        self._running[step.id] = number

    def _skips(self, step: Step) -> bool:
        """Settle a step whose `when` does not hold. One that has no value is left to fail as an attempt."""
        if not step.when:
            return False
        try:
            if evaluate(step.when, self._scope()):
                return False
        except ExpressionError:
            return False
        reason = f"`when: {step.when}` does not hold"
        if self._state.unit((step.id, None)).status != "pending":
            invalidate(self._recorder, self._clock, step.id, reason)
        self._files.forget(step)
        definition = fingerprint(step, self._job.pipeline.env)
        self._recorder.stage(ev.StepSkipped(at=self._clock.now(), step=step.id, reason=reason, fingerprint=definition))
        self._schedule.settle(step, self._state.unit((step.id, None)))
        return True

    def _run_status(self) -> str:
        return self._final_status or ("failed" if self._failed else self._state.status)

    def _flush(self, starts: Sequence[Step]) -> bool:
        """Make the batch durable. False: it is not, and nothing of it may be launched."""
        stops = self._job.pipeline.checkpoint.on_error == "stop"
        try:
            self._recorder.flush()
        except StateUnwritable as error:
            if stops:
                self._stop_starting(error.message)
                self._unlaunch(starts, "it was never launched: its start could not be recorded")
                return False
            self._recorder.warn(f"{error.message}; going on without a record, as `checkpoint.on_error: warn` asks")
        if self._recorder.degraded and stops and not self._stop_reason:
            self._stop_starting(self._recorder.degraded)
            self._unlaunch(starts, f"it was never launched: {self._recorder.degraded}")
            return False
        return True

    def _unlaunch(self, starts: Sequence[Step], reason: str) -> None:
        for step in starts:
            del self._running[step.id]
            invalidate(self._recorder, self._clock, step.id, reason)

    def _launch(self, starts: Sequence[Step]) -> None:
        for step in starts:
            try:
                if step.when:  # one that has no value was not skipped: it fails here
                    evaluate(step.when, self._scope())
                kind, problem = self._files.take(step) if step.inputs or step.artifacts else ("", "")
                if problem:
                    self._unstartable.append(unstartable(step, kind, problem))
                    continue
                attempt = attempt_of(self._job, step, self._state, self._running[step.id], self._run_status())
                work = self._tools.kinds[type(step.action)].work(attempt)
                if step.checks:
                    attempt = with_checks(self._job, step, self._state, attempt, self._tools.kinds)
            except ExpressionError as error:
                self._unstartable.append(unstartable(step, "ExpressionError", str(error)))
            except (ValueError, KeyError, OSError) as error:
                self._unstartable.append(unstartable(step, "CouldNotStart", f"could not start: {error}"))
            else:
                self._executor.start(attempt, work)

    # Waiting and recording

    def _collect(self) -> None:
        """Wait for something to happen and stage it."""
        outcomes = self._unstartable or self._executor.wait(self._patience)
        self._unstartable = []
        for outcome in outcomes:
            self._end(outcome)
        if self._files.busy:
            self._look()
        if self._tools.signals.received:
            self._heed_signals()
        now = self._clock.monotonic()
        if now - self._last_interval >= self._job.pipeline.checkpoint.interval:
            self._last_interval = now
            self._recorder.snapshot("interval")

    def _look(self) -> None:
        """Take what came of looking at files."""
        for looked in self._files.finished():
            step = self._schedule.steps[looked.unit[0]]
            if looked.purpose != "artifacts":
                self._look_again(step, looked)
                continue
            attempt = self._running.pop(step.id)
            outcome = self._files.sealed(looked)
            for warning in looked.warnings:
                self._recorder.warn(self._job.mask.text(f"{step.id}: {warning}"))
            self._record_end(step, attempt, outcome, looked.artifacts)
        for line in self._files.slow(self._clock.monotonic()):
            self._recorder.warn(line)

    def _look_again(self, step: Step, looked: Looked) -> None:
        """A step whose turn had come, and comes again now that its files were looked at."""
        if looked.found:
            found, made, aside = looked.found, looked.artifacts, looked.aside
            self._recorder.stage(
                ev.ArtifactsRestored(at=self._clock.now(), step=step.id, found=found, artifacts=made, aside=aside)
            )
            self._recorder.warn(f"{step.id}: restored {', '.join(found)}, which another step had damaged")
        if not looked.given_up:
            self._schedule.next(step.id)

    def _patience(self) -> float:
        now = self._clock.monotonic()
        patience = self._last_interval + self._job.pipeline.checkpoint.interval - now
        snapshot_due = self._recorder.snapshot_due()
        if snapshot_due is not None:  # while a long step runs, checkpoint.json catches up
            patience = min(patience, snapshot_due - now)
        if self._files.busy:
            patience = min(patience, 1.0)
        due = self._schedule.next_due()
        if due is not None and not self._is_stopping():
            patience = min(patience, due - now)
        return max(patience, 0.0)

    def _heed_signals(self) -> None:
        received = list(self._tools.signals.received)
        self._tools.signals.received.clear()
        again = self._stop_signal is not None
        if not again:
            self._stop_signal = received[0]
            self._stop_starting(f"stopped by {received[0].name}")
            if self._running:
                self._recorder.warn(f"{received[0].name}: ending what runs, in {STOP_GRACE:g} s at most; again: now")
        if again or len(received) > 1:
            self._files.give_up()
        self._executor.stop(0.0 if again or len(received) > 1 else STOP_GRACE)

    def _stop(self) -> Stop:
        return Stop(self._stop_reason, self._stop_signal)

    def _stop_starting(self, reason: str) -> None:
        self._stop_reason = self._stop_reason or reason

    def _end(self, outcome: Outcome) -> None:
        """Stage how an attempt ended, and what follows from it."""
        step = self._schedule.steps[outcome.unit[0]]
        attempt = self._running.pop(step.id)
        if self._job.mask or outcome.warnings:
            outcome = masked(outcome, self._job.mask)
            for warning in outcome.warnings:
                self._recorder.warn(f"{step.id}: {warning}")
        if outcome.status == "ok" and step.commit_required:
            place = place_of(self._job, step)
            head = self._tools.head(place)
            if head in ("", self._state.unit(outcome.unit).head):
                outcome = without_commit(outcome, self._tools.uncommitted(place), head)
        if outcome.status == "ok" and step.artifacts:
            problem = self._files.seal(step, outcome, self._scope())
            if not problem:
                self._running[step.id] = attempt  # until its artifacts are sealed
                return
            outcome = msgspec.structs.replace(outcome, status="failed", type="ArtifactInvalid", message=problem)
        self._record_end(step, attempt, outcome)

    def _record_end(
        self, step: Step, attempt: int, outcome: Outcome, artifacts: tuple[ev.ArtifactRecord, ...] = ()
    ) -> None:
        match outcome.status:
            case "ok":
                self._complete(step, attempt, outcome, artifacts)
            case "stopped":
                reason = self._stop_signal.name if self._stop_signal else self._stop_reason or "--fail-fast"
                now, spent = self._clock.now(), outcome.metrics
                self._recorder.stage(
                    ev.StepInterrupted(at=now, step=step.id, attempt=attempt, reason=reason, metrics=spent)
                )
            case "failed":
                self._fail(step, attempt, outcome)

    def _complete(
        self, step: Step, attempt: int, outcome: Outcome, artifacts: tuple[ev.ArtifactRecord, ...] = ()
    ) -> None:
        if step.on_failure and self._failed:  # a clean-up that failed before it is history now
            self._failed -= {hook.id for hook in step.on_failure}
        self._recorder.stage(
            ev.StepCompleted(
                at=self._clock.now(),
                step=step.id,
                attempt=attempt,
                duration=round(outcome.duration, 6),
                outputs=outcome.outputs,
                metrics=outcome.metrics,
                artifacts=artifacts,
                output=outcome.output,
            )
        )
        self._schedule.settle(step, self._state.unit(outcome.unit))

    def _fail(self, step: Step, attempt: int, outcome: Outcome) -> None:
        now = self._clock.now()
        failures = self._state.unit(outcome.unit).failures + 1
        symptoms, endless = symptoms_of(step, outcome, self._tools.find)
        for pattern in endless:
            self._recorder.warn(f"{step.id}: `retry.on: {pattern}` takes too long to look for; it counts as not found")
        delay = decide(step.retry, failures, symptoms, self._tools.dice()).delay
        self._recorder.stage(
            ev.StepFailed(
                at=now,
                step=step.id,
                attempt=attempt,
                duration=round(outcome.duration, 6),
                error=failure_of(self._job, step, outcome, self._state, now),
                retry_at=None if delay is None else now + timedelta(seconds=delay),
                retry_in=delay,
                allowed=delay is None and step.allow_failure,
                metrics=outcome.metrics,
                output=outcome.output,
            )
        )
        if delay is not None:
            self._schedule.wait(step.id, self._clock.monotonic() + delay)
            return
        start_anew(self._recorder, self._clock, self._schedule.fail(step))
        if step.allow_failure:
            if step.id not in self._schedule.hooks:  # the next hook was released by its failure already
                self._schedule.settle(step, self._state.unit(outcome.unit))
            return
        self._failed.add(step.id)
        if self._job.options.fail_fast and not self._final_status:
            self._schedule.halt()
            self._executor.stop(STOP_GRACE, spare=self._schedule.hooks)
