"""Plan against deeds: a judge beside every run that any test starts, in this process or in one of its own.

What a plan says becomes of a step is a promise to whoever reads it before he types `y`. So each invocation of the engine is
watched from outside: the plan it was given, the starts it recorded, the state it left. A step the plan runs again has to
have started if it counts as settled in the end; one the plan keeps, skips or asks about must not have started.

Imports nothing of rerail until something is executed: `tests/preload/sitecustomize.py` loads it in every Python process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

FILE = "RERAIL_PLAN_ORACLE"  # names the file that takes the violations


class Deeds:
    """The units that started or were skipped in one invocation, heard as a reporter."""

    def __init__(self) -> None:
        self.started: set[Any] = set()
        self.skipped: set[Any] = set()

    def show(self, seq: int, event: Any, state: Any) -> None:
        kind = type(event).__name__
        if kind == "StepStarted":
            self.started.add(event.unit)
        elif kind == "StepSkipped":
            self.skipped.add(event.unit)

    def warn(self, message: str) -> None:
        pass


def violations(plan: Any, deeds: Deeds, state: Any) -> Iterator[str]:
    """Where the deeds of an invocation are not what its plan said."""
    for decision in plan.decisions:
        unit, final = decision.unit, state.unit(decision.unit)
        said = f"{unit}: the plan said {decision.decision} ({decision.reason})"
        inside = [one for one in deeds.started if one.is_within(unit)]
        if decision.decision in ("reuse", "restore", "skip", "in-doubt") and inside:
            yield f"{said}, and {inside[0]} started"
        touched = unit in deeds.started or unit in deeds.skipped
        must_start = decision.decision in ("run", "rerun", "continue") and not decision.unless_unchanged
        if must_start and final.settled and not touched:
            yield f"{said}, and it is {final.status} without having started"
        for inner in decision.inner if decision.decision == "continue" else ():
            if inner.decision == "rerun" and final.status == "completed" and inner.unit not in deeds.started:
                yield f"{said}; of {inner.unit} it said rerun, and that did not start"
            if inner.decision == "in-doubt" and inner.unit in deeds.started:
                yield f"{said}; of {inner.unit} it said ask, and that started"


def watched(drive: Callable[..., Any]) -> Callable[..., Any]:
    """The engine's entry, with its plan held against its deeds each time it returns."""

    def drive_and_judge(log: Any, pipeline: Any, plan: Any, opening: Any, reporters: Any, place: Any) -> Any:
        deeds = Deeds()
        driven = drive(log, pipeline, plan, opening, [*reporters, deeds], place)
        path = os.environ.get(FILE)
        if driven.end.lost is not None:
            return driven  # what cannot be recorded is told to nobody, this judge included
        found = list(violations(plan, deeds, driven.state)) if path else []
        if path and found:
            line = json.dumps({"run": log.recording.header.run_id, "violations": found}) + "\n"
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(fd, line.encode())
            os.close(fd)
        return driven

    return drive_and_judge
