"""What will run, and why: a pure function of the pipeline, the state and what was found on disk."""

from __future__ import annotations

import msgspec

from rerail.core.audit import Audit
from rerail.core.graph import Ancestors
from rerail.core.hooks import Rest, clean_up, ending_was_cut_off, last_hooks, unknown
from rerail.core.inside import step_index
from rerail.core.making import Frame, covers, decide, lineage_of, pending, stale, takes_in
from rerail.core.model import Pipeline
from rerail.core.plan import KEPT, Changes, Decision, Plan, Verdict, Wishes
from rerail.core.state import RunState, UnitState

__all__ = [
    "KEPT",
    "Changes",
    "Decision",
    "Plan",
    "Verdict",
    "Wishes",
    "covers",
    "lineage_of",
    "plan",
    "stale",
    "takes_in",
    "up_to",
]


def plan(pipeline: Pipeline, state: RunState, audit: Audit | None = None, wishes: Wishes | None = None) -> Plan:
    """Decide for every step, in declaration order, whether it runs and why."""
    wishes = wishes or Wishes()
    if not state.units and not wishes.start:
        return Plan(decisions=tuple(pending(step, UnitState()) for step in pipeline.steps))
    body = Frame(steps=pipeline.steps, env=pipeline.env, index=step_index(pipeline))
    made = decide(body, state, audit or Audit(), wishes)
    known = {step.id for step in pipeline.steps} | set(pipeline.hooks)
    return Plan(
        decisions=tuple(made[step.id] for step in pipeline.steps),
        removed=tuple(step for step, item in state.units if item is None and step.split("/", 1)[0] not in known),
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
        if made.step in wanted or made.kept
        else Decision(step=made.step, decision="later", reason=f"after --until {until}")
        for made in whole.decisions
    )
    return msgspec.structs.replace(whole, decisions=decisions)
