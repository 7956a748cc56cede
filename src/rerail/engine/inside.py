"""The controllers that are open in this life, and what the loop has to do with them."""

from __future__ import annotations

from rerail.core.expressions.language import ExpressionError
from rerail.core.model import Loop, Subpipeline, every_step
from rerail.core.planner import has_failed
from rerail.core.state import Unit, UnitState
from rerail.engine.controllers.controller import Controller, SubpipelineController
from rerail.engine.controllers.loop import LoopController
from rerail.engine.controllers.map import MapController
from rerail.engine.desk import Desk
from rerail.engine.ready_queue import Task
from rerail.ports import Outcome


class Inside:
    """Maps, loops and inner pipelines under way."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._open: dict[Unit, Controller] = {}
        pipeline = desk.job.pipeline
        hooks = set(pipeline.hooks)
        for _, step in every_step(pipeline) if pipeline.has_controllers else ():
            hooks.update(hook.id for hook in step.on_failure)
            if isinstance(step.action, Subpipeline):
                hooks.update(hook.id for hook in step.action.finally_)
        self.hooks = frozenset(hooks)

    def refresh(self, task: Task, unit: UnitState) -> None:
        """Before a controller starts: give up what no longer counts, and open what failed."""
        if unit.items is not None:
            changed = task.home.outdated(task, unit, self._desk.state)
            if changed:
                self._desk.past.invalidate(task.unit, f"{changed} produced something different")
                return
        if has_failed(task.step, unit):
            self._desk.past.reopen_failed(task.unit)

    def begin(self, task: Task) -> None:
        """The start of a controller is durable."""
        match task.step.action:
            case Loop():
                controller: Controller = LoopController(self._desk, task)
            case Subpipeline():
                controller = SubpipelineController(self._desk, task)
            case _:
                controller = MapController(self._desk, task)
        self._open[task.unit] = controller
        try:
            controller.settle_env()
        except ExpressionError as error:
            controller.end("failed", type="ExpressionError", message=f"`env`: {error}", retryable=False)
            return
        controller.begin()

    def took(self, outcome: Outcome) -> bool:
        """Whether an outcome is that of an attempt in a controller's own name, which goes on with it."""
        controller = self._open.get(outcome.unit)
        if not isinstance(controller, MapController):
            return False
        controller.took(outcome)
        return True

    def conclude(self) -> None:
        """All that happened is durable: controllers that waited for that go on, or come to their end."""
        if self._desk.due:
            due, self._desk.due = self._desk.due, []
            for controller in due:
                controller.conclude()

    def ended(self, unit: Unit) -> None:
        self._open.pop(unit, None)

    def interrupt(self, reason: str) -> None:
        """This life is over before they are."""
        for controller in reversed(list(self._open.values())):
            controller.interrupt(reason)
