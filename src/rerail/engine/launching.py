"""From a start that is durable to an attempt that runs, or to the outcome of one that needs nobody to run it."""

from __future__ import annotations

from rerail.core.expressions.language import ExpressionError, evaluate
from rerail.core.model import Approve
from rerail.engine.desk import Desk
from rerail.engine.launch import attempt_of, judged, unstartable, with_checks
from rerail.engine.ready_queue import Task
from rerail.engine.step_files import StepFiles
from rerail.ports import Outcome


class Launching:
    """Launches the attempts of one life."""

    def __init__(self, desk: Desk, files: StepFiles) -> None:
        self._desk = desk
        self._files = files
        self.instant: list[Outcome] = []  # of what could not start, and of what people answered

    def take_instant(self) -> list[Outcome]:
        """The outcomes that nobody has to be waited for."""
        taken, self.instant = self.instant, []
        return taken

    def launch(self, task: Task, number: int) -> bool:
        """Launch an attempt; whether it is that of a controller, which has to be begun instead."""
        step = task.step
        try:
            if step.when:  # one that has no value was not skipped: it fails here
                evaluate(step.when, self._desk.view.of(task))
            kind, problem = self._files.take(task) if step.inputs or step.artifacts else ("", "")
            if problem:
                self.instant.append(unstartable(task.unit, kind, problem))
                return False
            if task.controls:
                return True  # what goes wrong in it is not a start that failed
            if isinstance(step.action, Approve):
                self.instant.append(judged(task.unit, self._desk.state.unit(task.unit).verdict))
                return False
            self._start(task, number)
        except ExpressionError as error:
            self.instant.append(unstartable(task.unit, "ExpressionError", str(error)))
        except (ValueError, KeyError, OSError) as error:
            self.instant.append(unstartable(task.unit, "CouldNotStart", f"could not start: {error}"))
        return False

    def _start(self, task: Task, number: int) -> None:
        desk, tools = self._desk, self._desk.tools
        attempt = attempt_of(desk.job, task, desk.state, number, desk.view)
        work = tools.kinds[type(task.step.action)].work(attempt)
        if task.step.checks:
            attempt = with_checks(task, attempt, desk.view, tools.kinds)
        tools.executor.start(attempt, work)
