"""What is saved of attempts while they run: after a kill or a power cut it is known how far they were, and their cost."""

from __future__ import annotations

from collections.abc import Mapping

from rerail.core import events as ev
from rerail.core.state import Unit
from rerail.engine.desk import Desk
from rerail.engine.ready_queue import Task
from rerail.engine.spec import attempt_name
from rerail.ports import Outcome

YOUNG = 1.0  # seconds: of what has just begun there is nothing to say

Running = Mapping[Unit, tuple[Task, int, float]]  # with the number of the attempt and when it began


def save_progress(desk: Desk, running: Running) -> None:
    """Look at every attempt that runs and stage how far it is."""
    now, at = desk.clock.monotonic(), desk.clock.now()
    for (step, item), (task, attempt, began) in running.items():
        if task.controls or now - began < YOUNG:
            continue
        usage, progress = desk.job.seen(attempt_name(task.unit, attempt))
        desk.recorder.stage(
            ev.StepProgressed(
                at=at,
                step=step,
                item=item,
                attempt=attempt,
                elapsed=round(now - began, 3),
                metrics=usage.metrics,
                models=usage.models,
                done=progress.done if progress else None,
                total=progress.total if progress else None,
            )
        )


def save_cost(desk: Desk, task: Task, attempt: int, outcome: Outcome) -> None:
    """An attempt is over and its end cannot be recorded yet: what it cost can."""
    if outcome.metrics:
        step, item = task.unit
        desk.recorder.stage(
            ev.StepProgressed(
                at=desk.clock.now(),
                step=step,
                item=item,
                attempt=attempt,
                elapsed=round(outcome.duration, 6),
                metrics=outcome.metrics,
                models=outcome.models,
            )
        )
