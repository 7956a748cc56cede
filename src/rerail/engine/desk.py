"""What the controllers of one life share, and how they and the loop hand things to each other."""

from __future__ import annotations

from typing import Protocol

from rerail.core.model import Step, Subpipeline
from rerail.core.staleness import fingerprint
from rerail.core.state import Unit
from rerail.engine.frame import Body
from rerail.engine.ready_queue import ReadyQueue, Task
from rerail.engine.recorder import Recorder
from rerail.engine.recovery import Recovery
from rerail.engine.scopes import ScopeBuilder
from rerail.engine.spec import RunSpec, Toolbox
from rerail.ports import Outcome


class Waiting(Protocol):
    """A controller that goes on, or comes to its end, once all that happened is durable."""

    def conclude(self) -> None:
        """It is."""


class Desk:
    """What the controllers of one life share."""

    def __init__(self, job: RunSpec, tools: Toolbox, recorder: Recorder, turns: ReadyQueue) -> None:
        self.job = job
        self.tools = tools
        self.recorder = recorder
        self.turns = turns
        self.state = recorder.state
        self.clock = tools.clock
        self.past = Recovery(job, recorder, turns, tools.clock)
        self.view = ScopeBuilder(job, recorder.state)
        self.stopping = False  # nothing new may begin
        self.ends: list[tuple[Task, Outcome]] = []  # controllers that came to their end
        self.due: list[Waiting] = []  # those that come to it once all that happened is durable
        self.started: list[Task] = []  # controllers in whose own name an attempt was started
        self.spending: list[Unit] = []  # those that cost something in their own name, which is recorded when they end
        self._bodies: dict[int, Body] = {}
        self._env = job.pipeline.env

    def cannot_keep(self, why: str) -> bool:
        """What steps made could not be made durable: the place for state has failed, not they. Whether that stops us."""
        stops = self.job.pipeline.checkpoint.on_error == "stop"
        if stops:
            self.recorder.trouble = self.recorder.trouble or why
            self.stopping = True
        return stops

    def definition(self, step: Step) -> str:
        """The fingerprint of a step."""
        return fingerprint(step, self._env)

    def body(self, task: Task) -> Body:
        """The body of a controller, made once for all its instances."""
        key = id(task.step)
        if key not in self._bodies:
            last = task.step.action.finally_ if isinstance(task.step.action, Subpipeline) else ()
            self._bodies[key] = Body(task.step.body, last, self.job.pipeline.env)
        return self._bodies[key]
