"""Loops: the same steps again and again. Whether there is another iteration follows from state and journal alone."""

from __future__ import annotations

from typing import Any

import msgspec

from rerail.core import events as ev
from rerail.core.expressions import language
from rerail.core.expressions.language import ExpressionError, Scope
from rerail.core.items import joined
from rerail.core.model import Loop
from rerail.core.progress import is_better, watched
from rerail.core.retry import remaining
from rerail.engine.controllers.controller import Controller
from rerail.engine.desk import Desk
from rerail.engine.frame import Frame
from rerail.engine.ready_queue import Task

_TELLING = ("step-completed", "step-failed", "step-invalidated")  # what tells how a loop got on


def _is_of(event: ev.Event, item: str) -> bool:
    return isinstance(event, ev.StepCompleted) and event.item == item


class LoopController(Controller):
    """The same steps again and again."""

    def __init__(self, desk: Desk, task: Task) -> None:
        super().__init__(desk, task)
        self._trail_so_far: list[Any] = []
        self._patient_until = 0  # iterations that do not count as without progress: a person wants it to go on

    def begin(self) -> None:
        action = self.step.action
        assert isinstance(action, Loop)
        known = self.state.unit(self.unit).items
        if known is not None and known.completed and self._is_forgotten(known.completed):
            if not self._is_forgotten(known.completed + 1):
                self._open_iteration(known.completed)  # it was begun, so the one before it was not the last
                return
            self.begin_anew("what its last iteration handed out is no longer known")
        self.list_nothing(action.max_iterations, carries=True)
        items = self.state.unit(self.unit).items
        assert items is not None
        done = items.completed
        if done and self._is_over(done):
            return
        wait = self._left_of_delay(action, done)
        if wait:
            self.desk.turns.wait(lambda: self._iterate(done), self.desk.clock.monotonic() + wait)
        else:
            self._iterate(done)

    def _left_of_delay(self, action: Loop, done: int) -> float:
        """What is left of the pause that an earlier life was in, between two iterations."""
        begun = self.state.unit((self.step.id, joined(self.unit[1], str(done + 1)))).attempts
        if not action.delay or not done or begun:
            return 0.0
        last = joined(self.unit[1], str(done))
        ends = [event.at for event in self.desk.recorder.find(("step-completed",), self.step.id) if _is_of(event, last)]
        passed = (self.desk.clock.now() - ends[-1]).total_seconds() if ends else action.delay
        return remaining(action.delay, action.delay - passed)

    def _is_forgotten(self, iteration: int) -> bool:
        """Whether the state has no record of an iteration's steps."""
        item = joined(self.unit[1], str(iteration))
        return not any((step.id, item) in self.state.units for step in self.desk.body(self.task).steps)

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
        self._open_iteration(done)

    def _open_iteration(self, done: int) -> None:
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
            holds = bool(language.evaluate(expression, self._scope(done)))
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
        outputs = self.handed_out(self._frame_of(done)) if done else {}
        self.end("ok", outputs={**outputs, "iterations": done})

    def _progress(self, action: Loop, frame: Frame) -> Any:
        """What an iteration is judged by: what `until` compares, or else all that it handed out."""
        expression = watched(action.until)
        if expression:
            try:
                return language.evaluate(expression, self.desk.view.scope(frame, frame.values))
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
        return ", ".join(self.desk.job.mask.text(language.as_text(value))[:40] for value in trail)

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
