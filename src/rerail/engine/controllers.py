"""Steps that have other steps run: loops and inner pipelines here, maps in `fanout`.

A controller opens frames and is told when one is over. It never runs anything itself, and what it decides follows from
the state alone: after a crash the next life asks the same questions and gets the same answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import msgspec

from rerail.core import events as ev
from rerail.core import template
from rerail.core.items import COMPLETED, FAILED, joined, ranges
from rerail.core.model import Inner, Loop
from rerail.core.params import resolve
from rerail.core.progress import is_better, watched
from rerail.core.state import Unit
from rerail.core.template import ExpressionError, Scope
from rerail.engine.desk import Desk
from rerail.engine.frame import Frame
from rerail.engine.tasks import Task
from rerail.ports import Outcome

_TELLING = ("step-completed", "step-failed", "step-invalidated")  # what tells how a loop got on


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

    @abstractmethod
    def begin(self) -> None:
        """Its start is durable: have something run."""

    @abstractmethod
    def frame_over(self, frame: Frame) -> None:
        """A frame of it came to its end."""

    def frame_blocked(self, frame: Frame) -> None:  # noqa: B027 - most have nothing to do about it
        """A person has to judge first: whatever else can run goes on."""

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
                self.desk.recorder.stage(
                    ev.StepInterrupted(at=now, step=unit[0], item=unit[1], attempt=known.attempts, reason=reason)
                )

    def handed_out(self, frame: Frame) -> dict[str, Any]:
        """What the steps of a frame handed out, the later over the earlier."""
        outputs: dict[str, Any] = {}
        for step in frame.body.steps:
            known = self.state.unit((step.id, frame.item))
            if known.status == "completed":
                outputs |= known.outputs
        return outputs

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


class InnerRun(Controller):
    """The steps of another pipeline, in this run."""

    def begin(self) -> None:
        action = self.step.action
        assert isinstance(action, Inner)
        try:
            given = template.render_value(action.arguments, self.desk.view.of(self.task))
        except ExpressionError as error:
            self.end("failed", type="ExpressionError", message=str(error), retryable=False)
            return
        params, problems = resolve(action.params, given)
        if problems:
            self.end("failed", type="ParamsInvalid", message="; ".join(problems), retryable=False)
            return
        self.list_nothing(0, carries=False)
        frame = Frame(self.desk.body(self.task), self.desk.turns, None, self.unit[1])
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
        assert isinstance(action, Inner)
        try:
            outputs = template.render_value(action.outputs, self.desk.view.scope(frame, frame.values))
        except ExpressionError as error:
            self.end("failed", type="ExpressionError", message=f"outputs: {error}", retryable=False)
            return
        self.end("ok", outputs=outputs)


class LoopRun(Controller):
    """The same steps again and again."""

    def __init__(self, desk: Desk, task: Task) -> None:
        super().__init__(desk, task)
        self._trail_so_far: list[Any] = []
        self._patient_until = 0  # iterations that do not count as without progress: a person wants it to go on

    def begin(self) -> None:
        action = self.step.action
        assert isinstance(action, Loop)
        self.list_nothing(action.max_iterations, carries=True)
        items = self.state.unit(self.unit).items
        assert items is not None
        done = items.completed
        if done and self._is_over(done):
            return
        self._iterate(done)

    def _frame_of(self, iteration: int) -> Frame:
        """Names as they are after an iteration, for what decides whether there is another."""
        frame = Frame(self.desk.body(self.task), self.desk.turns, self.outer, joined(self.unit[1], str(iteration)))
        frame.values = {**self.outer.values, "loop": {"iteration": iteration}}
        return frame

    def _iterate(self, done: int) -> None:
        """Begin or go on with the iteration after so many."""
        action = self.step.action
        assert isinstance(action, Loop)
        if action.while_ and not self._holds("while", action.while_, done):
            return
        if done >= action.max_iterations:
            self._exhausted(action)
            return
        values = {"loop": {"iteration": done + 1}}
        previous = joined(self.unit[1], str(done)) if done else None
        self.open_group(done, joined(self.unit[1], str(done + 1)), values, previous)

    def _exhausted(self, action: Loop) -> None:
        wanted = f"`until: {action.until}` does not hold" if action.until else f"`while: {action.while_}` still holds"
        message = f"{wanted} after {action.max_iterations} iterations; raise max_iterations, then resume"
        self.end("failed", type="LoopExhausted", message=message, retryable=False)

    def _holds(self, what: str, expression: str, done: int) -> bool:
        """Whether a condition holds after so many iterations; if not, or if it has no value, the loop is at its end."""
        try:
            holds = bool(template.evaluate(expression, self._scope(done)))
        except ExpressionError as error:
            hint = (
                "" if done else "; before the first iteration nothing was handed out: `| default(…)` says what holds then"
            )
            self.end("failed", type="ExpressionError", message=f"`{what}`: {error}{hint}", retryable=False)
            return False
        if not holds:
            self._completed(done)
        return holds

    def _scope(self, done: int) -> Scope:
        frame = self._frame_of(max(done, 1))
        return self.desk.view.scope(frame, frame.values)

    def _is_over(self, done: int) -> bool:
        """Whether the loop ends after so many iterations; if so it has come to its end."""
        action = self.step.action
        assert isinstance(action, Loop)
        if action.until:
            try:
                if template.evaluate(action.until, self._scope(done)):
                    self._completed(done)
                    return True
            except ExpressionError as error:
                self.end("failed", type="ExpressionError", message=f"`until`: {error}", retryable=False)
                return True
        if action.stop_if_no_progress and self._stalls(action):
            message = f"no progress in {action.stop_if_no_progress} iterations: {self._trail(action)}"
            self.end("failed", type="NoProgress", message=message, retryable=False)
            return True
        if done >= action.max_iterations:
            if action.until:
                self._exhausted(action)
            elif action.while_:
                self._iterate(done)
            else:
                self._completed(done)
            return True
        return False

    def _completed(self, done: int) -> None:
        outputs = self.handed_out(self._frame_of(done)) if done else {}
        self.end("ok", outputs={**outputs, "iterations": done})

    def _progress(self, action: Loop, frame: Frame) -> Any:
        """What an iteration is judged by: what `until` compares, or else all that it handed out."""
        expression = watched(action.until)
        if expression:
            try:
                return template.evaluate(expression, self.desk.view.scope(frame, frame.values))
            except ExpressionError:
                return self.handed_out(frame)
        return self.handed_out(frame)

    def _past_progress(self) -> list[Any]:
        """What each iteration was judged by; read from the journal once, then kept."""
        items = self.state.unit(self.unit).items
        done = items.completed if items else 0
        if len(self._trail_so_far) != done:
            self._read_progress(done)
        return self._trail_so_far

    def _read_progress(self, done: int) -> None:
        """Learn from the journal alone, so that a crash changes nothing about it."""
        found: dict[str, Any] = {}
        for event in self.desk.recorder.find(_TELLING, self.step.id):
            match event:
                case ev.StepCompleted(item=str(item), outputs=outputs):
                    found[item] = outputs.get("progress")
                case ev.StepFailed(error=error) if event.unit == self.unit and error.type == "NoProgress":
                    mine = (joined(self.unit[1], str(number + 1)) for number in range(done))
                    self._patient_until = sum(name in found for name in mine)  # whoever resumed it wanted it to go on
                case ev.StepInvalidated(reopened=False) if event.unit == self.unit:
                    found, self._patient_until = {}, 0
                case _:
                    pass
        self._trail_so_far = [found.get(joined(self.unit[1], str(number + 1))) for number in range(done)]

    def _stalls(self, action: Loop) -> bool:
        trail, since = self._past_progress(), 0
        best: Any = msgspec.UNSET
        for number, value in enumerate(trail, 1):
            if number <= self._patient_until:
                best = value if best is msgspec.UNSET or is_better(value, best, action.until) else best
            elif best is msgspec.UNSET or is_better(value, best, action.until):
                best, since = value, 0
            else:
                since += 1
        return since >= action.stop_if_no_progress

    def _trail(self, action: Loop) -> str:
        trail = self._past_progress()[-action.stop_if_no_progress - 1 :]
        return ", ".join(template.as_text(value)[:40] for value in trail)

    def frame_over(self, frame: Frame) -> None:
        action = self.step.action
        assert isinstance(action, Loop)
        if frame.failed or not frame.complete:
            failure = self.failure(frame, *self.unit)
            self.close_group(frame, None)
            iteration = frame.values["loop"]["iteration"]
            self.fail_as(msgspec.structs.replace(failure, message=f"iteration {iteration}: {failure.message}"))
            return
        outputs = self.handed_out(frame)
        if action.stop_if_no_progress:
            outputs["progress"] = self._progress(action, frame)
            self._past_progress().append(outputs["progress"])
        self.close_group(frame, outputs)
        self.desk.due.append(self)

    def conclude(self) -> None:
        """An iteration is durable: decide about the next."""
        if self.desk.stopping:
            return
        action = self.step.action
        items = self.state.unit(self.unit).items
        assert isinstance(action, Loop)
        assert items is not None
        done = items.completed
        if self._is_over(done):
            return
        if action.while_ and done < action.max_iterations and not self._holds("while", action.while_, done):
            return
        if action.delay:
            self.desk.turns.wait(lambda: self._iterate(done), self.desk.clock.monotonic() + action.delay)
        else:
            self._iterate(done)
