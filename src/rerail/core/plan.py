"""What will run, and why: a pure function of the pipeline, the state and what was found on disk.

One rule decides about everything that completed before: a unit's record stays valid while its definition is
the same and nothing it depends on, directly or not, has produced something different since the unit started.
"Since" is journal order, never a clock. Because of it a crash in the middle of a cascade loses nothing, and a
step that reran and produced the same stops the cascade.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from rerail.core.fingerprint import fingerprint
from rerail.core.graph import Ancestors, downstream, topological
from rerail.core.hooks import Rest, clean_up, ending_was_cut_off, last_hooks, unknown
from rerail.core.model import Pipeline, Step
from rerail.core.state import RunState, UnitState

Verdict = Literal["reuse", "run", "rerun", "ask", "skip", "later"]
Changes = Literal["rerun", "keep", "refuse"]


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What becomes of one step. `unless_same` names the steps whose unchanged products would still save it."""

    step: str
    decision: Verdict
    reason: str
    unless_same: tuple[str, ...] = ()
    changed: bool = False  # its definition was edited since it ran
    saved_seconds: float = 0.0  # what reusing it saves


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions in declaration order, and the steps the run knows but the pipeline no longer has."""

    decisions: tuple[Decision, ...]
    removed: tuple[str, ...] = ()
    hooks: tuple[Decision, ...] = ()  # those that an earlier life did not finish
    ending_cut_off: bool = False  # the run had come to its last hooks

    @property
    def changed(self) -> tuple[str, ...]:
        return tuple(item.step for item in self.decisions if item.changed)


def plan(pipeline: Pipeline, state: RunState, changes: Changes = "rerun", start: str = "") -> Plan:
    """Decide for every step, in declaration order, whether it runs and why.

    `start` is the step a person wants to start from: it and what depends on it run in any case, and in a run that
    has not begun everything else is skipped.
    """
    if not state.units and not start:
        return Plan(decisions=tuple(_pending(step, UnitState()) for step in pipeline.steps))
    steps = {step.id: step for step in pipeline.steps}
    forced = downstream({step.id: step.needs for step in pipeline.steps}, [start]) if start else set()
    hooks = set(pipeline.hooks)
    made: dict[str, Decision] = {}
    lineage: dict[str, int] = {}
    for step_id in topological({step.id: step.needs for step in pipeline.steps}):
        step = steps[step_id]
        unit = state.unit((step_id, None))
        made[step_id] = _decide(pipeline, step, unit, made, lineage, changes=changes)
        if start:
            made[step_id] = _started_from(start, made[step_id], forced=step_id in forced, new=state.seq == 0)
        lineage[step_id] = lineage_of(step, unit, lineage)
    return Plan(
        decisions=tuple(made[step.id] for step in pipeline.steps),
        removed=tuple(step for step, item in state.units if item is None and step not in steps and step not in hooks),
        hooks=_hooks(pipeline, state),
        ending_cut_off=ending_was_cut_off(pipeline, state),
    )


def _hooks(pipeline: Pipeline, state: RunState) -> tuple[Decision, ...]:
    """What becomes of the hooks that were not finished."""
    made: list[Decision] = []
    for step in pipeline.steps:
        if step.on_failure:
            made += _unfinished(clean_up(step, state), f"the clean-up after {step.id}")
    asked = unknown(pipeline.finally_, state)
    if ending_was_cut_off(pipeline, state) or asked:
        made += _unfinished(Rest(ask=asked[0]) if asked else last_hooks(pipeline, state), "the end of the run")
    return tuple(made)


def _unfinished(left: Rest, what: str) -> list[Decision]:
    if left.ask:
        reason = f"{what} was cut off in it and it is not idempotent: nobody knows how far it got"
        return [Decision(step=left.ask, decision="ask", reason=reason)]
    return [Decision(step=hook.id, decision="run", reason=f"{what} was not finished") for hook in left.hooks]


def up_to(pipeline: Pipeline, whole: Plan, until: str) -> Plan:
    """The plan as it is shown when only the way to one step is wanted."""
    wanted = {until, *Ancestors({step.id: step.needs for step in pipeline.steps}).of(until)}
    decisions = tuple(
        made
        if made.step in wanted or made.decision == "reuse"
        else Decision(step=made.step, decision="later", reason=f"after --until {until}")
        for made in whole.decisions
    )
    return msgspec.structs.replace(whole, decisions=decisions)


def _started_from(start: str, decision: Decision, *, forced: bool, new: bool) -> Decision:
    if forced and decision.decision != "ask":
        verdict: Verdict = "run" if new else "rerun"
        return Decision(step=decision.step, decision=verdict, reason=f"--from {start}")
    if new and not forced:
        return Decision(step=decision.step, decision="skip", reason=f"before --from {start}")
    return decision


def lineage_of(step: Step, unit: UnitState, lineage: Mapping[str, int]) -> int:
    """The journal position at which this step or anything it depends on last produced something different."""
    newest = unit.changed_seq
    for need in step.needs:
        newest = max(newest, lineage[need])
    return newest


def stale(step: Step, unit: UnitState, lineage: Mapping[str, int]) -> str | None:
    """The need that produced something different since this unit started, if there is one."""
    for need in step.needs:
        if lineage[need] > unit.started_seq:
            return need
    return None


def _decide(
    pipeline: Pipeline,
    step: Step,
    unit: UnitState,
    made: Mapping[str, Decision],
    lineage: Mapping[str, int],
    *,
    changes: Changes,
) -> Decision:
    match unit.status:
        case "pending":
            return _pending(step, unit)
        case "running" | "interrupted":
            return _cut_off(step, unit)
        case "failed" if not (unit.allowed and step.allow_failure):
            reason = "failed, which is no longer allowed" if unit.allowed else _failure(unit)
            return Decision(step=step.id, decision="rerun", reason=reason)
        case _:
            pass
    edited = bool(unit.fingerprint) and unit.fingerprint != fingerprint(step, pipeline.env)
    if edited and changes != "keep":
        return Decision(step=step.id, decision="rerun", reason="its definition changed", changed=True)
    older = stale(step, unit, lineage)
    if older is not None:
        return Decision(step=step.id, decision="rerun", reason=f"{older} produced something different since")
    rerunning = [need for need in step.needs if made[need].decision != "reuse"]
    if rerunning:
        reason = f"needs {_names(rerunning)}, which {'is' if len(rerunning) == 1 else 'are'} not settled"
        if all(made[need].decision == "rerun" for need in rerunning):
            reason = f"needs {_names(rerunning)}, which {'runs' if len(rerunning) == 1 else 'run'} again"
        return Decision(step=step.id, decision="rerun", reason=reason, unless_same=tuple(rerunning))
    return Decision(
        step=step.id,
        decision="reuse",
        reason=_reuse_reason(unit, edited=edited),
        changed=edited,
        saved_seconds=unit.duration or 0.0,
    )


def _pending(step: Step, unit: UnitState) -> Decision:
    if unit.attempts:
        return Decision(step=step.id, decision="rerun", reason=unit.reason or "its record no longer counts")
    return Decision(step=step.id, decision="run", reason="not started yet")


def _cut_off(step: Step, unit: UnitState) -> Decision:
    if step.idempotent:
        return Decision(step=step.id, decision="rerun", reason=f"attempt {unit.attempts} was cut off")
    reason = f"attempt {unit.attempts} was cut off and the step is not idempotent: nobody knows how far it got"
    return Decision(step=step.id, decision="ask", reason=reason)


def _reuse_reason(unit: UnitState, *, edited: bool) -> str:
    if unit.status == "skipped":
        return f"skipped: {unit.reason}"
    if unit.status == "failed":
        return "failed, which is allowed"
    return "completed; its definition changed, which --changes keep ignores" if edited else "completed"


def _failure(unit: UnitState) -> str:
    if unit.retry_at is not None:
        return f"attempt {unit.attempts} failed and was to be repeated"
    if unit.reason.startswith("marked"):
        return unit.reason
    message = unit.error.message.splitlines()[0] if unit.error and unit.error.message else "failed"
    return f"failed: {message}"


def _names(steps: list[str]) -> str:
    if len(steps) > 3:
        return f"{steps[0]}, {steps[1]} and {len(steps) - 2} others"
    return " and ".join(steps)
