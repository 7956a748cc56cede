"""Files of steps during one invocation: inputs examined before a start, artifacts sealed after a success."""

from __future__ import annotations

from collections.abc import Callable, Container
from datetime import datetime

import msgspec

from rerail.core.events import Cause, InputRecord, Reason
from rerail.core.expressions.language import ExpressionError, Scope
from rerail.core.expressions.render import filled
from rerail.core.state import UnitState
from rerail.core.unit_id import UnitId
from rerail.engine.ready_queue import Task
from rerail.ports import ArtifactWorker, FileCheck, Outcome


class StepFiles:
    """Requests to the artifact worker, and their results."""

    def __init__(
        self, worker: ArtifactWorker, superseded: Container[str], stop_unwritable: Callable[[str], bool]
    ) -> None:
        """`stop_unwritable` takes the reason why an artifact cannot be kept and returns whether the run stops."""
        self._stop_unwritable = stop_unwritable
        self._worker = worker
        self._superseded = superseded
        self.examined: dict[UnitId, FileCheck] = {}  # checked, and not started yet
        self.waiting: dict[UnitId, Task] = {}  # tasks whose files are being checked
        self._confirmed: dict[UnitId, str] = {}  # re-checked, with the artifact that was lost
        self._cleared: dict[UnitId, dict[str, str]] = {}  # path → where the broken artifact was moved before the re-run
        self._blocked: dict[UnitId, str] = {}  # why a broken artifact could not be moved: the step would destroy it
        self._sealing: dict[UnitId, Outcome] = {}

    @property
    def counted(self) -> int:
        """Number of waiting tasks that count against the parallelism of the run."""
        return sum(task.parent.counted for task in self.waiting.values())

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self._sealing)

    def examine(self, task: Task, scope: Scope) -> None:
        """Have the inputs of a task checked; the task is queued again when that is done."""
        try:
            declared = filled(task.step.inputs, scope)
        except ExpressionError:
            declared = task.step.inputs  # the step fails for the same reason, with a better message
        self.waiting[task.unit] = task
        self._worker.examine(task.unit, declared)

    def inputs(self, task: Task) -> tuple[InputRecord, ...]:
        """Return the inputs of a task that is about to start."""
        return self.examined[task.unit].inputs

    def changed(self, task: Task, unit: UnitState) -> Reason | None:
        """Return which input of a settled unit has changed since it was read; None if none."""
        if not task.step.inputs or unit.status != "completed":
            return None
        check = self.examined[task.unit]
        if check.problem:
            return Reason(check.problem, Cause(kind="input-changed"))
        now = {read.path: read.sha256 for read in check.inputs}
        was = {read.path: read.sha256 for read in unit.inputs}
        path = next((path for path in now if now[path] != was.get(path)), None)
        return None if path is None else Reason(f"input {path} changed", Cause(kind="input-changed", path=path))

    def reverify(self, task: Task, unit: UnitState) -> str | None:
        """Return which artifact of a settled unit broke in this invocation, or ''; None while the worker is busy."""
        if not unit.artifacts or unit.status != "completed":
            return ""
        if task.unit in self._confirmed:
            return self._confirmed.pop(task.unit)
        self.waiting[task.unit] = task
        self._worker.reverify(task.unit, task.step, unit.artifacts, self._superseded)
        return None

    def quarantine(self, task: Task, unit: UnitState) -> dict[str, str] | None:
        """Quarantine broken artifacts before a re-run; return {path: new location}, or None while the worker is busy."""
        if not unit.artifacts or unit.status != "completed":
            return {}
        if task.unit in self._cleared:
            return self._cleared.pop(task.unit)
        self.waiting[task.unit] = task
        self._worker.quarantine(task.unit, task.step, unit.artifacts, self._superseded)
        return None

    def take(self, task: Task) -> tuple[str, str]:
        """Return the obstacle to the launch of a started task, as type and message; '' if there is none."""
        blocked = self._blocked.pop(task.unit, "")
        if blocked:
            return "ArtifactInTheWay", blocked
        check = self.examined.pop(task.unit, None)
        return ("InputInvalid", check.problem) if check is not None else ("", "")

    def forget(self, task: Task) -> None:
        """Drop the results for a task that does not start."""
        self.examined.pop(task.unit, None)

    def seal(self, task: Task, outcome: Outcome, scope: Scope, since: datetime | None) -> str:
        """Have the artifacts of a step sealed; return why they cannot be, or ''."""
        try:
            declared = filled(task.step.artifacts, scope)
        except ExpressionError as error:
            return f"artifacts: {error}"
        self._sealing[task.unit] = outcome
        self._worker.seal(task.unit, declared, since)
        return ""

    def sealed(self, check: FileCheck) -> Outcome:
        """Return the outcome of a step now that its artifacts were checked."""
        outcome = self._sealing.pop(check.unit)
        if check.given_up or (check.unkept and self._stop_unwritable(f"{check.unit}: {check.problem}")):
            return msgspec.structs.replace(outcome, status="stopped")
        if check.problem:
            return msgspec.structs.replace(outcome, status="failed", type="ArtifactInvalid", message=check.problem)
        return outcome

    def finished(self) -> list[tuple[Task | None, FileCheck]]:
        """Return the checks finished since the last call, each with the task that waits for it; None for a sealed one."""
        found: list[tuple[Task | None, FileCheck]] = []
        for check in self._worker.finished():
            unit = check.unit
            task = self.waiting.pop(unit, None) if check.purpose != "artifacts" else None
            found.append((task, check))
            if check.purpose == "inputs" and not check.given_up:
                self.examined[unit] = check
            if check.purpose == "confirm":
                self._confirmed[unit] = check.problem
            if check.purpose == "clear":
                self._cleared[unit] = check.quarantined
                self._blocked |= {unit: check.problem} if check.problem else {}
        return found

    def slow(self, now: float) -> list[str]:
        return self._worker.slow(now)

    def give_up(self) -> None:
        self._worker.give_up()
