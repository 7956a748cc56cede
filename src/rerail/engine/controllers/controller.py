"""Steps that have other steps run: what they share, and inner pipelines; maps are in `fanout`, loops in `loops`.

A controller opens frames and is told when one is over. It never runs anything itself, and what it decides follows from
the state alone: after a crash the next life asks the same questions and gets the same answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import msgspec

from rerail.core import events as ev
from rerail.core.expressions import language
from rerail.core.expressions.language import ExpressionError
from rerail.core.expressions.render import NOTHING
from rerail.core.items import COMPLETED, FAILED, ranges
from rerail.core.model import Subpipeline
from rerail.core.params import resolve
from rerail.core.state import Unit, name
from rerail.core.values import Usage
from rerail.engine.desk import Desk
from rerail.engine.frame import Frame
from rerail.engine.launch import declared_env
from rerail.engine.ready_queue import Task
from rerail.ports import Outcome


class Controller(ABC):
    """A step whose work is other steps."""

    def __init__(self, desk: Desk, task: Task) -> None:
        self.desk = desk
        self.task = task
        self.step = task.step
        self.unit = task.unit
        self.state = desk.state
        assert isinstance(task.home, Frame)
        self.outer: Frame = task.home
        self._began = desk.clock.monotonic()
        self._open: dict[Unit, tuple[Frame, float]] = {}  # groups under way, and since when
        self.env = NOTHING  # what it gives to the steps inside it
        self.used = Usage()  # in its own name

    def settle_env(self) -> None:
        """Evaluate the variables it gives to the steps inside it, where it stands; raises ExpressionError."""
        self.env = self.outer.env.within(self.step.env, self.desk.view.of(self.task))

    @abstractmethod
    def begin(self) -> None:
        """Its start is durable: have something run."""

    @abstractmethod
    def frame_over(self, frame: Frame) -> None:
        """A frame of it came to its end."""

    def frame_blocked(self, frame: Frame) -> None:  # noqa: ARG002 - it has but one at a time
        """Something outside the run has to happen first: whatever else can run around it goes on."""
        self.outer.set_aside(self.task)

    def frame_unblocked(self, frame: Frame) -> None:  # noqa: ARG002 - likewise
        """It has happened."""
        self.outer.take_back(self.task)

    def open_frame(self, frame: Frame) -> None:
        """Have the steps of a frame run, or go on where they were."""
        frame.owner = self
        self.desk.past.open(frame)
        frame.tell()

    def open_group(self, index: int, item: str, values: Mapping[str, Any], previous: str | None = None) -> None:
        """Start an item or iteration of several steps."""
        unit = (self.step.id, item)
        known = self.state.unit(unit)
        now = self.desk.clock
        self.desk.recorder.stage(
            ev.StepStarted(at=now.now(), step=unit[0], item=item, attempt=known.attempts + 1, index=index)
        )
        frame = Frame(self.desk.body(self.task), self.desk.turns, self.outer, item)
        frame.env = self.env
        frame.values = {**self.outer.values, **values}
        frame.previous = previous
        frame.counted = self.counts_inside
        self._open[unit] = (frame, now.monotonic())
        self.open_frame(frame)

    @property
    def counts_inside(self) -> bool:
        """Whether what runs in it counts against the width of the run."""
        return self.outer.counted

    def has_last_hooks(self, frame: Frame) -> bool:
        """Whether a frame that seems over has hooks that come last."""
        hooks = frame.last_hooks()
        self.desk.past.start_anew(hooks)
        return bool(hooks)

    def close_group(self, frame: Frame, outputs: dict[str, Any] | None, *, allowed: bool = False) -> None:
        """Record how an item or iteration came out: with outputs it completed."""
        unit: Unit = (self.step.id, frame.item)
        _, since = self._open.pop(unit)
        now, took = self.desk.clock.now(), round(self.desk.clock.monotonic() - since, 6)
        attempt = self.state.unit(unit).attempts
        if outputs is not None:
            self.desk.recorder.stage(
                ev.StepCompleted(at=now, step=unit[0], item=unit[1], attempt=attempt, duration=took, outputs=outputs)
            )
            return
        self.desk.recorder.stage(
            ev.StepFailed(
                at=now,
                step=unit[0],
                item=unit[1],
                attempt=attempt,
                duration=took,
                error=self.failure(frame, self.unit[0], frame.item),
                allowed=allowed,
            )
        )

    def failure(self, frame: Frame, step: str, item: str | None) -> ev.Failure:
        """Why a frame failed, told as the failure of what it is the frame of."""
        now = self.desk.clock.now()
        cause = self.state.unit(frame.first_failure).error if frame.first_failure else None
        if cause is None:
            return ev.Failure(type="Unfinished", message="not all of its steps could run", step=step, item=item, at=now)
        local = cause.step.rpartition("/")[2]
        return msgspec.structs.replace(cause, message=f"{local}: {cause.message}", step=step, item=item, at=now)

    def end(self, status: Any, **how: Any) -> None:
        """Come to an end; the loop records it as it does for any step."""
        took = self.desk.clock.monotonic() - self._began
        how |= {"metrics": self.used.metrics, "models": self.used.models}
        self.desk.ends.append((self.task, Outcome(unit=self.unit, status=status, duration=took, **how)))

    def fail_as(self, failure: ev.Failure) -> None:
        """Come to an end for the reason that something in it did."""
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
        """This life ends before it does."""
        now = self.desk.clock.now()
        for unit in (*self._open, self.unit):
            known = self.state.unit(unit)
            if known.status == "running":
                used = self.used if unit == self.unit else Usage()
                self.desk.recorder.stage(
                    ev.StepInterrupted(
                        at=now,
                        step=unit[0],
                        item=unit[1],
                        attempt=known.attempts,
                        reason=reason,
                        metrics=used.metrics,
                        models=used.models,
                    )
                )

    def handed_out(self, frame: Frame) -> dict[str, Any]:
        """What the steps of a frame handed out, the later over the earlier."""
        outputs: dict[str, Any] = {}
        for step in frame.body.steps:
            known = self.state.unit((step.id, frame.item))
            if known.status == "completed":
                outputs |= known.outputs
        return outputs

    def begin_anew(self, why: str) -> None:
        """Give everything inside up: what is known of it can no longer be told to be its own."""
        self.desk.recorder.warn(f"{name(self.unit)}: {why}; it begins anew")
        attempt = self.state.unit(self.unit).attempts + 1
        self.desk.past.invalidate(self.unit, why)
        self.desk.recorder.stage(
            ev.StepStarted(
                at=self.desk.clock.now(),
                step=self.unit[0],
                item=self.unit[1],
                attempt=attempt,
                fingerprint=self.desk.definition(self.step) if self.unit[1] is None else "",
            )
        )

    def list_nothing(self, total: int, *, carries: bool) -> None:
        """Record that it has begun, or that there may be more iterations than were said; nobody lists them."""
        items = self.state.unit(self.unit).items
        if items is not None and items.total >= total:
            return
        self.desk.recorder.stage(
            ev.ItemsListed(
                at=self.desk.clock.now(),
                step=self.unit[0],
                item=self.unit[1],
                total=total,
                carries=carries,
                completed=ranges(items.marks, COMPLETED) if items else "",
                failed=ranges(items.marks, FAILED) if items else "",
            )
        )


class SubpipelineController(Controller):
    """The steps of another pipeline, in this run."""

    def settle_env(self) -> None:
        # In there `params` are others: what this pipeline gives to all steps is evaluated before they go in.
        env = declared_env(self.desk.job, self.task)
        self.env = self.outer.env.within(env, self.desk.view.of(self.task))

    def begin(self) -> None:
        action = self.step.action
        assert isinstance(action, Subpipeline)
        try:
            given = language.render_value(action.arguments, self.desk.view.of(self.task))
        except ExpressionError as error:
            self.end("failed", type="ExpressionError", message=str(error), retryable=False)
            return
        params, problems = resolve(action.params, given)
        if problems:
            self.end("failed", type="ParamsInvalid", message="; ".join(problems), retryable=False)
            return
        self.list_nothing(0, carries=False)
        frame = Frame(self.desk.body(self.task), self.desk.turns, None, self.unit[1])
        frame.env = self.env
        frame.values = {"params": params}
        frame.counted = self.counts_inside
        self.open_frame(frame)

    def frame_over(self, frame: Frame) -> None:
        if self.has_last_hooks(frame):
            return
        if frame.failed or not frame.complete:
            self.fail_as(self.failure(frame, *self.unit))
            return
        action = self.step.action
        assert isinstance(action, Subpipeline)
        try:
            outputs = language.render_value(action.outputs, self.desk.view.scope(frame, frame.values))
        except ExpressionError as error:
            self.end("failed", type="ExpressionError", message=f"outputs: {error}", retryable=False)
            return
        self.end("ok", outputs=outputs)
