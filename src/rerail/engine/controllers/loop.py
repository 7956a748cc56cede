"""Loops. Whether there is another iteration follows from state and journal alone."""

from __future__ import annotations

from typing import Any

import msgspec

from rerail.core import events as ev
from rerail.core.expressions import language
from rerail.core.expressions.language import ExpressionError, Scope
from rerail.core.model import Loop, Map
from rerail.core.progress import is_better, watched
from rerail.core.retry import remaining
from rerail.core.unit_id import UnitId
from rerail.engine.controllers.controller import Controller, ControllerHost
from rerail.engine.frame import Frame
from rerail.engine.ready_queue import Task

_PROGRESS_TAGS = ("step-completed", "step-failed", "step-invalidated")


def _is_of(event: ev.Event, unit: UnitId) -> bool:
    return isinstance(event, ev.StepCompleted) and event.unit == unit


class LoopController(Controller):
    """Controller of a loop."""

    def __init__(self, host: ControllerHost, task: Task) -> None:
        super().__init__(host, task)
        self._history: list[Any] = []  # the progress value of each iteration
        self._excused = 0  # iterations that do not count as without progress: a person resumed the loop after them

    def begin(self) -> None:
        action = self.step.action
        assert isinstance(action, Loop)
        record = self.state.unit(self.unit).items
        if record is not None and record.completed and self._is_forgotten(record.completed):
            if not self._is_forgotten(record.completed + 1):
                self._open_iteration(record.completed)  # it had begun, so the one before was not the last
                return
            self.restart("outputs of its last iteration are lost")
        self.record_total(action.max_iterations, is_loop=True)
        items = self.state.unit(self.unit).items
        assert items is not None
        done = items.completed
        if done and self._is_over(done):
            return
        wait = self._left_of_delay(action, done)
        if wait:
            self.host.queue.push_at(lambda: self._iterate(done), self.host.clock.monotonic() + wait)
        else:
            self._iterate(done)

    def _left_of_delay(self, action: Loop, done: int) -> float:
        """Return the rest of the delay between two iterations that an earlier invocation was in."""
        begun = self.state.unit(self.unit.iteration(done + 1)).attempts
        if not action.delay or not done or begun:
            return 0.0
        last = self.unit.iteration(done)
        ends = [event.at for event in self.host.recorder.find(("step-completed",), self.step.id) if _is_of(event, last)]
        passed = (self.host.clock.now() - ends[-1]).total_seconds() if ends else action.delay
        return remaining(action.delay, action.delay - passed)

    def _is_forgotten(self, iteration: int) -> bool:
        """Return whether the state has no record of the steps of an iteration."""
        item = self.unit.iteration(iteration).item
        return not any((step.id, item) in self.state.units for step in self.host.body(self.task).steps)

    def _frame_of(self, iteration: int) -> Frame:
        """Return a frame with the names after an iteration, for the conditions of the loop."""
        frame = Frame(self.host.body(self.task), self.host.queue, self.outer, self.unit.iteration(iteration).item)
        frame.values = {**self.outer.values, "loop": {"iteration": iteration}}
        return frame

    def _iterate(self, done: int) -> None:
        """Open the next iteration, unless `while` is false or all are used up."""
        action = self.step.action
        assert isinstance(action, Loop)
        if action.while_ and not self._holds("while", action.while_, done):
            return
        if done >= action.max_iterations:
            self._exhausted(action)
            return
        self._open_iteration(done)

    def _open_iteration(self, done: int) -> None:
        values = {"loop": {"iteration": done + 1}}
        previous = self.unit.iteration(done).item if done else None
        self.open_group(done, self.unit.iteration(done + 1), values, previous)

    def _exhausted(self, action: Loop) -> None:
        wanted = f"`until` is false ({action.until})" if action.until else f"`while` is true ({action.while_})"
        rounds = f"{action.max_iterations} iteration{'' if action.max_iterations == 1 else 's'}"
        message = f"{wanted} after {rounds}{self._advice()}"
        self.end("failed", type="LoopExhausted", message=message, retryable=False)

    def _advice(self) -> str:
        """Return the way to continue the exhausted loop; '' if it is part of something that completes all the same."""
        is_let_pass, in_map = self.step.allow_failure and not self.unit.is_top_level, False
        owner = self.outer.owner
        while isinstance(owner, Controller):
            action = owner.step.action
            is_let_pass |= owner.step.allow_failure
            if isinstance(action, Map):
                is_let_pass |= action.on_item_failure == "skip"
                in_map |= bool(action.max_failures or action.max_failures_percent)
            owner = owner.outer.owner
        if is_let_pass:
            return ""
        return "; raise max_iterations, then " + ("resume, or rerail dlq retry" if in_map else "resume")

    def _holds(self, option: str, expression: str, done: int) -> bool:
        """Return whether a condition holds; if not, or if it has no value, end the loop."""
        try:
            holds = bool(language.evaluate(expression, self._scope(done)))
        except ExpressionError as error:
            hint = "" if done else "; before the first iteration there are no outputs: use `| default(…)`"
            self.end("failed", type="ExpressionError", message=f"`{option}`: {error}{hint}", retryable=False)
            return False
        if not holds:
            self._completed(done)
        return holds

    def _scope(self, done: int) -> Scope:
        frame = self._frame_of(max(done, 1))
        return self.host.scopes.scope(frame, frame.values)

    def _is_over(self, done: int) -> bool:
        """End the loop if it is over after so many iterations; return whether it is."""
        action = self.step.action
        assert isinstance(action, Loop)
        if action.until:
            try:
                if language.evaluate(action.until, self._scope(done)):
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
        outputs = self.frame_outputs(self._frame_of(done)) if done else {}
        self.end("ok", outputs={**outputs, "iterations": done})

    def _progress(self, action: Loop, frame: Frame) -> Any:
        """Return the progress value of an iteration: the value that `until` compares, or else all its outputs."""
        expression = watched(action.until)
        if expression:
            try:
                return language.evaluate(expression, self.host.scopes.scope(frame, frame.values))
            except ExpressionError:
                return self.frame_outputs(frame)
        return self.frame_outputs(frame)

    def _progress_history(self) -> list[Any]:
        """Return the progress value of each iteration; read from the journal once."""
        items = self.state.unit(self.unit).items
        done = items.completed if items else 0
        if len(self._history) != done:
            self._read_progress(done)
        return self._history

    def _read_progress(self, done: int) -> None:
        """Read the progress values from the journal, so that a crash changes nothing about them."""
        found: dict[UnitId, Any] = {}
        for event in self.host.recorder.find(_PROGRESS_TAGS, self.step.id):
            match event:
                case ev.StepCompleted(item=str(), outputs=outputs):
                    found[event.unit] = outputs.get("progress")
                case ev.StepFailed(error=error) if event.unit == self.unit and error.type == "NoProgress":
                    mine = (self.unit.iteration(number + 1) for number in range(done))
                    self._excused = sum(unit in found for unit in mine)  # resuming it excuses them
                case ev.StepInvalidated(reopened=False) if event.unit == self.unit:
                    found, self._excused = {}, 0
                case _:
                    pass
        self._history = [found.get(self.unit.iteration(number + 1)) for number in range(done)]

    def _stalls(self, action: Loop) -> bool:
        trail, since = self._progress_history(), 0
        best: Any = msgspec.UNSET
        for number, value in enumerate(trail, 1):
            if number <= self._excused:
                best = value if best is msgspec.UNSET or is_better(value, best, action.until) else best
            elif best is msgspec.UNSET or is_better(value, best, action.until):
                best, since = value, 0
            else:
                since += 1
        return since >= action.stop_if_no_progress

    def _trail(self, action: Loop) -> str:
        trail = self._progress_history()[-action.stop_if_no_progress - 1 :]
        return ", ".join(self.host.spec.mask.text(language.as_text(value))[:40] for value in trail)

    def frame_over(self, frame: Frame) -> None:
        action = self.step.action
        assert isinstance(action, Loop)
        if frame.failed or not frame.complete:
            failure = self.failure(frame, *self.unit)
            self.close_group(frame, None)
            iteration = frame.values["loop"]["iteration"]
            self.fail_as(msgspec.structs.replace(failure, message=f"iteration {iteration}: {failure.message}"))
            return
        outputs = self.frame_outputs(frame)
        if action.stop_if_no_progress:
            outputs["progress"] = self._progress(action, frame)
            self._progress_history().append(outputs["progress"])
        self.close_group(frame, outputs)
        self.host.when_durable(self)

    def on_durable(self) -> None:
        """Decide about the next iteration."""
        if self.host.is_stopping:
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
            self.host.queue.push_at(lambda: self._iterate(done), self.host.clock.monotonic() + action.delay)
        else:
            self._iterate(done)
