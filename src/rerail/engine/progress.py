"""Progress records of attempts in flight: the progress and cost of an attempt, kept through a kill or a power cut."""

from __future__ import annotations

from rerail.core import events as ev
from rerail.engine.ready_queue import RunningTasks, Task
from rerail.engine.recorder import Recorder
from rerail.engine.spec import RunSpec, attempt_name
from rerail.ports import Clock, Outcome

MIN_AGE = 1.0  # seconds: a younger attempt has no progress worth a record


def record_progress(spec: RunSpec, recorder: Recorder, clock: Clock, running: RunningTasks) -> None:
    """Stage a progress record for every attempt in flight."""
    now, at = clock.monotonic(), clock.now()
    for task, attempt, began in running.values():
        if task.controls or now - began < MIN_AGE:
            continue
        step, item = task.unit
        usage, progress = spec.seen(attempt_name(task.unit, attempt))
        recorder.stage(
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


def record_cost(recorder: Recorder, clock: Clock, task: Task, attempt: int, outcome: Outcome) -> None:
    """Stage the cost of an attempt that is over but whose end cannot be recorded yet."""
    if outcome.metrics:
        step, item = task.unit
        recorder.stage(
            ev.StepProgressed(
                at=clock.now(),
                step=step,
                item=item,
                attempt=attempt,
                elapsed=round(outcome.duration, 6),
                metrics=outcome.metrics,
                models=outcome.models,
            )
        )
