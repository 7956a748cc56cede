"""Controllers: steps that run other steps. The base class, and nested pipelines.

A controller opens frames and reacts when one is done. It decides from the state alone: after a crash the next
invocation comes to the same decisions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from rerail.core import events as ev
from rerail.core.events import Cause, Reason
from rerail.core.expressions import language
from rerail.core.expressions.language import ExpressionError
from rerail.core.expressions.render import NOTHING
from rerail.core.items import COMPLETED, FAILED, ranges
from rerail.core.model import Subpipeline
from rerail.core.params import resolve
from rerail.core.state import RunState
from rerail.core.unit_id import UnitId, local_step
from rerail.core.values import Usage
from rerail.engine.frame import Body, Frame
from rerail.engine.launch import declared_env
from rerail.engine.ready_queue import ReadyQueue, RunningTasks, Task
from rerail.engine.recorder import Recorder
from rerail.engine.recovery import Recovery
from rerail.engine.scopes import ScopeBuilder
from rerail.engine.spec import RunSpec, Toolbox
from rerail.ports import Attempt, Clock, Outcome, Work


class ControllerHost(Protocol):
    """The part of the runner that controllers use."""

    @property
    def spec(self) -> RunSpec: ...
    @property
    def tools(self) -> Toolbox: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def recorder(self) -> Recorder: ...
    @property
    def state(self) -> RunState: ...
    @property
    def queue(self) -> ReadyQueue: ...
    @property
    def running(self) -> RunningTasks: ...
    @property
    def recovery(self) -> Recovery: ...
    @property
    def scopes(self) -> ScopeBuilder: ...

    @property
    def is_stopping(self) -> bool:
        """Whether no more frames may be opened."""

    def stop_unwritable(self, reason: str) -> bool:
        """Stop because something of the run cannot be made durable; return False if the run goes on without it."""

    def body(self, task: Task) -> Body:
        """Return the body of a controller, the same for all its frames."""

    def run_own_attempt(self, task: Task, attempt: Attempt, work: Work) -> None:
        """Run an attempt of the controller itself; its outcome arrives in `take_outcome`."""

    def when_durable(self, controller: Controller) -> None:
        """Call `on_durable` once everything staged so far is durable."""

    def finish(self, task: Task, outcome: Outcome) -> None:
        """Record the end of a controller as the end of any other step."""


class Controller(ABC):
    """Step that runs other steps."""

    def __init__(self, host: ControllerHost, task: Task) -> None:
        self.host = host
        self.task = task
        self.step = task.step
        self.unit = task.unit
        self.state = host.state
        assert isinstance(task.parent, Frame)
        self.outer: Frame = task.parent
        self._began = host.clock.monotonic()
        self._open: dict[UnitId, tuple[Frame, float]] = {}  # items or iterations in flight, and since when
        self.env = NOTHING  # variables of the steps inside it
        self.used = Usage()  # of its own attempt

    def evaluate_env(self) -> None:
        """Evaluate the variables of the steps inside, in the scope of the controller; raises ExpressionError."""
        self.env = self.outer.env.within(self.step.env, self.host.scopes.of(self.task))

    @abstractmethod
    def begin(self) -> None:
        """Open the first frames; the start of the controller is durable."""

    @abstractmethod
    def frame_over(self, frame: Frame) -> None:
        """React to a frame that is done."""

    def frame_blocked(self, frame: Frame) -> None:  # noqa: ARG002 - there is one at a time
        """Block the controller with its frame; steps beside it go on."""
        self.outer.block(self.task)

    def frame_unblocked(self, frame: Frame) -> None:  # noqa: ARG002 - likewise
        """Unblock the controller with its frame."""
        self.outer.unblock(self.task)

    def open_frame(self, frame: Frame) -> None:
        """Run the steps of a frame, from where an earlier invocation left it."""
        frame.owner = self
        self.host.recovery.open(frame)
        frame.report()

    def take_outcome(self, outcome: Outcome) -> None:
        """Take the outcome of an attempt of the controller itself."""
        raise NotImplementedError

    def on_durable(self) -> None:
        """Go on: the records that the controller waited for are durable."""
        raise NotImplementedError

    def open_group(self, index: int, unit: UnitId, values: Mapping[str, Any], previous: str | None = None) -> None:
        """Start an item or iteration of several steps."""
        record = self.state.unit(unit)
        now = self.host.clock
        self.host.recorder.stage(
            ev.StepStarted(at=now.now(), step=unit.step, item=unit.item, attempt=record.attempts + 1, index=index)
        )
        frame = Frame(self.host.body(self.task), self.host.queue, self.outer, unit.item)
        frame.env = self.env
        frame.values = {**self.outer.values, **values}
        frame.previous = previous
        frame.counted = self.counts_inside
        self._open[unit] = (frame, now.monotonic())
        self.open_frame(frame)

    @property
    def counts_inside(self) -> bool:
        """Whether the tasks inside count against the parallelism of the run."""
        return self.outer.counted

    def starts_final_hooks(self, frame: Frame) -> bool:
        """Queue the final hooks of a frame that is done otherwise; return whether there are any."""
        hooks = frame.start_final_hooks()
        self.host.recovery.rerun_hooks(hooks)
        return bool(hooks)

    def close_group(self, frame: Frame, outputs: dict[str, Any] | None, *, allowed: bool = False) -> None:
        """Record the end of an item or iteration: completed if there are outputs, failed if they are None."""
        unit = UnitId(self.step.id, frame.item)
        _, since = self._open.pop(unit)
        now, took = self.host.clock.now(), round(self.host.clock.monotonic() - since, 6)
        attempt = self.state.unit(unit).attempts
        if outputs is not None:
            self.host.recorder.stage(
                ev.StepCompleted(at=now, step=unit.step, item=unit.item, attempt=attempt, duration=took, outputs=outputs)
            )
            return
        self.host.recorder.stage(
            ev.StepFailed(
                at=now,
                step=unit.step,
                item=unit.item,
                attempt=attempt,
                duration=took,
                error=self.failure(frame, self.unit.step, frame.item),
                allowed=allowed,
            )
        )

    def failure(self, frame: Frame, step: str, item: str | None) -> ev.Failure:
        """Return the failure of a frame as that of its item, iteration or controller."""
        now = self.host.clock.now()
        cause = self.state.unit(frame.first_failure).error if frame.first_failure else None
        if cause is None:
            return ev.Failure(type="Unfinished", message="not all of its steps could run", step=step, item=item, at=now)
        local = local_step(cause.step)
        return msgspec.structs.replace(cause, message=f"{local}: {cause.message}", step=step, item=item, at=now)

    def end(self, status: Any, **outcome: Any) -> None:
        """End the controller."""
        took = self.host.clock.monotonic() - self._began
        outcome |= {"metrics": self.used.metrics, "models": self.used.models}
        self.host.finish(self.task, Outcome(unit=self.unit, status=status, duration=took, **outcome))

    def fail_as(self, failure: ev.Failure) -> None:
        """End the controller with a failure from inside it."""
        self.end(
            "failed",
            type=failure.type,
            message=failure.message,
            exit_code=failure.exit_code,
            signal=failure.signal,
            stderr_tail=failure.stderr_tail,
            traceback=failure.traceback,
        )

    def interrupt(self, reason: str) -> None:
        """Record that this invocation ends before the controller does."""
        now = self.host.clock.now()
        for unit in (*self._open, self.unit):
            record = self.state.unit(unit)
            if record.status == "running":
                used = self.used if unit == self.unit else Usage()
                self.host.recorder.stage(
                    ev.StepInterrupted(
                        at=now,
                        step=unit.step,
                        item=unit.item,
                        attempt=record.attempts,
                        reason=reason,
                        metrics=used.metrics,
                        models=used.models,
                    )
                )

    def frame_outputs(self, frame: Frame) -> dict[str, Any]:
        """Return the outputs of the steps of a frame; later steps override earlier ones."""
        outputs: dict[str, Any] = {}
        for step in frame.body.steps:
            record = self.state.unit(UnitId(step.id, frame.item))
            if record.status == "completed":
                outputs |= record.outputs
        return outputs

    def restart(self, why: str) -> None:
        """Discard everything inside: its records can no longer be matched with items."""
        self.host.recorder.warn(f"{self.unit}: {why}; restarting it")
        attempt = self.state.unit(self.unit).attempts + 1
        self.host.recovery.invalidate(self.unit, Reason(why, Cause(kind="record-lost")))
        self.host.recorder.stage(
            ev.StepStarted(
                at=self.host.clock.now(),
                step=self.unit.step,
                item=self.unit.item,
                attempt=attempt,
                fingerprint=self.host.spec.definition(self.step) if self.unit.item is None else "",
            )
        )

    def record_total(self, total: int, *, is_loop: bool) -> None:
        """Record the number of iterations without a list of them, when it begins or when there may be more."""
        items = self.state.unit(self.unit).items
        if items is not None and items.total >= total:
            return
        self.host.recorder.stage(
            ev.ItemsListed(
                at=self.host.clock.now(),
                step=self.unit.step,
                item=self.unit.item,
                total=total,
                is_loop=is_loop,
                completed=ranges(items.marks, COMPLETED) if items else "",
                failed=ranges(items.marks, FAILED) if items else "",
            )
        )


class SubpipelineController(Controller):
    """Controller of a `pipeline` step: the steps of another file, in this run."""

    def evaluate_env(self) -> None:
        # Inside, `params` are others: the variables of this pipeline are evaluated out here.
        env = declared_env(self.host.spec, self.task)
        self.env = self.outer.env.within(env, self.host.scopes.of(self.task))

    def begin(self) -> None:
        action = self.step.action
        assert isinstance(action, Subpipeline)
        try:
            given = language.render_value(action.arguments, self.host.scopes.of(self.task))
        except ExpressionError as error:
            self.end("failed", type="ExpressionError", message=str(error), retryable=False)
            return
        params, problems = resolve(action.params, given)
        if problems:
            self.end("failed", type="ParamsInvalid", message="; ".join(problems), retryable=False)
            return
        self.record_total(0, is_loop=False)
        frame = Frame(self.host.body(self.task), self.host.queue, None, self.unit.item)
        frame.env = self.env
        frame.values = {"params": params}
        frame.counted = self.counts_inside
        self.open_frame(frame)

    def frame_over(self, frame: Frame) -> None:
        if self.starts_final_hooks(frame):
            return
        if frame.failed or not frame.complete:
            self.fail_as(self.failure(frame, *self.unit))
            return
        action = self.step.action
        assert isinstance(action, Subpipeline)
        try:
            outputs = language.render_value(action.outputs, self.host.scopes.scope(frame, frame.values))
        except ExpressionError as error:
            self.end("failed", type="ExpressionError", message=f"outputs: {error}", retryable=False)
            return
        self.end("ok", outputs=outputs)
