"""The planner: which steps will run, and why, as a pure function of the pipeline, the state and the audit of its files.

One rule decides about everything that completed before: a unit's record stays valid while its definition is
the same and no dependency, direct or not, has produced something different since the unit started.
"Since" is journal order, never a clock. Because of it a crash in the middle of a cascade loses nothing, and a
step that reran and produced the same stops the cascade. Where a step declares its inputs, their digests decide
instead.

The artifacts of a reused step must be intact. If not, they are restored or the step runs again. Some flaws matter only
if another step runs: those of a temporary artifact, if a consumer does; those of a path that a later step took over,
if that step does. So the decisions are made forward, then checked backward, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from rerail.core import inflight
from rerail.core.audit import Audit, Flaw
from rerail.core.compaction import past_loop
from rerail.core.events import AttemptProgress
from rerail.core.graph import Ancestors, downstream, topological
from rerail.core.hooks import PendingHooks, finally_was_interrupted, in_doubt, pending_cleanup, pending_finally
from rerail.core.items import allowed_failures
from rerail.core.model import Approve, Loop, Map, Pipeline, Step, every_step
from rerail.core.money import NOTHING, StepTotals, totals_by_step
from rerail.core.plan import Decision, DecisionKind, Plan, PlanOptions
from rerail.core.staleness import covers, fingerprint, same_body, stale_need, takes_in, upstream_seq
from rerail.core.state import RunState, UnitState
from rerail.core.unit_id import UnitId, ancestor_step, is_item_within, step_depth, top_step


def plan(pipeline: Pipeline, state: RunState, audit: Audit | None = None, options: PlanOptions | None = None) -> Plan:
    """Decide for every step, in declaration order, whether it runs and why."""
    options = options or PlanOptions()
    if not state.units and not options.start:
        return Plan(decisions=tuple(pending(step, UnitState()) for step in pipeline.steps))
    body = StepGroup(steps=pipeline.steps, env=pipeline.env, index=step_index(pipeline))
    decisions = decide_steps(body, state, audit or Audit(), options)
    declared = {step.id for step in pipeline.steps} | set(pipeline.hooks)
    return Plan(
        decisions=tuple(decisions[step.id] for step in pipeline.steps),
        removed=tuple(step for step, item in state.units if item is None and top_step(step) not in declared),
        hooks=_hooks(pipeline, state),
        finally_interrupted=finally_was_interrupted(pipeline, state),
    )


def _hooks(pipeline: Pipeline, state: RunState) -> tuple[Decision, ...]:
    """Return the decisions about hooks that were not finished."""
    decisions: list[Decision] = []
    for step in pipeline.steps:
        if step.on_failure:
            decisions += _unfinished(pending_cleanup(step, state), f"the cleanup of {step.id}")
    asked = in_doubt(pipeline.finally_, state)
    if finally_was_interrupted(pipeline, state) or asked:
        decisions += _unfinished(PendingHooks(ask=asked[0]) if asked else pending_finally(pipeline, state), "`finally`")
    return tuple(decisions)


def _unfinished(pending_hooks: PendingHooks, what: str) -> list[Decision]:
    if pending_hooks.ask:
        reason = f"{what} was interrupted in it and it is not idempotent: its outcome is in doubt"
        return [Decision(step=pending_hooks.ask, decision="ask", reason=reason)]
    return [Decision(step=hook.id, decision="run", reason=f"{what} did not finish") for hook in pending_hooks.hooks]


def up_to(pipeline: Pipeline, whole: Plan, until: str) -> Plan:
    """Return the plan as it is shown for `--until`: steps that are not needed for it come later."""
    wanted = {until, *Ancestors({step.id: step.needs for step in pipeline.steps}).of(until)}
    decisions = tuple(
        decision
        if decision.step in wanted or decision.kept
        else Decision(step=decision.step, decision="later", reason=f"after --until {until}")
        for decision in whole.decisions
    )
    return msgspec.structs.replace(whole, decisions=decisions)


class StepGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that are planned together, and the instance they are in."""

    steps: Sequence[Step]
    env: Mapping[str, str]
    index: StepIndex
    item: str | None = None


def decide_steps(body: StepGroup, state: RunState, audit: Audit, options: PlanOptions) -> dict[str, Decision]:
    """Return a decision for each of these steps."""
    planner = Planner(body, state, audit, options)
    decisions = planner.forward()
    while planner.backward(decisions):
        decisions = planner.forward()
    return decisions


class Planner:
    """Planning of one group of steps: of a pipeline, of an item or of an iteration."""

    def __init__(self, body: StepGroup, state: RunState, audit: Audit, options: PlanOptions) -> None:
        needs = {step.id: step.needs for step in body.steps}
        self._env = body.env
        self._item = body.item
        self._index = body.index
        self._state = state
        self._audit = audit
        self._options = options
        self._steps = {step.id: step for step in body.steps}
        controllers = {step.id for step in body.steps if step.is_controller}
        self._inside = nested_units(state, controllers, body.item)
        self._order = topological(needs)
        self._above = Ancestors(needs)
        self._forced = downstream(needs, [options.start]) if options.start else set()
        self._within: dict[str, StepTotals] = {}
        self._needed: set[tuple[str, str]] = set()  # step and path of flaws that turned out to matter
        # Steps that wrote over a path of an earlier step: they cannot be kept if any of their needs runs again.
        self._writing_over = {later for flaws in audit.flaws.values() for flaw in flaws for later in flaw.later}

    def forward(self) -> dict[str, Decision]:
        """Return the decisions, each made after those it depends on."""
        decisions: dict[str, Decision] = {}
        lineage: dict[str, int] = {}
        options = self._options
        for step_id in self._order:
            step = self._steps[step_id]
            unit = self._state.unit(UnitId(step_id, self._item))
            decisions[step_id] = self._decide(step, unit, decisions, lineage)
            if options.start:
                forced, new = step_id in self._forced, self._state.seq == 0
                decisions[step_id] = _started_from(options.start, decisions[step_id], forced=forced, new=new)
            lineage[step_id] = upstream_seq(step, unit, lineage)
        return decisions

    def backward(self, decisions: Mapping[str, Decision]) -> bool:
        """Find flaws that matter because of the steps that will run; return whether there are new ones."""
        if not self._audit.flaws:
            return False
        running = {step for step, decision in decisions.items() if not decision.kept}
        found = False
        for step_id in reversed(self._order):
            if step_id in running and not decisions[step_id].unless_same:
                continue
            for flaw in self._audit.flaws.get(UnitId(step_id, self._item), ()):
                if (step_id, flaw.path) in self._needed or not (flaw.temporary or flaw.later):
                    continue
                if self._matters(step_id, flaw, running):
                    self._needed.add((step_id, flaw.path))
                    found = True
                    if not self._restorable(flaw):
                        running.add(step_id)
        return found

    def _matters(self, step_id: str, flaw: Flaw, running: set[str]) -> bool:
        if flaw.later:
            return not running.isdisjoint(flaw.later)
        return any(step_id in self._above.of(other) and self._may_read(other, flaw) for other in running)

    def _may_read(self, step_id: str, flaw: Flaw) -> bool:
        """Return whether a step may read a flawed path: without declared inputs it may read anything before it."""
        inputs = self._steps[step_id].inputs
        return not inputs or any("${{" in read.path or covers(read.path, flaw.path) for read in inputs)

    def _restorable(self, flaw: Flaw) -> bool:
        return flaw.restorable and self._options.restore

    def _decide(
        self, step: Step, unit: UnitState, decisions: Mapping[str, Decision], lineage: Mapping[str, int]
    ) -> Decision:
        flaws = tuple(
            flaw
            for flaw in self._audit.flaws.get(UnitId(step.id, self._item), ())
            if (step.id, flaw.path) in self._needed or not (flaw.temporary or flaw.later)
        )
        decision = self._by_record(step, unit, decisions, lineage)
        if decision is None and step.is_controller and unit.settled:
            decision = self._by_nested_units(step, unit)
        if decision is None:
            decision = self._by_files(step, unit, decisions, flaws)
        if decision is None and step.id in self._writing_over and not all(decisions[need].kept for need in step.needs):
            reason = "overwrites a file of a step that may rerun"
            decision = Decision(step=step.id, decision="rerun", reason=reason)
        if decision is None:
            decision = _by_needs(step, decisions)
        if decision is None:
            edited = self._edited(step, unit)
            mended = [flaw.words for flaw in flaws]
            if step.is_controller and step.id in self._inside:
                mended += [one.reason for one in self._inner(step)]
            reason = ", ".join(mended[:3]) if mended else _reuse_reason(unit, edited=edited)
            decision = Decision(
                step=step.id,
                decision="restore" if mended else "reuse",
                reason=reason,
                changed=edited,
                saved_seconds=unit.duration or 0.0,
            )
        goes_on = decision.kept or decision.decision == "continue" or decision.unless_same
        if step.is_controller and step.id in self._inside and goes_on:
            decision = msgspec.structs.replace(decision, inner=self._inner(step))
        if step.is_controller and step.id in self._inside:
            decision = self._or_ask(step, decision, decisions)
        return msgspec.structs.replace(decision, flaws=flaws) if flaws else decision

    def _inner(self, step: Step) -> tuple[Decision, ...]:
        units = self._inside.get(step.id, ())
        return nested_decisions(units, self._index, self._state, self._audit, self._options)

    def _or_ask(self, step: Step, decision: Decision, decisions: Mapping[str, Decision]) -> Decision:
        """Return the decision about a controller, or "ask" where it would pass over a unit in doubt inside it.

        Continuing does not check completed units again. Beginning anew forgets the units in doubt.
        """
        if decision.kept or decision.decision == "ask":
            return decision
        inner = decision.inner or self._inner(step)
        asked = [nested for nested in inner if nested.decision == "ask"]
        in_doubt = [nested for nested in asked if self._state.unit(nested.unit).status in ("running", "interrupted")]
        goes_on = decision.decision == "continue"
        if goes_on and all(decisions[need].kept for need in step.needs):
            in_doubt = []  # the item, iteration or pipeline it is in asks by itself, and the others continue
        waits_for = in_doubt + [
            nested for nested in asked if goes_on and self._state.unit(nested.unit).status == "completed"
        ]
        if not waits_for:
            return decision
        reason = f"{waits_for[0].unit}: {waits_for[0].reason}"
        return msgspec.structs.replace(decision, decision="ask", reason=reason, inner=inner)

    def _by_nested_units(self, step: Step, unit: UnitState) -> Decision | None:
        """Reopen a completed controller when a nested artifact is broken or a dead letter is retried."""
        retried = self._retried(step)
        if retried:
            reason = f"retrying {len(retried)} dead letter{'' if len(retried) == 1 else 's'}"
            return self._retrying(step, retried, Decision(step=step.id, decision="continue", reason=reason))
        nested = self._inner(step)
        lost = [decision for decision in nested if decision.decision in ("rerun", "ask")]
        if not lost:
            return None
        # A later iteration depends on all that came before it; and of an adopted controller only those units are known
        # that have to be proved.
        anew = isinstance(step.action, Loop) or unit.attempts == 0
        anew = anew or (isinstance(step.action, Map) and not (unit.items and unit.items.total))
        kind: DecisionKind = "rerun" if anew and lost[0].decision != "ask" else "continue"
        return Decision(step=step.id, decision=kind, reason=f"{lost[0].unit}: {lost[0].reason}", inner=nested)

    def _retried(self, step: Step) -> list[UnitId]:
        """Return the dead letters inside a controller that are to be retried."""
        if not self._options.retry:
            return []
        inside = set(self._inside.get(step.id, ()))
        return sorted((unit for unit in self._options.retry if unit in inside), key=str)

    def _retrying(self, step: Step, retried: list[UnitId], decision: Decision) -> Decision:
        """Return the decision to continue, or to begin a loop anew if a retried item is in a past iteration of it."""
        loops = {unit: loop for unit in retried if (loop := past_loop(self._state, unit)) is not None}
        for unit, loop in loops.items():
            if loop == (step.id, self._item):
                reason = f"retrying {unit}, of an earlier iteration, restarts the loop"
                return Decision(step=step.id, decision="rerun", reason=reason)
        anew = sorted({str(loop) for loop in loops.values()})
        if not anew:
            return decision
        reason = f"{decision.reason}; {_names(anew)} restart{'s' if len(anew) == 1 else ''}"
        return msgspec.structs.replace(decision, reason=reason)

    def _by_progress(
        self, step: Step, unit: UnitState, decisions: Mapping[str, Decision], lineage: Mapping[str, int]
    ) -> Decision | None:
        """Decide about a controller that has begun and not completed: it continues, unless its dependencies changed."""
        if unit.items is None or unit.status in ("completed", "skipped"):
            return None
        retried = self._retried(step)
        if unit.settled and step.allow_failure and not retried:
            return None
        edited = self._edited(step, unit) and not same_body(unit.fingerprint, fingerprint(step, self._env))
        other_kind = unit.items.is_loop != isinstance(step.action, Loop)
        if edited and (self._options.changes != "keep" or other_kind):
            return Decision(step=step.id, decision="rerun", reason="definition changed", changed=True)
        older = stale_need(step, unit, lineage, self._state, self._env, self._item)
        if older is not None:
            return Decision(step=step.id, decision="rerun", reason=f"result of {older} changed")
        reason = describe_progress(unit)
        retries = len(retried) or (unit.items.failed if has_failed(step, unit) and not self._options.retry else 0)
        if retries:
            reason += f", retrying {retries}"
        unsettled = [need for need in step.needs if not decisions[need].kept]
        if unsettled:
            reason += f"; restarts if the result of {_names(unsettled)} changes"
        if step.id in self._options.relisted:
            reason += f"; {self._options.relisted[step.id]}"
        going_on = Decision(step=step.id, decision="continue", reason=reason, saved_seconds=self._worked(step, unit))
        return self._retrying(step, retried, going_on)

    def _worked(self, step: Step, unit: UnitState) -> float:
        """Return the seconds of work done; for a top-level step, unfinished items included."""
        if not UnitId(step.id, self._item).is_top_level:
            return unit.worked
        self._within = self._within or totals_by_step(self._state, lasting=True)
        return self._within.get(step.id, NOTHING).worked

    def _edited(self, step: Step, unit: UnitState) -> bool:
        return bool(unit.fingerprint) and unit.fingerprint != fingerprint(step, self._env)

    def _by_record(
        self, step: Step, unit: UnitState, decisions: Mapping[str, Decision], lineage: Mapping[str, int]
    ) -> Decision | None:
        """Decide by the record alone; None if it does not settle the matter."""
        if step.is_controller and (going_on := self._by_progress(step, unit, decisions, lineage)) is not None:
            return going_on
        match unit.status:
            case "pending":
                return pending(step, unit)
            case "running" | "interrupted":
                seen = self._options.seen.get(UnitId(step.id, self._item), unit.progress)
                return _interrupted(step, unit, seen)
            case "failed" if not (unit.allowed and step.allow_failure):
                reason = "failed, and is no longer allowed to fail" if unit.allowed else inflight.describe_failure(unit)
                return Decision(step=step.id, decision="rerun", reason=reason)
            case _:
                pass
        if self._edited(step, unit) and self._options.changes != "keep":
            if unit.items is not None and same_body(unit.fingerprint, fingerprint(step, self._env)):
                how = self._options.relisted.get(step.id, "its list is built again")
                reason = f"`over` was edited: {how}"
                return Decision(step=step.id, decision="continue", reason=reason, changed=True)
            return Decision(step=step.id, decision="rerun", reason="definition changed", changed=True)
        older = stale_need(step, unit, lineage, self._state, self._env, self._item)
        if older is not None:
            return Decision(step=step.id, decision="rerun", reason=f"result of {older} changed")
        return None

    def _by_files(
        self, step: Step, unit: UnitState, decisions: Mapping[str, Decision], flaws: tuple[Flaw, ...]
    ) -> Decision | None:
        """Decide by the files on disk: artifacts that cannot be restored, inputs that have changed."""
        lost = [flaw for flaw in flaws if not self._restorable(flaw)]
        if lost:
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            why = "" if self._options.restore else ", --no-restore"
            if not step.idempotent:
                reason = f"{lost[0].words}{more}, and the step is not idempotent: rerail does not repeat it by itself"
                return Decision(step=step.id, decision="ask", reason=reason)
            return Decision(step=step.id, decision="rerun", reason=f"{lost[0].words}{more}{why}")
        now = self._audit.inputs.get(UnitId(step.id, self._item))
        if unit.status != "completed" or now is None:
            return None
        changed = [read.path for read, was in zip(now, unit.inputs, strict=False) if read.sha256 != was.sha256]
        changed = [path for path in changed if not self._taken_over(path, step, unit)]
        if not changed:
            return None
        remade = {path: self._producers_of(path, decisions) for path in changed}
        for path, producers in remade.items():
            if not producers:
                return Decision(step=step.id, decision="rerun", reason=f"input {path} changed")
        if all(self._is_restored_as_read(path, unit, producers, decisions) for path, producers in remade.items()):
            return None
        all_of_them = tuple(dict.fromkeys(producer for producers in remade.values() for producer in producers))
        reason = f"input {changed[0]} is produced again by {_names(list(all_of_them))}"
        return Decision(step=step.id, decision="rerun", reason=reason, unless_same=all_of_them)

    def _taken_over(self, path: str, step: Step, unit: UnitState) -> bool:
        """Return whether an input was written over since by this step or a later one, so its content is not that of then.

        If that step runs again, the earlier content is restored first.
        """
        return any(
            writer.status == "completed"
            and writer.completed_seq > unit.started_seq
            and any(takes_in(path, made.path) or takes_in(made.path, path) for made in writer.artifacts)
            and (name == step.id or (name in self._steps and step.id in self._above.of(name)))
            for (name, _), writer in self._state.units.items()
        )

    def _producers_of(self, path: str, decisions: Mapping[str, Decision]) -> list[str]:
        """Return the steps whose flawed artifacts are at or below an input, and will be intact before it is read."""
        return [
            step_id
            for unit, flaws in self._audit.flaws.items()
            if (step_id := self._owner(unit)) in decisions and any(covers(path, flaw.path) for flaw in flaws)
        ]

    def _owner(self, unit: UnitId) -> str:
        """Return the step of this group that a unit is an instance of, or is inside of; '' if there is none."""
        inside = next((step for step, units in self._inside.items() if unit in units), "")
        return inside or (unit.step if unit.item == self._item else "")

    def _is_restored_as_read(
        self, path: str, unit: UnitState, producers: list[str], decisions: Mapping[str, Decision]
    ) -> bool:
        """Return whether restoring an input's producer brings back the content that this unit had read."""
        if len(producers) != 1 or not decisions[producers[0]].kept:
            return False
        of_producer = self._state.unit(UnitId(producers[0], self._item)).artifacts
        sealed = next((record.sha256 for record in of_producer if record.path == path), "")
        return bool(sealed) and sealed == next((read.sha256 for read in unit.inputs if read.path == path), "")


def _started_from(start: str, decision: Decision, *, forced: bool, new: bool) -> Decision:
    if forced and decision.decision != "ask":
        kind: DecisionKind = "run" if new else "rerun"
        return Decision(step=decision.step, decision=kind, reason=f"--from {start}", flaws=decision.flaws)
    if new and not forced:
        return Decision(step=decision.step, decision="skip", reason=f"before --from {start}")
    return decision


def has_failed(step: Step, unit: UnitState) -> bool:
    """Return whether a controller has failed, or was bound to when its invocation was killed before the record.

    Then a resume retries the failures inside it.
    """
    if unit.status == "failed":
        return True
    items, action = unit.items, step.action
    if items is None or unit.settled or not isinstance(action, Map) or not items.failed:
        return False
    if action.on_item_failure == "stop":
        return True
    allowed = allowed_failures(items.total, action.max_failures, action.max_failures_percent)
    return items.next_pending(0) < 0 and items.failed > allowed


def _by_needs(step: Step, decisions: Mapping[str, Decision]) -> Decision | None:
    """Decide to rerun a step whose needs rerun, unless these produce the same again."""
    rerunning = [need for need in step.needs if not decisions[need].kept]
    if not rerunning:
        return None
    reason = f"depends on {_names(rerunning)}"
    if any(decisions[need].decision != "rerun" for need in rerunning):
        reason += f", which {'has' if len(rerunning) == 1 else 'have'} not finished"
    return Decision(step=step.id, decision="rerun", reason=reason, unless_same=tuple(rerunning))


def pending(step: Step, unit: UnitState) -> Decision:
    if isinstance(step.action, Approve):
        return Decision(step=step.id, decision="run", reason=unit.reason if unit.approval else "waiting for approval")
    if unit.attempts or unit.completions:
        return Decision(step=step.id, decision="rerun", reason=unit.reason or "invalidated")
    return Decision(step=step.id, decision="run", reason="not started yet")


def _interrupted(step: Step, unit: UnitState, seen: AttemptProgress | None) -> Decision:
    how = inflight.describe_interruption(unit, seen)
    if step.idempotent:
        return Decision(step=step.id, decision="rerun", reason=how)
    reason = f"{how} and the step is not idempotent: its outcome is in doubt"
    return Decision(step=step.id, decision="ask", reason=reason)


def _reuse_reason(unit: UnitState, *, edited: bool) -> str:
    if unit.status == "skipped":
        return f"skipped: {unit.reason}"
    if unit.status == "failed":
        return "failed (allowed)"
    return "completed; definition changed, ignored by --changes keep" if edited else "completed"


def _names(steps: list[str]) -> str:
    if len(steps) > 3:
        return f"{steps[0]}, {steps[1]} and {len(steps) - 2} others"
    return " and ".join(steps)


StepIndex = Mapping[tuple[str, int], Step]  # path and depth → step: a map's only step has the map's path, one deeper


def step_index(pipeline: Pipeline) -> StepIndex:
    """Return every step of a pipeline by path and depth."""
    return {(step.id, depth): step for depth, step in every_step(pipeline)}


def step_at(index: StepIndex, unit: UnitId) -> Step | None:
    """Return the step that a unit is an instance of; None for an item of several steps, and for a removed step."""
    return index.get((unit.step, unit.depth))


def nested_units(state: RunState, ids: Collection[str], item: str | None) -> dict[str, list[UnitId]]:
    """Return the units inside each of these steps of one instance."""
    found: dict[str, list[UnitId]] = {}
    if not ids:
        return found
    depth = step_depth(next(iter(ids)))
    for unit in state.units:
        top = ancestor_step(unit.step, depth)
        if top in ids and is_item_within(unit.item, item) and unit != (top, item):
            found.setdefault(top, []).append(unit)
    return found


def nested_decisions(
    units: Iterable[UnitId], index: StepIndex, state: RunState, audit: Audit, options: PlanOptions
) -> tuple[Decision, ...]:
    """Return decisions about the units in doubt and the flaws inside a controller that continues or is kept."""
    decisions: list[Decision] = []
    for unit in units:
        state_of_unit, step = state.units[unit], step_at(index, unit)
        if step is None:
            continue
        if state_of_unit.status in ("running", "interrupted") and not step.idempotent and not step.is_controller:
            decisions.append(
                _ask(
                    unit,
                    f"{unit} was interrupted during attempt {state_of_unit.attempts}",
                    "its outcome is in doubt",
                )
            )
        flaws = tuple(flaw for flaw in audit.flaws.get(unit, ()) if not (flaw.temporary or flaw.later))
        if flaws:
            decisions.append(_flawed(unit, step, flaws, options))
    return tuple(decisions)


def _ask(unit: UnitId, what: str, why: str) -> Decision:
    return Decision(step=unit.step, item=unit.item, decision="ask", reason=f"{what} and it is not idempotent: {why}")


def _flawed(unit: UnitId, step: Step, flaws: tuple[Flaw, ...], options: PlanOptions) -> Decision:
    lost = [flaw for flaw in flaws if not (flaw.restorable and options.restore)]
    if not lost:
        words = ", ".join(flaw.words for flaw in flaws[:3])
        return Decision(step=unit.step, item=unit.item, decision="restore", reason=words, flaws=flaws)
    if not step.idempotent:
        return _ask(unit, lost[0].words, "rerail does not repeat it by itself")
    return Decision(step=unit.step, item=unit.item, decision="rerun", reason=lost[0].words, flaws=flaws)


def describe_progress(unit: UnitState) -> str:
    """Describe the progress of a controller."""
    items = unit.items
    if items is None or (items.total == 0 and not items.is_loop):
        return "started"
    if items.is_loop:
        return f"{items.completed} iteration{'' if items.completed == 1 else 's'} done"
    failed = f", {items.failed} in the dead letter queue" if items.failed else ""
    return f"{items.closed} of {items.total} items done{failed}"
