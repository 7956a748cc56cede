"""Summary of a run: one row of the list of runs."""

from datetime import datetime
from typing import Any

import msgspec

from rerail.core.checkpoint import total_cost, total_tokens
from rerail.core.dead_letters import dead_letters
from rerail.core.durations import NEVER, LastSeen, active_seconds, span_seconds
from rerail.core.events import Failure, PauseCause
from rerail.core.model import RunHeader
from rerail.core.money import COST, plus, total
from rerail.core.state import RunState


class Summary(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Row of the list of runs, with the names of checkpoint.json.

    `status` is the recorded one: only a check of its owner process tells a crash.
    """

    run_id: str
    pipeline: str
    pipeline_path: str
    work_dir: str
    labels: dict[str, str]
    params: dict[str, Any]
    status: str
    steps_completed: int
    steps_total: int
    total_cost_usd: float
    created_at: str
    started_at: datetime | None
    updated_at: datetime | None
    finished_at: datetime | None
    duration_seconds: float | None  # from its start to its end, the time in which it was not executed included
    resumable: bool
    pipeline_type: str
    last_completed_step: str | None
    total_tokens: int
    error: Failure | None
    items_done: int = 0  # of all maps
    items_total: int = 0
    dead_letters: int = 0
    paused_for: PauseCause = ""
    paused_until: datetime | None = None
    active_seconds: float | None = None  # in which it was executed; None in a row of an older rerail


def summary_of(header: RunHeader, state: RunState, seen: LastSeen = NEVER) -> Summary:
    """Return the summary of a run; `seen` is the last sign of an invocation that has not recorded its end."""
    maps = [
        unit.items
        for (_, item), unit in state.units.items()
        if item is None and unit.items is not None and not unit.items.is_loop
    ]
    reported = [unit.progress.metrics for unit in state.units.values() if unit.status == "running" and unit.progress]
    under_way = total(metrics.get(COST, 0) for metrics in reported)
    return Summary(
        run_id=header.run_id,
        pipeline=header.pipeline,
        pipeline_path=header.pipeline_path,
        work_dir=header.work_dir,
        labels=header.labels,
        params=header.params,
        status=state.status,
        # The minimum is for old journals, which do not name removed steps.
        steps_completed=min(sum(unit.settled for unit in state.counted), state.steps),
        steps_total=state.steps,
        total_cost_usd=plus(total_cost(state), under_way),
        created_at=header.created_at,
        started_at=state.started_at,
        updated_at=state.updated_at,
        finished_at=state.finished_at,
        duration_seconds=span_seconds(state, seen),
        active_seconds=active_seconds(state, seen),
        resumable=state.status != "completed",
        pipeline_type=header.pipeline_type,
        last_completed_step=str(state.last_completed) if state.last_completed else None,
        total_tokens=total_tokens(state),
        error=state.error,
        items_done=sum(items.closed for items in maps),
        items_total=sum(items.total for items in maps),
        dead_letters=sum(1 for _ in dead_letters(state)),
        paused_for=state.cause,
        paused_until=state.until,
    )
