"""The files of steps on their way through one life: inputs that are examined, artifacts that are sealed."""

from __future__ import annotations

from collections.abc import Callable, Container
from datetime import datetime

import msgspec

from rerail.core.events import InputRecord
from rerail.core.expressions.language import ExpressionError, Scope
from rerail.core.expressions.render import filled
from rerail.core.run_state import name
from rerail.core.state import Unit, UnitState
from rerail.engine.ready_queue import Task
from rerail.ports import ArtifactWorker, FileCheck, Outcome


class StepFiles:
    """What the workshop was asked for, and what came of it."""

    def __init__(self, workshop: ArtifactWorker, spared: Container[str], cannot_keep: Callable[[str], bool]) -> None:
        """`cannot_keep` is told why what a step produced cannot be kept; whether that stops the run."""
        self._cannot_keep = cannot_keep
        self._workshop = workshop
        self._spared = spared
        self.examined: dict[Unit, FileCheck] = {}  # looked at, and not started yet
        self.waiting: dict[Unit, Task] = {}  # tasks whose files are being looked at
        self._confirmed: dict[Unit, str] = {}  # looked at again, and what was lost of it
        self._cleared: dict[Unit, dict[str, str]] = {}  # what was moved aside before it runs again
        self._blocked: dict[Unit, str] = {}  # what could not be, and would be destroyed
        self._sealing: dict[Unit, Outcome] = {}

    @property
    def counted(self) -> int:
        """How many of these count against the width of the run."""
        return sum(task.home.counted for task in self.waiting.values())

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self._sealing)

    def examine(self, task: Task, scope: Scope) -> None:
        """Have the inputs of a step looked at; its turn comes again when that is done."""
        try:
            declared = filled(task.step.inputs, scope)
        except ExpressionError:
            declared = task.step.inputs  # the step fails for the same reason, with a better message
        self.waiting[task.unit] = task
        self._workshop.examine(task.unit, declared)

    def inputs(self, task: Task) -> tuple[InputRecord, ...]:
        """What a step is about to read."""
        return self.examined[task.unit].inputs

    def changed(self, task: Task, unit: UnitState) -> str:
        """Which input of a settled unit is not what it had read; '' if none."""
        if not task.step.inputs or unit.status != "completed":
            return ""
        looked = self.examined[task.unit]
        if looked.problem:
            return looked.problem
        now = {read.path: read.sha256 for read in looked.inputs}
        was = {read.path: read.sha256 for read in unit.inputs}
        return next((f"input {path} changed" for path in now if now[path] != was.get(path)), "")

    def confirm(self, task: Task, unit: UnitState) -> str | None:
        """What was lost of a settled unit since this life began; None: that is being looked at."""
        if not unit.artifacts or unit.status != "completed":
            return ""
        if task.unit in self._confirmed:
            return self._confirmed.pop(task.unit)
        self.waiting[task.unit] = task
        self._workshop.confirm(task.unit, task.step, unit.artifacts, self._spared)
        return None

    def clear(self, task: Task, unit: UnitState) -> dict[str, str] | None:
        """What stood at the broken paths of a unit that runs again, and where it is now; None: that is being done."""
        if not unit.artifacts or unit.status != "completed":
            return {}
        if task.unit in self._cleared:
            return self._cleared.pop(task.unit)
        self.waiting[task.unit] = task
        self._workshop.clear(task.unit, task.step, unit.artifacts, self._spared)
        return None

    def take(self, task: Task) -> tuple[str, str]:
        """The step starts: what keeps it from being launched, as kind and message; '' if nothing does."""
        blocked = self._blocked.pop(task.unit, "")
        if blocked:
            return "ArtifactInTheWay", blocked
        looked = self.examined.pop(task.unit, None)
        return ("InputInvalid", looked.problem) if looked is not None else ("", "")

    def forget(self, task: Task) -> None:
        """The step does not start after all."""
        self.examined.pop(task.unit, None)

    def seal(self, task: Task, outcome: Outcome, scope: Scope, since: datetime | None) -> str:
        """Have what a step produced sealed; why that cannot even be asked for, or ''."""
        try:
            declared = filled(task.step.artifacts, scope)
        except ExpressionError as error:
            return f"artifacts: {error}"
        self._sealing[task.unit] = outcome
        self._workshop.seal(task.unit, declared, since)
        return ""

    def sealed(self, looked: FileCheck) -> Outcome:
        """The outcome of a step now that its artifacts were looked at."""
        outcome = self._sealing.pop(looked.unit)
        if looked.given_up or (looked.unkept and self._cannot_keep(f"{name(looked.unit)}: {looked.problem}")):
            return msgspec.structs.replace(outcome, status="stopped")
        if looked.problem:
            return msgspec.structs.replace(outcome, status="failed", type="ArtifactInvalid", message=looked.problem)
        return outcome

    def finished(self) -> list[tuple[Task | None, FileCheck]]:
        """What came of looking since the last call, with the task that waits for it, unless it was sealed."""
        found: list[tuple[Task | None, FileCheck]] = []
        for looked in self._workshop.finished():
            unit = looked.unit
            task = self.waiting.pop(unit, None) if looked.purpose != "artifacts" else None
            found.append((task, looked))
            if looked.purpose == "inputs" and not looked.given_up:
                self.examined[unit] = looked
            if looked.purpose == "confirm":
                self._confirmed[unit] = looked.problem
            if looked.purpose == "clear":
                self._cleared[unit] = looked.aside
                self._blocked |= {unit: looked.problem} if looked.problem else {}
        return found

    def slow(self, now: float) -> list[str]:
        return self._workshop.slow(now)

    def give_up(self) -> None:
        self._workshop.give_up()
