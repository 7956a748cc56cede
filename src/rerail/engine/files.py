"""The files of steps on their way through one life: inputs that are examined, artifacts that are sealed."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from rerail.core.events import InputRecord
from rerail.core.model import Step
from rerail.core.render import filled
from rerail.core.state import UnitState
from rerail.core.template import ExpressionError, Scope
from rerail.ports import Looked, Outcome, Workshop


class StepFiles:
    """What the workshop was asked for, and what came of it."""

    def __init__(self, workshop: Workshop, spared: Container[str]) -> None:
        self._workshop = workshop
        self._spared = spared
        self.examined: dict[str, Looked] = {}  # looked at, and not started yet
        self._examining: set[str] = set()
        self._confirmed: dict[str, str] = {}  # looked at again, and what was lost of it
        self._cleared: dict[str, dict[str, str]] = {}  # what was moved aside before it runs again
        self._blocked: dict[str, str] = {}  # what could not be, and would be destroyed
        self._sealing: dict[str, Outcome] = {}

    @property
    def examining(self) -> int:
        """How many steps wait until their inputs are looked at."""
        return len(self._examining)

    @property
    def busy(self) -> bool:
        return bool(self._examining or self._sealing)

    def examine(self, step: Step, scope: Scope) -> None:
        """Have the inputs of a step looked at; its turn comes again when that is done."""
        try:
            declared = filled(step.inputs, scope)
        except ExpressionError:
            declared = step.inputs  # the step fails for the same reason, with a better message
        self._examining.add(step.id)
        self._workshop.examine((step.id, None), declared)

    def inputs(self, step: Step) -> tuple[InputRecord, ...]:
        """What a step is about to read."""
        return self.examined[step.id].inputs

    def changed(self, step: Step, unit: UnitState) -> str:
        """Which input of a settled unit is not what it had read; '' if none."""
        if not step.inputs or unit.status != "completed":
            return ""
        looked = self.examined[step.id]
        if looked.problem:
            return looked.problem
        now = {read.path: read.sha256 for read in looked.inputs}
        was = {read.path: read.sha256 for read in unit.inputs}
        return next((f"input {path} changed" for path in now if now[path] != was.get(path)), "")

    def confirm(self, step: Step, unit: UnitState) -> str | None:
        """What was lost of a settled unit since this life began; None: that is being looked at."""
        if not unit.artifacts or unit.status != "completed":
            return ""
        if step.id in self._confirmed:
            return self._confirmed.pop(step.id)
        self._examining.add(step.id)
        self._workshop.confirm(step, unit.artifacts, self._spared)
        return None

    def clear(self, step: Step, unit: UnitState) -> dict[str, str] | None:
        """What stood at the broken paths of a unit that runs again, and where it is now; None: that is being done."""
        if not unit.artifacts or unit.status != "completed":
            return {}
        if step.id in self._cleared:
            return self._cleared.pop(step.id)
        self._examining.add(step.id)
        self._workshop.clear(step, unit.artifacts, self._spared)
        return None

    def take(self, step: Step) -> tuple[str, str]:
        """The step starts: what keeps it from being launched, as kind and message; '' if nothing does."""
        blocked = self._blocked.pop(step.id, "")
        if blocked:
            return "ArtifactInTheWay", blocked
        looked = self.examined.pop(step.id, None)
        return ("InputInvalid", looked.problem) if looked is not None else ("", "")

    def forget(self, step: Step) -> None:
        """The step does not start after all."""
        self.examined.pop(step.id, None)

    def seal(self, step: Step, outcome: Outcome, scope: Scope) -> str:
        """Have what a step produced sealed; why that cannot even be asked for, or ''."""
        try:
            declared = filled(step.artifacts, scope)
        except ExpressionError as error:
            return f"artifacts: {error}"
        self._sealing[step.id] = outcome
        self._workshop.seal((step.id, None), declared)
        return ""

    def sealed(self, looked: Looked) -> Outcome:
        """The outcome of a step now that its artifacts were looked at."""
        outcome = self._sealing.pop(looked.unit[0])
        if looked.given_up:
            return msgspec.structs.replace(outcome, status="stopped")
        if looked.problem:
            return msgspec.structs.replace(outcome, status="failed", type="ArtifactInvalid", message=looked.problem)
        return outcome

    def finished(self) -> list[Looked]:
        """What came of looking since the last call."""
        found = self._workshop.finished()
        for looked in found:
            step_id = looked.unit[0]
            if looked.purpose != "artifacts":
                self._examining.discard(step_id)
            if looked.purpose == "inputs" and not looked.given_up:
                self.examined[step_id] = looked
            if looked.purpose == "confirm":
                self._confirmed[step_id] = looked.problem
            if looked.purpose == "clear":
                self._cleared[step_id] = looked.aside
                self._blocked |= {step_id: looked.problem} if looked.problem else {}
        return found

    def slow(self, now: float) -> list[str]:
        return self._workshop.slow(now)

    def give_up(self) -> None:
        self._workshop.give_up()
