"""Hooks that an earlier life did not finish: what is left of them, and what nobody can know about them.

Clean-ups after a failed step and the last hooks of a run are sequences. One that was cut off goes on with the first
hook that had not ended; one that has not begun since its turn came begins at the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rerail.core.model import Pipeline, Step
from rerail.core.state import RunState, UnitState


class Rest(msgspec.Struct, frozen=True):
    """The hooks still to run, in order; `ask` names the first if it was cut off and must not be repeated."""

    hooks: tuple[Step, ...] = ()
    ask: str = ""


def rest(hooks: Sequence[Step], state: RunState, after: int) -> Rest:
    """What is left of a sequence whose turn came at journal position `after`."""
    for at, hook in enumerate(hooks):
        unit = state.unit((hook.id, None))
        if _ended(unit) and unit.started_seq > after:
            continue
        unknown = unit.status in ("running", "interrupted") and unit.started_seq > after and not hook.idempotent
        return Rest(tuple(hooks[at:]), hook.id if unknown else "")
    return Rest()


def clean_up(step: Step, state: RunState) -> Rest:
    """What is left to do after a step that has failed for good."""
    unit = state.unit((step.id, None))
    if not step.on_failure or unit.status != "failed" or unit.retry_at is not None:
        return Rest()
    return rest(step.on_failure, state, unit.started_seq)


def last_hooks(pipeline: Pipeline, state: RunState) -> Rest:
    """What is left of a run's last hooks if they are the latest thing that happened."""
    return rest(pipeline.finally_, state, _newest_start(pipeline, state))


def ending_was_cut_off(pipeline: Pipeline, state: RunState) -> bool:
    """Whether the last hooks had begun in a life that never recorded how the run ended."""
    if state.status in ("completed", "failed") or not pipeline.finally_:
        return False
    first = state.unit((pipeline.finally_[0].id, None))
    return first.started_seq > _newest_start(pipeline, state)


def _newest_start(pipeline: Pipeline, state: RunState) -> int:
    return max((state.unit((step.id, None)).started_seq for step in pipeline.steps), default=0)


def _ended(unit: UnitState) -> bool:
    return unit.status in ("completed", "skipped") or (unit.status == "failed" and unit.retry_at is None)
