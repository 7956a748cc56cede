"""The loop of one invocation: start ready tasks, wait, record outcomes, until no work is left.

A new run is a resume from nothing: there is no other path.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from rerail.core import events as ev
from rerail.core.events import Reason
from rerail.core.expressions.language import ExpressionError, evaluate
from rerail.core.hooks import PendingHooks, hook_ids, pending_finally
from rerail.core.model import Loop, Subpipeline
from rerail.core.planner import has_failed
from rerail.core.state import RunState, UnitState
from rerail.core.unit_id import UnitId
from rerail.engine.admission import Admission
from rerail.engine.approvals import Approvals
from rerail.engine.budgets import RunBudget
from rerail.engine.commits import Commits
from rerail.engine.completion import CompletionRecorder
from rerail.engine.controllers.controller import Controller, SubpipelineController
from rerail.engine.controllers.loop import LoopController
from rerail.engine.controllers.map import MapController
from rerail.engine.controllers.results import restore_results
from rerail.engine.frame import Body, Frame
from rerail.engine.launch import Launcher
from rerail.engine.progress import record_cost, record_progress
from rerail.engine.ready_queue import ReadyQueue, RunningTasks, Task
from rerail.engine.recorder import Recorder
from rerail.engine.recovery import FAILED_BEFORE, Recovery
from rerail.engine.scopes import ScopeBuilder
from rerail.engine.shutdown import Shutdown, record_result, run_result
from rerail.engine.spec import STOP_GRACE, RunResult, RunSpec, Toolbox
from rerail.engine.step_files import StepFiles
from rerail.errors import StateUnwritable
from rerail.ports import Attempt, FileCheck, Outcome, Work


class Runner:
    """One invocation of a run; the host of its controllers."""

    def __init__(self, spec: RunSpec, tools: Toolbox, recorder: Recorder) -> None:
        self.spec = spec
        self.tools = tools
        self.clock = tools.clock
        self.recorder = recorder
        self.state: RunState = recorder.state
        self.queue = ReadyQueue()
        self.running = RunningTasks()
        self.recovery = Recovery(spec, recorder, self.queue, self.clock)
        self.scopes = ScopeBuilder(spec, self.state)
        self.scopes.status = self._status
        self._root = Frame(Body(spec.pipeline.steps, spec.pipeline.finally_, spec.pipeline.env), self.queue)
        if spec.execute.until:
            self._root.want(spec.execute.until)
        self._hooks = hook_ids(spec.pipeline)
        self._approvals = Approvals(spec, tools, recorder, self.recovery, self.scopes)
        self._admission = Admission(spec, tools, recorder, self.queue, self.running, self._approvals)
        self._completion = CompletionRecorder(
            spec,
            tools,
            recorder,
            self.queue,
            self.recovery,
            self._admission,
            self.scopes,
            self._approvals,
            self._root,
            self._hooks,
        )
        self._budget = RunBudget(spec, recorder, self.clock, self.running)
        self._shutdown = Shutdown(spec, tools, recorder, self._budget)
        self._files = StepFiles(tools.worker, spec.superseded, self._shutdown.stop_unwritable)
        self._launcher = Launcher(spec, tools, self.state, self.scopes, self._files)
        self._commits = Commits(spec, tools, self.queue, self.scopes)
        self._controllers: dict[UnitId, Controller] = {}  # open ones
        self._when_durable: dict[Controller, None] = {}  # controllers that go on once everything staged is durable
        self._finished: list[tuple[Task, Outcome]] = []  # controllers that ended, and are not recorded yet
        self._bodies: dict[int, Body] = {}
        self._began = self._last_interval = self.clock.monotonic()
        self._interval_due = False  # a snapshot is due, once the progress records of the interval are durable

    def run(self, opening: ev.RunStarted | ev.RunResumed) -> RunResult:
        """Execute the plan to the end of this invocation. The result is recorded before this returns, if possible."""
        self.recorder.stage(opening)
        self.recovery.apply_plan(self._root)
        self._admission.restore()
        self._approvals.take_messages()
        restore_results(self.recorder, self.state, self.spec.work_dir)
        self._shutdown.check_budget()
        self._loop()
        result = self._result()
        if result.status in ("completed", "failed") and (self.spec.pipeline.finally_ or not self.queue.empty):
            result = self._run_final_hooks(result)
        reason = self._shutdown.cause if self._shutdown.reason else result.interruption
        for controller in reversed(list(self._controllers.values())):
            controller.interrupt(reason)
        return record_result(self.recorder, self.clock, result, self._began)

    def _run_final_hooks(self, result: RunResult) -> RunResult:
        """Run the final hooks after success or failure; only the rest if an earlier invocation was interrupted there."""
        pipeline = self.spec.pipeline
        in_doubt = [hook.id for hook in pipeline.finally_ if hook.id in self.queue.in_doubt]
        if in_doubt:
            reason = f"the outcome of {in_doubt[0]} is unknown"
            return RunResult(status="paused", reason=reason, cause="in-doubt", waiting_for=tuple(in_doubt))
        pending = PendingHooks(pipeline.finally_)
        if self.spec.plan.finally_interrupted:
            pending = pending_finally(pipeline, self.state)
        self._start_only_hooks(result.status)
        self._loop()  # clean-ups come first: those that a spent budget held back
        if not self._shutdown.is_draining:
            self.recovery.rerun_hooks(self._root.start_hooks(pending.hooks))
            self._loop()
        last = self._result()
        if last.status == "failed" and result.status == "failed" and not last.reason:
            last = msgspec.structs.replace(last, reason=result.reason, cause=result.cause)  # hooks answer no question
        return last

    def _result(self) -> RunResult:
        blocked = self._admission.pause(self._hooks) or self._admission.next_quota()
        return run_result(self.spec, self.recorder, self._root, self._shutdown.stop, blocked)

    def _status(self) -> str:
        """Return the value of `run.status` in expressions."""
        return self._shutdown.final_status or ("failed" if self._root.failed else self.state.status)

    def _loop(self) -> None:
        """Run tasks until none is ready, waiting or in flight, or until a shutdown has drained those in flight.

        Each pass is one batch: all outcomes that have arrived and the starts they release become durable in one
        write and one sync. An attempt is launched only after its start is durable; an outcome is reported only after
        it is durable.
        """
        while True:
            # First, stage the start of every ready task that is admitted.
            starts = self._stage_starts()

            # Second, make the batch durable; only then do controllers go on and attempts run.
            if self._flush(starts):
                self._continue_controllers()  # before anything else happens that is not durable yet
                self._launch(starts)
                self._record_finished_controllers()

            # Third, return if nothing is left to do; go on at once if controllers have released new tasks.
            idle = not self.running and not self._launcher.immediate and not self._files.waiting
            if self._shutdown.is_draining:
                if idle:
                    return
            elif self.recorder.has_staged or self._when_durable or self.queue.is_ready(self._has_room):
                continue
            elif idle and self.queue.empty:
                if not self._wait_for_answers():
                    return
                continue

            # Fourth, refresh checkpoint.json if that is due.
            if self._interval_due:
                self._interval_due = False
                self.recorder.snapshot("interval")
            self.recorder.snapshot_if_due()

            # Fifth, wait for an outcome, a file check, a signal or a timer, and stage what has come.
            for outcome in self._launcher.take_immediate() or self.tools.executor.wait(self._timeout):
                self._take_outcome(outcome)
            if self._files.busy:
                self._take_file_checks()
            if self.tools.signals.received and self._shutdown.take_signals(in_flight=bool(self.running)):
                self._files.give_up()
            self._record_finished_controllers()
            if self._approvals.expects_messages:
                self._approvals.take_messages()
            if self.clock.monotonic() - self._last_interval >= self.spec.pipeline.checkpoint.interval:
                self._record_interval()
            self._shutdown.check_budget()

    # Start

    def _stage_starts(self) -> list[Task]:
        """Stage the start of every ready task that is admitted, while there is room; return these tasks."""
        starts: list[Task] = []
        if self._shutdown.is_draining:
            writable = self.recorder.write_error is None and not self.recorder.degraded
            if not (self._shutdown.lets_cleanup_start and writable):
                return starts
            self.queue.keep(self._is_hook)
        for task in self.queue.pop_ready(self.clock.monotonic(), self._has_room):
            unit, step = self.state.unit(task.unit), task.step
            if not unit.settled and self._is_skip_requested(task):
                self._skip(task, "--skip", ev.Cause(kind="skip"))
                continue
            if step.inputs and task.unit not in self._files.examined:
                self._files.examine(task, self.scopes.of(task))
                continue
            if unit.settled and not self._must_rerun(task, unit):
                continue
            if self._is_skip_requested(task):
                self._skip(task, "--skip", ev.Cause(kind="skip"))
                continue
            if task.controls:
                self._reopen_controller(task, unit)
            elif unit.status == "failed" and unit.retry_at is None:
                self.recovery.invalidate(task.unit, FAILED_BEFORE)
            if step.when and self._skips(task):
                continue
            if not self._admission.idle and self._admission.blocks(task):
                continue
            if step.commit_required and not self._commits.reserve(task):
                continue
            self._stage_start(task, unit.attempts + 1)
            starts.append(task)
        return starts

    def _has_room(self) -> bool:
        waiting = self._files.counted if self._files.waiting else 0
        return self.running.counted + waiting < self.spec.options.parallel

    def _is_hook(self, task: Task) -> bool:
        return task.unit.step in self._hooks

    def _must_rerun(self, task: Task, unit: UnitState) -> bool:
        """Re-check a settled step after its dependencies ran; return False if it is reused, or still being checked."""
        why = task.parent.required(task)
        if not why:
            why = task.parent.outdated(task, unit, self.state) or self._files.changed(task, unit)
        lost = "" if why else self._files.reverify(task, unit)
        if why or lost:
            quarantined = self._files.quarantine(task, unit)
            if quarantined is not None:
                broken = Reason(f"{lost} while others ran", ev.Cause(kind="artifact"))
                self.recovery.invalidate(task.unit, why or broken, quarantined)
            return quarantined is not None
        if lost is not None:
            self.recorder.warn(f"{task.unit}: unchanged: its inputs are the same")
            self._files.forget(task)
            task.parent.settle(task, unit)
            task.parent.leave(task)
        return False

    def _reopen_controller(self, task: Task, unit: UnitState) -> None:
        """Before a controller starts: discard items that are out of date, reopen those that failed."""
        if unit.items is not None:
            why = task.parent.outdated(task, unit, self.state)
            if why:
                self.recovery.invalidate(task.unit, why)
                return
        if has_failed(task.step, unit):
            self.recovery.reopen_failed(task.unit)

    def _skips(self, task: Task) -> bool:
        """Settle a step whose `when` is false; return whether it is. A condition without a value fails as an attempt."""
        step = task.step
        try:
            if evaluate(step.when, self.scopes.of(task)):
                return False
        except ExpressionError:
            return False
        definition = self.spec.definition(step) if task.unit.item is None else ""
        self._skip(task, f"`when` is false ({step.when})", ev.Cause(kind="skipped"), definition)
        return True

    def _is_skip_requested(self, task: Task) -> bool:
        return bool(self.spec.execute.skip) and task.unit.item is None and task.step.id in self.spec.execute.skip

    def _skip(self, task: Task, reason: str, cause: ev.Cause, definition: str = "") -> None:
        """Settle a step as skipped."""
        path, item = task.unit
        if self.state.unit(task.unit).status != "pending":
            self.recovery.invalidate(task.unit, Reason(reason, cause))
        self._files.forget(task)
        self.recorder.stage(
            ev.StepSkipped(
                at=self.clock.now(), step=path, item=item, reason=reason, index=task.index, fingerprint=definition
            )
        )
        task.parent.settle(task, self.state.unit(task.unit))
        task.parent.leave(task)

    def _stage_start(self, task: Task, attempt: int) -> None:
        step, (path, item) = task.step, task.unit
        self.recorder.stage(
            ev.StepStarted(
                at=self.clock.now(),
                step=path,
                item=item,
                attempt=attempt,
                index=task.index,
                fingerprint=self._definition(task),
                head=self._commits.head(task) if step.commit_required else "",
                inputs=self._files.inputs(task) if step.inputs else (),
            )
        )
        self.running.add(task, attempt, self.clock.monotonic())

    def _definition(self, task: Task) -> str:
        """Return the fingerprint that a start records."""
        if task.unit.item is not None:
            return ""
        unit = self.state.unit(task.unit)
        if unit.items is not None and self.spec.execute.changes == "keep" and unit.fingerprint:
            return unit.fingerprint  # a controller that goes on keeps its own, so that the next plan sees the edit
        return self.spec.definition(task.step)

    def _flush(self, starts: Sequence[Task]) -> bool:
        """Make the batch durable; return False if it is not: nothing of it may be launched."""
        stops = self.spec.pipeline.checkpoint.on_error == "stop"
        try:
            self.recorder.flush()
        except StateUnwritable as error:
            if stops:
                self._shutdown.drain(error.message)
                self._unlaunch(starts, "not launched: its start could not be recorded")
                return False
            self.recorder.warn(f"{error.message}; continuing without a record (`checkpoint.on_error: warn`)")
        if self.recorder.degraded and stops and not self._shutdown.reason:
            self._shutdown.drain(self.recorder.degraded)
            self._unlaunch(starts, f"not launched: {self.recorder.degraded}")
            return False
        return True

    def _unlaunch(self, starts: Sequence[Task], reason: str) -> None:
        for task in starts:
            self.running.remove(task.unit)
            self.recovery.invalidate(task.unit, Reason(reason, ev.Cause(kind="invalidated")), reopened=True)

    def _launch(self, starts: Sequence[Task]) -> None:
        controllers = [task for task in starts if self._launcher.launch(task, self.running.attempt(task.unit))]
        for task in controllers:
            self.running.remove(task.unit)
            self._open_controller(task)

    # Wait

    def _timeout(self) -> float:
        """Return how many seconds the executor may wait."""
        now = self.clock.monotonic()
        timeout = self._last_interval + self.spec.pipeline.checkpoint.interval - now
        snapshot_due = self.recorder.snapshot_due()
        if snapshot_due is not None:  # checkpoint.json catches up while a long step runs
            timeout = min(timeout, snapshot_due - now)
        if self._files.busy or self._approvals.expects_messages:
            timeout = min(timeout, 1.0)
        if not self._shutdown.is_draining:
            timers = (self._budget.due(), self.queue.next_due())
            timeout = min(timeout, *(due - now for due in timers if due is not None), timeout)
        return max(timeout, 0.0)

    def _wait_for_answers(self) -> bool:
        """Ask the person at the terminal, now that nothing else is left; return whether anything goes on."""
        if self._admission.unblock_due() or self._approvals.take_messages():
            return True
        ask, answered = self.tools.ask, False
        if ask is not None:
            answered = self._approvals.prompt(ask, lambda: self._admission.unblock_due() or self._budget.is_out_of_time())
        if self.tools.signals.received:
            self._shutdown.take_signals(in_flight=False)
        self._shutdown.check_budget()
        return answered

    def _record_interval(self) -> None:
        """Record the progress of attempts in flight, once per `checkpoint.interval`."""
        self._last_interval = self.clock.monotonic()
        self._admission.recheck_clock()
        record_progress(self.spec, self.recorder, self.clock, self.running)
        self._admission.check_budgets()
        self._interval_due = True

    # Record

    def _take_outcome(self, outcome: Outcome) -> None:
        task, attempt, _ = self.running.remove(outcome.unit)
        controller = self._controllers.get(outcome.unit)
        if controller is not None:  # of an attempt that the controller ran itself
            controller.take_outcome(outcome)
        else:
            self._end(task, attempt, outcome)

    def _take_file_checks(self) -> None:
        for task, check in self._files.finished():
            if task is not None:
                self._take_file_check(task, check)
                continue
            sealed, attempt, _ = self.running.remove(check.unit)
            outcome = self._files.sealed(check)
            for warning in check.warnings:
                self.recorder.warn(f"{check.unit}: {warning}")
            self._record_end(sealed, attempt, outcome, check.artifacts)
        for line in self._files.slow(self.clock.monotonic()):
            self.recorder.warn(line)

    def _take_file_check(self, task: Task, check: FileCheck) -> None:
        """Queue a task again whose files were checked before its start."""
        if check.found:
            step, item = task.unit
            self.recorder.stage(
                ev.ArtifactsRestored(
                    at=self.clock.now(),
                    step=step,
                    item=item,
                    found=check.found,
                    artifacts=check.artifacts,
                    quarantined=check.quarantined,
                )
            )
            self.recorder.warn(f"{task.unit}: restored {', '.join(check.found)}, which another step had damaged")
        if not check.given_up:
            self.queue.push_front(task)

    def _end(self, task: Task, attempt: int, outcome: Outcome) -> None:
        """Record the end of an attempt, once its commit is proved and its artifacts are sealed."""
        step = task.step
        for warning in outcome.warnings:
            self.recorder.warn(f"{task.unit}: {warning}")
        if outcome.status == "ok" and step.commit_required:
            outcome = self._commits.prove(task, outcome, self.state.unit(outcome.unit).head)
        if outcome.status == "ok" and step.artifacts:
            problem = self._files.seal(task, outcome, self.scopes.of(task), self._began_at(task, outcome))
            if not problem:
                self.running.add(task, attempt, self.clock.monotonic())  # until its artifacts are sealed
                record_cost(self.recorder, self.clock, task, attempt, outcome)
                return
            outcome = msgspec.structs.replace(outcome, status="failed", type="ArtifactInvalid", message=problem)
        self._record_end(task, attempt, outcome)

    def _began_at(self, task: Task, outcome: Outcome) -> datetime | None:
        """Return when an attempt began, by the wall clock then or now, whichever is earlier: it may have been set."""
        began = self.state.unit(task.unit).started_at
        return min(began, self.clock.now() - timedelta(seconds=outcome.duration)) if began else None

    def _record_end(
        self, task: Task, attempt: int, outcome: Outcome, artifacts: tuple[ev.ArtifactRecord, ...] = ()
    ) -> None:
        if not self._admission.idle:
            self._admission.finish(task, outcome)
        match outcome.status:
            case "ok":
                self._completion.complete(task, attempt, outcome, artifacts)
            case "stopped":
                overspent = self._admission.was_overspent(task)
                cause = "its budget" if overspent else self._shutdown.cause
                self._completion.interrupt(task, attempt, outcome, cause)
                if overspent:
                    self.queue.push(task)
            case "failed":
                permanently = self._completion.fail(task, attempt, outcome)
                if permanently and task.parent is self._root and self.spec.options.fail_fast:
                    self._fail_fast()
        if task.step.commit_required and self.state.unit(task.unit).retry_at is None:
            self._commits.release(task.unit)

    def _fail_fast(self) -> None:
        if not self._shutdown.final_status:
            self._start_only_hooks()
            self.tools.executor.stop(STOP_GRACE, spare=self._hooks)

    def _start_only_hooks(self, final_status: str = "") -> None:
        """Start no more steps in this invocation."""
        self._shutdown.start_only_hooks(final_status)
        self._root.halt()
        for tasks in (self.queue, self._admission, self._commits):
            tasks.keep(self._is_hook)

    # Controllers: what a ControllerHost does for them

    @property
    def is_stopping(self) -> bool:
        return self._shutdown.is_stopping

    def stop_unwritable(self, reason: str) -> bool:
        return self._shutdown.stop_unwritable(reason)

    def body(self, task: Task) -> Body:
        key = id(task.step)
        if key not in self._bodies:
            last = task.step.action.finally_ if isinstance(task.step.action, Subpipeline) else ()
            self._bodies[key] = Body(task.step.body, last, self.spec.pipeline.env)
        return self._bodies[key]

    def run_own_attempt(self, task: Task, attempt: Attempt, work: Work) -> None:
        self.running.add(task, attempt.number, self.clock.monotonic())
        self.tools.executor.start(attempt, work)

    def when_durable(self, controller: Controller) -> None:
        self._when_durable[controller] = None

    def finish(self, task: Task, outcome: Outcome) -> None:
        self._finished.append((task, outcome))

    def _open_controller(self, task: Task) -> None:
        """Open the controller of a task whose start is durable."""
        match task.step.action:
            case Loop():
                controller: Controller = LoopController(self, task)
            case Subpipeline():
                controller = SubpipelineController(self, task)
            case _:
                controller = MapController(self, task)
        self._controllers[task.unit] = controller
        try:
            controller.evaluate_env()
        except ExpressionError as error:
            controller.end("failed", type="ExpressionError", message=f"`env`: {error}", retryable=False)
            return
        controller.begin()

    def _continue_controllers(self) -> None:
        """Continue the controllers that waited for their records to become durable."""
        if self._when_durable:
            controllers, self._when_durable = self._when_durable, {}
            for controller in controllers:
                controller.on_durable()

    def _record_finished_controllers(self) -> None:
        while self._finished:
            task, outcome = self._finished.pop(0)
            self._controllers.pop(task.unit, None)
            self._admission.forget_inside(task.unit)
            self._end(task, self.state.unit(task.unit).attempts, outcome)
