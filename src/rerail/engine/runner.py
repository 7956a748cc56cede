"""The loop: start what is ready, wait, record what happened, until nothing is left.

A new run is a resume from nothing: there is no other path. One batch is one write and one sync: all outcomes that have
arrived, with the starts they release. Work is launched only after its start is durable, and acknowledged only after its
outcome is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from rerail.core import events as ev
from rerail.core.expressions.language import ExpressionError, evaluate
from rerail.core.hooks import PendingHooks, pending_finally
from rerail.core.state import RunState, Unit, UnitState, name
from rerail.engine.admission import Admission
from rerail.engine.commits import Commits
from rerail.engine.completion import CompletionRecorder
from rerail.engine.controllers.results import put_back
from rerail.engine.desk import Desk
from rerail.engine.frame import Body, Frame
from rerail.engine.inside import Inside
from rerail.engine.launch import Launcher
from rerail.engine.progress import save_cost, save_progress
from rerail.engine.ready_queue import ReadyQueue, Task
from rerail.engine.recorder import Recorder
from rerail.engine.shutdown import Shutdown, ending_of, finish
from rerail.engine.spec import STOP_GRACE, RunResult, RunSpec, Toolbox
from rerail.engine.step_files import StepFiles
from rerail.errors import StateUnwritable
from rerail.ports import FileCheck, Outcome


class Runner:
    """Drives one run through one life of this process."""

    def __init__(self, job: RunSpec, tools: Toolbox, recorder: Recorder) -> None:
        self._job = job
        self._tools = tools
        self._executor = tools.executor
        self._clock = tools.clock
        self._recorder = recorder
        self._state: RunState = recorder.state
        self._turns = ReadyQueue()
        self._root = Frame(Body(job.pipeline.steps, job.pipeline.finally_, job.pipeline.env), self._turns)
        if job.until:
            self._root.want(job.until)
        self._desk = Desk(job, tools, recorder, self._turns)
        self._desk.view.status = lambda: self._final_status or ("failed" if self._root.failed else self._state.status)
        self._past = self._desk.past
        self._inside = Inside(self._desk)
        self._running: dict[Unit, tuple[Task, int, float]] = {}  # with the number of the attempt and when it began
        self._holds = Admission(self._desk, self._running)
        self._ends = CompletionRecorder(self._desk, self._root, self._inside.hooks, self._holds)
        self._parallel = job.options.parallel
        self._counted = 0  # those of them that count against the width of the run
        self._files = StepFiles(tools.workshop, job.spared, self._desk.cannot_keep)
        self._launching = Launcher(self._desk, self._files)
        self._commits = Commits(self._desk)
        self._stopping = Shutdown(job, tools, self._desk, self._running)
        self._final_status = ""  # what the run has come to, once only its last hooks are left
        self._began = self._last_interval = self._clock.monotonic()
        self._interval_due = False  # a snapshot, once what was saved of long steps is durable

    def drive(self, opening: ev.RunStarted | ev.RunResumed) -> RunResult:
        """Run to the end of this life. What happened is recorded before this returns, if it can be."""
        self._recorder.stage(opening)
        self._past.settle(self._root)
        self._holds.restore()
        self._holds.read_letters()
        put_back(self._recorder, self._state, self._job.work_dir)
        self._stopping.mind_purse()
        self._loop()
        end = self._ending()
        if end.status in ("completed", "failed") and (self._job.pipeline.finally_ or not self._turns.empty):
            end = self._last_hooks(end)
        self._inside.interrupt(self._stopping.words if self._stopping.reason else end.words)
        return finish(self._recorder, self._clock, end, self._began)

    def _last_hooks(self, end: RunResult) -> RunResult:
        """What comes last, whatever happened; only what is left of it if that is where an earlier life was cut off."""
        pipeline = self._job.pipeline
        left = (
            pending_finally(pipeline, self._state) if self._job.plan.ending_cut_off else PendingHooks(pipeline.finally_)
        )
        unknown = [hook.id for hook in pipeline.finally_ if hook.id in self._turns.asked]
        if unknown:
            return RunResult(status="paused", reason=f"the outcome of {unknown[0]} is unknown", asked=tuple(unknown))
        self._final_status = end.status
        self._halt()
        self._loop()  # clean-ups come first: they wait for their turn if a budget is spent
        if not self._is_stopping():
            self._past.start_anew(self._root.start_hooks(left.hooks))
            self._loop()
        last = self._ending()
        if last.status == "failed" and end.status == "failed" and not last.reason:
            last = msgspec.structs.replace(last, reason=end.reason, cause=end.cause)  # the hooks answered no question
        return last

    def _ending(self) -> RunResult:
        held = self._holds.pause(self._inside.hooks) or self._holds.closed()
        return ending_of(self._job, self._recorder, self._root, self._stopping.stop, held)

    def _loop(self) -> None:
        starts: list[Task] = []
        while True:
            self._fill(starts)
            if self._flush(starts):
                self._inside.conclude()  # before anything else happens that is not durable yet
                self._launch(starts)
                if self._desk.ends or self._desk.started:
                    self._take_ends()
            starts.clear()
            idle = not self._running and not self._launching.instant and not self._files.waiting
            if self._is_stopping():
                if idle:
                    return
            elif self._recorder.has_news or self._desk.due or self._turns.is_ready(self._has_room):
                continue  # controllers have gone on: record that, and start what they released
            elif idle and self._turns.empty:
                if not self._ask():
                    return
                continue
            if self._interval_due:
                self._interval_due = False
                self._recorder.snapshot("interval")
            self._recorder.snapshot_if_due()
            self._collect()

    def _ask(self) -> bool:
        """Nothing else is left: ask whoever is there what waits for a person; whether anything goes on now."""
        if self._holds.wake() or self._holds.read_letters():
            return True
        answered = self._tools.ask is not None and self._holds.ask(self._tools.ask, self._is_out_of_time)
        if self._tools.signals.received:
            self._stopping.heed_signals(running=False)
        if not self._final_status:
            self._stopping.mind_purse()
        return answered

    def _is_out_of_time(self) -> bool:
        due = self._stopping.purse.due()
        return due is not None and self._clock.monotonic() >= due

    def _is_stopping(self) -> bool:
        if self._final_status:  # the last hooks run whatever happened, unless we are told to stop or cannot record
            return self._stopping.signal is not None or self._recorder.lost is not None
        return bool(self._stopping.reason)

    # Starting

    def _fill(self, starts: list[Task]) -> None:
        """Stage the start of whatever is ready while there is room."""
        if self._is_stopping():
            if not self._stopping.spares_clean_up or self._recorder.lost is not None or self._recorder.degraded:
                return
            self._turns.keep(lambda task: task.unit[0] in self._inside.hooks)
        for task in self._turns.turns(self._clock.monotonic(), self._has_room):
            unit, step = self._state.unit(task.unit), task.step
            if step.inputs and task.unit not in self._files.examined:
                self._files.examine(task, self._desk.view.of(task))
                continue
            if unit.settled and not self._runs_after_all(task, unit):
                continue
            if task.controls:
                self._inside.refresh(task, unit)
            elif unit.status == "failed" and unit.retry_at is None:
                self._past.invalidate(task.unit, "it had failed")
            if step.when and self._skips(task):
                continue
            if not self._holds.idle and self._holds.holds(task):
                continue
            if step.commit_required and not self._commits.reserve(task):
                continue
            self._stage_start(task, unit.attempts + 1)
            starts.append(task)

    def _runs_after_all(self, task: Task, unit: UnitState) -> bool:
        """Whether a settled step runs again now that what it needs has come out; if not, it is settled, or looked at."""
        why = task.home.required(task)
        if not why:
            changed = task.home.outdated(task, unit, self._state)
            why = f"{changed} produced something different" if changed else self._files.changed(task, unit)
        lost = "" if why else self._files.confirm(task, unit)
        if why or lost:
            aside = self._files.clear(task, unit)
            if aside is not None:
                self._past.invalidate(task.unit, why or f"{lost} while others ran", aside)
            return aside is not None
        if lost is not None:
            self._recorder.warn(f"{name(task.unit)}: kept, what it needs came out the same")
            self._files.forget(task)
            task.home.settle(task, unit)
            task.home.leave(task)
        return False

    def _has_room(self) -> bool:
        waiting = self._files.counted if self._files.waiting else 0
        return self._counted + waiting < self._parallel

    def _stage_start(self, task: Task, number: int) -> None:
        step, (path, item) = task.step, task.unit
        self._recorder.stage(
            ev.StepStarted(
                at=self._clock.now(),
                step=path,
                item=item,
                attempt=number,
                index=task.index,
                fingerprint=self._definition(task),
                head=self._commits.head(task) if step.commit_required else "",
                inputs=self._files.inputs(task) if step.inputs else (),
            )
        )
        self._take_in(task, number)

    def _definition(self, task: Task) -> str:
        """The fingerprint that a start records; of a controller that goes on under `--changes keep` the recorded one."""
        if task.unit[1] is not None:
            return ""
        known = self._state.unit(task.unit)
        if known.items is not None and self._job.changes == "keep" and known.fingerprint:
            return known.fingerprint  # so that the next plan sees the edit, as it does for a step that was kept
        return self._desk.definition(task.step)

    def _take_in(self, task: Task, number: int) -> None:
        self._running[task.unit] = (task, number, self._clock.monotonic())
        if task.home.counted and not task.controls:
            self._counted += 1

    def _take_out(self, unit: Unit) -> tuple[Task, int]:
        task, number, _ = self._running.pop(unit)
        if task.home.counted and not task.controls:
            self._counted -= 1
        return task, number

    def _skips(self, task: Task) -> bool:
        """Settle a step whose `when` does not hold. One that has no value is left to fail as an attempt."""
        step, (path, item) = task.step, task.unit
        try:
            if evaluate(step.when, self._desk.view.of(task)):
                return False
        except ExpressionError:
            return False
        reason = f"`when: {step.when}` does not hold"
        if self._state.unit(task.unit).status != "pending":
            self._past.invalidate(task.unit, reason)
        self._files.forget(task)
        definition = self._desk.definition(step) if item is None else ""
        self._recorder.stage(
            ev.StepSkipped(
                at=self._clock.now(), step=path, item=item, reason=reason, index=task.index, fingerprint=definition
            )
        )
        task.home.settle(task, self._state.unit(task.unit))
        task.home.leave(task)
        return True

    def _flush(self, starts: Sequence[Task]) -> bool:
        """Make the batch durable. False: it is not, and nothing of it may be launched."""
        stops = self._job.pipeline.checkpoint.on_error == "stop"
        try:
            self._recorder.flush()
        except StateUnwritable as error:
            if stops:
                self._stopping.start_nothing(error.message)
                self._unlaunch(starts, "it was never launched: its start could not be recorded")
                return False
            self._recorder.warn(f"{error.message}; going on without a record, as `checkpoint.on_error: warn` asks")
        if self._recorder.degraded and stops and not self._stopping.reason:
            self._stopping.start_nothing(self._recorder.degraded)
            self._unlaunch(starts, f"it was never launched: {self._recorder.degraded}")
            return False
        return True

    def _unlaunch(self, starts: Sequence[Task], reason: str) -> None:
        for task in starts:
            self._take_out(task.unit)
            self._past.invalidate(task.unit, reason, reopened=True)

    def _launch(self, starts: Sequence[Task]) -> None:
        controllers = [task for task in starts if self._launching.launch(task, self._running[task.unit][1])]
        for task in controllers:
            self._take_out(task.unit)
            self._inside.begin(task)

    # Waiting and recording

    def _take_ends(self) -> None:
        """Controllers that came to their end, and attempts that were started in their name."""
        while self._desk.started:
            task = self._desk.started.pop()
            self._take_in(task, self._state.unit(task.unit).attempts)
        while self._desk.ends:
            task, outcome = self._desk.ends.pop(0)
            self._inside.ended(task.unit)
            self._holds.forget_inside(task.unit)
            self._end(task, self._state.unit(task.unit).attempts, outcome)

    def _collect(self) -> None:
        """Wait for something to happen and stage it."""
        outcomes = self._launching.take_instant() or self._executor.wait(self._patience)
        for outcome in outcomes:
            task, attempt = self._take_out(outcome.unit)
            if not self._inside.took(outcome):
                self._end(task, attempt, outcome)
        if self._files.busy:
            self._look()
        if self._tools.signals.received and self._stopping.heed_signals(running=bool(self._running)):
            self._files.give_up()
        if self._desk.ends or self._desk.started:
            self._take_ends()
        if self._holds.expects_letters:
            self._holds.read_letters()
        now = self._clock.monotonic()
        if now - self._last_interval >= self._job.pipeline.checkpoint.interval:
            self._last_interval = now
            self._holds.mind_clock()
            save_progress(self._desk, self._running)
            self._holds.mind_budgets()
            self._interval_due = True
        if not self._final_status:
            self._stopping.mind_purse()

    def _look(self) -> None:
        """Take what came of looking at files."""
        for task, looked in self._files.finished():
            if task is not None:
                self._look_again(task, looked)
                continue
            sealed, attempt = self._take_out(looked.unit)
            outcome = self._files.sealed(looked)
            for warning in looked.warnings:
                self._recorder.warn(f"{name(looked.unit)}: {warning}")
            self._record_end(sealed, attempt, outcome, looked.artifacts)
        for line in self._files.slow(self._clock.monotonic()):
            self._recorder.warn(line)

    def _look_again(self, task: Task, looked: FileCheck) -> None:
        """A step whose turn had come, and comes again now that its files were looked at."""
        if looked.found:
            step, item = task.unit
            found, made, aside = looked.found, looked.artifacts, looked.aside
            now = self._clock.now()
            self._recorder.stage(
                ev.ArtifactsRestored(at=now, step=step, item=item, found=found, artifacts=made, aside=aside)
            )
            self._recorder.warn(f"{name(task.unit)}: restored {', '.join(found)}, which another step had damaged")
        if not looked.given_up:
            self._turns.next(task)

    def _patience(self) -> float:
        now = self._clock.monotonic()
        patience = self._last_interval + self._job.pipeline.checkpoint.interval - now
        snapshot_due = self._recorder.snapshot_due()
        if snapshot_due is not None:  # while a long step runs, checkpoint.json catches up
            patience = min(patience, snapshot_due - now)
        if self._files.busy or self._holds.expects_letters:
            patience = min(patience, 1.0)
        used_up = self._stopping.purse.due()
        if used_up is not None and not self._is_stopping():
            patience = min(patience, used_up - now)
        due = self._turns.next_due()
        if due is not None and not self._is_stopping():
            patience = min(patience, due - now)
        return max(patience, 0.0)

    def _halt(self) -> None:
        """No further step runs in this life, only hooks."""
        self._root.halt()
        self._desk.stopping = True
        for tasks in (self._turns, self._holds, self._commits):
            tasks.keep(lambda task: task.unit[0] in self._inside.hooks)

    def _end(self, task: Task, attempt: int, outcome: Outcome) -> None:
        """Stage how an attempt ended, and what follows from it."""
        step = task.step
        for warning in outcome.warnings:
            self._recorder.warn(f"{name(task.unit)}: {warning}")
        if outcome.status == "ok" and step.commit_required:
            outcome = self._commits.prove(task, outcome, self._state.unit(outcome.unit).head)
        if outcome.status == "ok" and step.artifacts:
            since = self._began_at(task, outcome)
            problem = self._files.seal(task, outcome, self._desk.view.of(task), since)
            if not problem:
                self._take_in(task, attempt)  # until its artifacts are sealed
                save_cost(self._desk, task, attempt, outcome)
                return
            outcome = msgspec.structs.replace(outcome, status="failed", type="ArtifactInvalid", message=problem)
        self._record_end(task, attempt, outcome)

    def _began_at(self, task: Task, outcome: Outcome) -> datetime | None:
        """When an attempt began, by the wall clock then or by that of now, whichever is earlier: it may have been set."""
        began = self._state.unit(task.unit).started_at
        return min(began, self._clock.now() - timedelta(seconds=outcome.duration)) if began else None

    def _record_end(
        self, task: Task, attempt: int, outcome: Outcome, artifacts: tuple[ev.ArtifactRecord, ...] = ()
    ) -> None:
        if not self._holds.idle:
            self._holds.ended(task, outcome)
        match outcome.status:
            case "ok":
                self._ends.complete(task, attempt, outcome, artifacts)
            case "stopped":
                overspent = self._holds.overspent(task)
                self._ends.interrupt(task, attempt, outcome, "its budget" if overspent else self._stopping.words)
                if overspent:
                    self._turns.ready(task)
            case "failed":
                for_good = self._ends.fail(task, attempt, outcome)
                if for_good and task.home is self._root and self._job.options.fail_fast and not self._final_status:
                    self._halt()
                    self._executor.stop(STOP_GRACE, spare=self._inside.hooks)
        if task.step.commit_required and self._state.unit(task.unit).retry_at is None:
            self._commits.release(task.unit)
