"""Hooks that an earlier invocation did not finish: those still to run, and those in doubt.

`on_failure` and `finally` hooks are sequences; a failing hook does not stop the next one. A sequence that was
interrupted continues with the hooks that had not ended; one that has not begun since its turn came begins at the
beginning.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rerail.core.model import Pipeline, Step, Subpipeline, every_step
from rerail.core.state import RunState, UnitState
from rerail.core.unit_id import UnitId


class PendingHooks(msgspec.Struct, frozen=True):
    """Hooks still to run, in order; `in_doubt` names one that was interrupted and must not be repeated."""

    hooks: tuple[Step, ...] = ()
    in_doubt: str = ""


def hook_ids(pipeline: Pipeline) -> frozenset[str]:
    """Return the ids of all hooks of a pipeline: clean-ups and final hooks, those of nested steps included."""
    hooks = set(pipeline.hooks)
    for _, step in every_step(pipeline) if pipeline.has_controllers else ():
        hooks.update(hook.id for hook in step.on_failure)
        if isinstance(step.action, Subpipeline):
            hooks.update(hook.id for hook in step.action.finally_)
    return frozenset(hooks)


def pending(
    hooks: Sequence[Step], state: RunState, after: int, *, failed_counts: bool, item: str | None = None
) -> PendingHooks:
    """Return the pending hooks of a sequence whose turn came at journal position `after`."""
    remaining = []
    doubtful = ""
    for hook in hooks:
        unit = state.unit(UnitId(hook.id, item))
        begun = unit.started_seq > after
        if begun and _ended(unit, failed_counts=failed_counts):
            continue
        remaining.append(hook)
        doubtful = doubtful or (hook.id if _is_in_doubt(hook, unit) else "")
    return PendingHooks(tuple(remaining), doubtful)


def in_doubt(hooks: Sequence[Step], state: RunState, item: str | None = None) -> list[str]:
    """Return the hooks in doubt: interrupted, not idempotent, and up to a person, however long ago that was."""
    return [hook.id for hook in hooks if _is_in_doubt(hook, state.unit(UnitId(hook.id, item)))]


def _is_in_doubt(hook: Step, unit: UnitState) -> bool:
    return not hook.idempotent and unit.status in ("running", "interrupted")


def pending_cleanup(step: Step, state: RunState, item: str | None = None) -> PendingHooks:
    """Return the pending `on_failure` hooks of a step that has failed permanently.

    A clean-up that failed is not repeated before the step is: it comes again if that fails again. After a failure that
    is allowed nothing else would ever repeat it.
    """
    unit = state.unit(UnitId(step.id, item))
    if not step.on_failure or unit.status in ("completed", "skipped"):
        return PendingHooks()
    if unit.status == "failed" and unit.attempts == 0 and unit.error is not None:
        return PendingHooks()  # shared by a fork: it failed in another run, which cleaned up after it
    answered_anew = unit.status == "pending" and unit.approval is not None and unit.error is not None
    if (unit.status != "failed" or unit.retry_at is not None) and not answered_anew:
        asked = in_doubt(step.on_failure, state, item)  # from an earlier failure, and not answered since
        return PendingHooks(step.on_failure, asked[0]) if asked else PendingHooks()
    return pending(step.on_failure, state, unit.started_seq, failed_counts=not unit.allowed, item=item)


def pending_finally(pipeline: Pipeline, state: RunState) -> PendingHooks:
    """Return the `finally` hooks that have not ended since any other unit last started."""
    return pending(pipeline.finally_, state, _newest_start(pipeline, state), failed_counts=False)


def finally_was_interrupted(pipeline: Pipeline, state: RunState) -> bool:
    """Return whether the `finally` hooks had begun in an invocation that recorded no end of the run."""
    if state.status in ("completed", "failed"):
        return False
    newest = _newest_start(pipeline, state)
    return any(state.unit(UnitId(hook.id)).started_seq > newest for hook in pipeline.finally_)


def _newest_start(pipeline: Pipeline, state: RunState) -> int:
    """Return the journal position at which any other unit last started, or the run last ended.

    Units that started later are `finally` hooks.
    """
    last = {hook.id for hook in pipeline.finally_}
    started = (unit.started_seq for (step, _), unit in state.units.items() if step not in last)
    return max(state.finished_seq, *started, 0)


def _ended(unit: UnitState, *, failed_counts: bool) -> bool:
    return unit.status in ("completed", "skipped") or (
        # Marked failed by a person, it has no error, and is to be repeated.
        unit.status == "failed" and unit.retry_at is None and unit.error is not None and (failed_counts or unit.allowed)
    )
