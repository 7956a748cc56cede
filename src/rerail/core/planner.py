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
from rerail.core.events import AttemptProgress, Cause, Reason
from rerail.core.graph import Ancestors, downstream, topological
from rerail.core.hooks import PendingHooks, finally_was_interrupted, in_doubt, pending_cleanup, pending_finally
from rerail.core.items import allowed_failures
from rerail.core.model import Approve, Loop, Map, Pipeline, Step, every_step
from rerail.core.money import NOTHING, StepTotals, totals_by_step
from rerail.core.plan import Decision, DecisionKind, Plan, PlanOptions
from rerail.core.staleness import (
    covers,
    fingerprint,
    named_needs,
    nearest,
    new_dependency,
    same_body,
    stale_reason,
    takes_in,
    upstream_seq,
)
from rerail.core.state import RunState, UnitState
from rerail.core.unit_id import UnitId, ancestor_step, is_item_within, step_depth, top_step


def plan(pipeline: Pipeline, state: RunState, audit: Audit | None = None, options: PlanOptions | None = None) -> Plan:
    """Decide for every step, in declaration order, whether it runs and why."""
    options = options or PlanOptions()
    if not state.units and not options.start and not options.skip:
        return Plan(decisions=tuple(pending(step, UnitState()) for step in pipeline.steps))
    index = step_index(pipeline)
    body = StepGroup(steps=pipeline.steps, env=pipeline.env, index=index, max_crashes=pipeline.max_crashes)
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
        decisions += _unfinished(
            PendingHooks(in_doubt=asked[0]) if asked else pending_finally(pipeline, state), "`finally`"
        )
    return tuple(decisions)


def _unfinished(pending_hooks: PendingHooks, what: str) -> list[Decision]:
    if pending_hooks.in_doubt:
        reason = f"{what} was interrupted in it and it is not idempotent: its outcome is in doubt"
        interrupted = Cause(kind="interrupted")
        return [Decision(step=pending_hooks.in_doubt, decision="in-doubt", reason=reason, because=interrupted)]
    hooks = pending_hooks.hooks
    reason = f"{what} did not finish"
    return [Decision(step=hook.id, decision="run", reason=reason, because=Cause(kind="hook")) for hook in hooks]


def up_to(pipeline: Pipeline, whole: Plan, until: str) -> Plan:
    """Return the plan as it is shown for `--until`: steps that are not needed for it come later."""
    wanted = {until, *Ancestors({step.id: step.needs for step in pipeline.steps}).of(until)}
    decisions = tuple(
        decision
        if decision.step in wanted or decision.kept
        else Decision(
            step=decision.step,
            decision="later",
            reason=f"after --until {until}",
            because=Cause(kind="until", step=until),
        )
        for decision in whole.decisions
    )
    return msgspec.structs.replace(whole, decisions=decisions)


class StepGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that are planned together, and the instance they are in."""

    steps: Sequence[Step]
    env: Mapping[str, str]
    index: StepIndex
    max_crashes: int = 0  # 0: no limit
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
        self._max_crashes = body.max_crashes
        self._item = body.item
        self._index = body.index
        self._state = state
        self._audit = audit
        self._options = options
        self._needs = needs
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
            if step_id in options.skip and not (decisions[step_id].kept or decisions[step_id].unless_unchanged):
                cause = Cause(kind="skip")
                flaws = decisions[step_id].flaws
                decisions[step_id] = Decision(step=step_id, decision="skip", reason="--skip", because=cause, flaws=flaws)
            lineage[step_id] = upstream_seq(step, unit, lineage)
        return decisions

    def backward(self, decisions: Mapping[str, Decision]) -> bool:
        """Find flaws that matter because of the steps that will run; return whether there are new ones."""
        if not self._audit.flaws:
            return False
        running = {step for step, decision in decisions.items() if not decision.kept}
        found = False
        for step_id in reversed(self._order):
            if step_id in running and not decisions[step_id].unless_unchanged:
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
            decision = self._overwriting(step, decisions)
        if decision is None:
            decision = self._by_needs(step, unit, decisions)
        if decision is None:
            edited = self._edited(step, unit)
            mended = [flaw.words for flaw in flaws]
            if step.is_controller and step.id in self._inside:
                mended += [one.reason for one in self._inner(step)]
            kept = _kept_reason(unit, edited=edited)
            path = flaws[0].path if flaws else ""
            decision = Decision(
                step=step.id,
                decision="restore" if mended else "reuse",
                reason=", ".join(mended[:3]) if mended else kept.text,
                because=Cause(kind="restored", path=path) if mended else kept.cause,
                changed=edited,
                saved_seconds=self._worked(step, unit) if step.is_controller else unit.duration or 0.0,
            )
        goes_on = decision.kept or decision.decision == "continue" or decision.unless_unchanged
        if step.is_controller and step.id in self._inside and goes_on:
            decision = msgspec.structs.replace(decision, inner=self._inner(step))
        if step.is_controller and step.id in self._inside:
            decision = self._or_ask(step, decision, decisions)
        return msgspec.structs.replace(decision, flaws=flaws) if flaws else decision

    def _inner(self, step: Step) -> tuple[Decision, ...]:
        units = self._inside.get(step.id, ())
        return nested_decisions(units, self._index, self._state, self._audit, self._options)

    def _or_ask(self, step: Step, decision: Decision, decisions: Mapping[str, Decision]) -> Decision:
        """Return the decision about a controller, or "in-doubt" where it would pass over a unit in doubt inside it.

        Continuing does not check completed units again. Beginning anew forgets the units in doubt.
        """
        if decision.kept or decision.decision == "in-doubt":
            return decision
        inner = decision.inner or self._inner(step)
        asked = [nested for nested in inner if nested.decision == "in-doubt"]
        in_doubt = [nested for nested in asked if self._state.unit(nested.unit).status in ("running", "interrupted")]
        goes_on = decision.decision == "continue"
        if goes_on and all(decisions[need].kept for need in step.needs):
            in_doubt = []  # the item, iteration or pipeline it is in asks by itself, and the others continue
        waits_for = in_doubt + [
            nested for nested in asked if goes_on and self._state.unit(nested.unit).status == "completed"
        ]
        if not waits_for:
            return decision
        why = _inside(waits_for[0])
        return msgspec.structs.replace(decision, decision="in-doubt", reason=why.text, because=why.cause, inner=inner)

    def _by_nested_units(self, step: Step, unit: UnitState) -> Decision | None:
        """Reopen a completed controller when a nested artifact is broken or a dead letter is retried."""
        retried = self._retried(step)
        if retried:
            reason = f"retrying {len(retried)} dead letter{'' if len(retried) == 1 else 's'}"
            because = Cause(kind="dead-letter", step=retried[0].step, item=retried[0].item)
            going_on = Decision(step=step.id, decision="continue", reason=reason, because=because)
            return self._retrying(step, retried, going_on)
        nested = self._inner(step)
        lost = [decision for decision in nested if decision.decision in ("rerun", "in-doubt")]
        if not lost:
            return None
        # A later iteration depends on all that came before it; and of an adopted controller only those units are known
        # that have to be proved.
        anew = isinstance(step.action, Loop) or unit.attempts == 0
        anew = anew or (isinstance(step.action, Map) and not (unit.items and unit.items.total))
        kind: DecisionKind = "rerun" if anew and lost[0].decision != "in-doubt" else "continue"
        why = _inside(lost[0])
        return Decision(step=step.id, decision=kind, reason=why.text, because=why.cause, inner=nested)

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
                because = Cause(kind="dead-letter", step=unit.step, item=unit.item)
                return Decision(step=step.id, decision="rerun", reason=reason, because=because)
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
        if unit.settled and step.allow_failure and not retried and not self._has_more_to_do(step, unit):
            return None
        edited = self._edited(step, unit) and not same_body(unit.fingerprint, fingerprint(step, self._env))
        other_kind = unit.items.is_loop != isinstance(step.action, Loop)
        if edited and (self._options.changes != "keep" or other_kind):
            return _redefined(step)
        stale = stale_reason(step, unit, lineage, self._needs, self._state, self._env, self._item)
        stale = stale or self._new_dependency(step, decisions)
        if stale is not None:
            return _again(step, stale)
        reason = describe_progress(unit)
        if isinstance(step.action, Loop) and self._edited(step, unit) and self._options.changes != "keep":
            reason += "; its condition was edited"
        elif self._has_more_to_do(step, unit):
            assert isinstance(step.action, Loop)
            reason += f"; max_iterations is {step.action.max_iterations} now"
        retries = len(retried) or (unit.items.failed if has_failed(step, unit) and not self._options.retry else 0)
        if retries:
            reason += f", retrying {retries}"
        named = named_needs(step, self._env)
        counting = step.needs if named is None else [need for need in named if need in decisions]
        unsettled = [need for need in counting if not decisions[need].kept]
        if unsettled:
            reason += f"; restarts if the result of {_names(unsettled)} changes"
        if step.id in self._options.relisted:
            reason += f"; {self._options.relisted[step.id]}"
        saved = self._worked(step, unit)
        because = Cause(kind="in-progress")
        going_on = Decision(step=step.id, decision="continue", reason=reason, because=because, saved_seconds=saved)
        return self._retrying(step, retried, going_on)

    def _has_more_to_do(self, step: Step, unit: UnitState) -> bool:
        """Return whether a loop that failed may go on: its condition was edited, or it may have more iterations now."""
        if not isinstance(step.action, Loop) or unit.items is None or unit.error is None:
            return False
        if unit.error.type == "LoopExhausted" and step.action.max_iterations > unit.items.completed:
            return True
        return self._edited(step, unit) and self._options.changes != "keep"

    def _worked(self, step: Step, unit: UnitState) -> float:
        """Return the seconds of work that is not repeated; for a top-level step, that of unfinished items included."""
        if not UnitId(step.id, self._item).is_top_level:
            return unit.worked - unit.void
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
                crashes = inflight.crashes_in_a_row(unit, fingerprint(step, self._env))
                return _interrupted(step, unit, seen, blocked=0 < self._max_crashes <= crashes)
            case "failed" if not (unit.allowed and step.allow_failure):
                return _again(step, inflight.failure_reason(unit))
            case _:
                pass
        if self._edited(step, unit) and self._options.changes != "keep":
            of_map = unit.items is not None and isinstance(step.action, Map)
            if of_map and same_body(unit.fingerprint, fingerprint(step, self._env)):
                how = self._options.relisted.get(step.id, "its list is built again")
                reason = f"`over` was edited: {how}"
                because = Cause(kind="list-changed")
                saved = self._worked(step, unit)
                return Decision(
                    step=step.id,
                    decision="continue",
                    reason=reason,
                    because=because,
                    changed=True,
                    saved_seconds=saved,
                )
            return _redefined(step)
        stale = stale_reason(step, unit, lineage, self._needs, self._state, self._env, self._item)
        return None if stale is None else _again(step, stale)

    def _new_dependency(self, step: Step, decisions: Mapping[str, Decision]) -> Reason | None:
        """Return the reason if a dependency has had no result yet: its first one is different in any case."""

        def new(need: str) -> bool:
            return (
                need in decisions
                and not decisions[need].kept
                and not self._state.unit(UnitId(need, self._item)).changed_seq
            )

        named = named_needs(step, self._env)
        found = nearest(step.id, self._needs, new) if named is None else next(filter(new, named), None)
        return None if found is None else new_dependency(found, self._item)

    def _by_needs(self, step: Step, unit: UnitState, decisions: Mapping[str, Decision]) -> Decision | None:
        """Decide to rerun a step whose needs rerun, unless these produce the same again."""
        rerunning = [need for need in step.needs if not decisions[need].kept]
        if not rerunning:
            return None
        new = self._new_dependency(step, decisions)
        if new is not None and (unit.completions or unit.status == "skipped"):
            return _again(step, new)
        reason = f"depends on {_names(rerunning)}"
        if any(decisions[need].decision != "rerun" for need in rerunning):
            reason += f", which {'has' if len(rerunning) == 1 else 'have'} not finished"
        same = "its result changes" if len(rerunning) == 1 else "their results change"
        reason += f"; reruns only if {same if named_needs(step, self._env) is None else 'its inputs change'}"
        because = Cause(kind="depends", step=rerunning[0], item=self._item)
        return Decision(step=step.id, decision="rerun", reason=reason, because=because, unless_unchanged=tuple(rerunning))

    def _overwriting(self, step: Step, decisions: Mapping[str, Decision]) -> Decision:
        """Return the decision about a step that wrote over a file of an earlier step, and depends on one that reruns."""
        over = ((unit, flaw.path) for unit, flaws in self._audit.flaws.items() for flaw in flaws if step.id in flaw.later)
        owner, path = next(over)
        rerunning = [need for need in step.needs if not decisions[need].kept]
        reason = f"depends on {_names(rerunning)}, and overwrites {path} of {owner}"
        because = Cause(kind="overwrites", step=rerunning[0], item=self._item, path=path)
        return Decision(step=step.id, decision="rerun", reason=reason, because=because)

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
                because = Cause(kind="artifact", path=lost[0].path)
                return Decision(step=step.id, decision="in-doubt", reason=reason, because=because)
            return _again(step, Reason(f"{lost[0].words}{more}{why}", Cause(kind="artifact", path=lost[0].path)))
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
                return _again(step, Reason(f"input {path} changed", Cause(kind="input-changed", path=path)))
        if all(self._is_restored_as_read(path, unit, producers, decisions) for path, producers in remade.items()):
            return None
        all_of_them = tuple(dict.fromkeys(producer for producers in remade.values() for producer in producers))
        reason = f"input {changed[0]} is produced again by {_names(list(all_of_them))}; reruns only if it changes"
        because = Cause(kind="depends", step=all_of_them[0], item=self._item, path=changed[0])
        return Decision(step=step.id, decision="rerun", reason=reason, because=because, unless_unchanged=all_of_them)

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
    because = Cause(kind="from", step=start)
    if forced and decision.decision != "in-doubt":
        kind: DecisionKind = "run" if new else "rerun"
        reason = f"--from {start}"
        return Decision(step=decision.step, decision=kind, reason=reason, because=because, flaws=decision.flaws)
    if new and not forced:
        return Decision(step=decision.step, decision="skip", reason=f"before --from {start}", because=because)
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


def _again(step: Step, why: Reason) -> Decision:
    return Decision(step=step.id, decision="rerun", reason=why.text, because=why.cause)


def _redefined(step: Step) -> Decision:
    because = Cause(kind="definition-changed")
    return Decision(step=step.id, decision="rerun", reason="definition changed", because=because, changed=True)


def _inside(decision: Decision) -> Reason:
    """Return the reason of a decision about a unit as that of the controller around it."""
    step, item = decision.unit
    path = decision.because.path if decision.because else ""
    kind = decision.because.kind if decision.because else "invalidated"
    return Reason(f"{decision.unit}: {decision.reason}", Cause(kind=kind, step=step, item=item, path=path))


def pending(step: Step, unit: UnitState) -> Decision:
    """Decide about a step without a record that counts."""
    if isinstance(step.action, Approve):
        reason = unit.reason if unit.approval else "waiting for approval"
        return Decision(step=step.id, decision="run", reason=reason, because=Cause(kind="approval"))
    if unit.attempts or unit.completions:
        because = unit.because or Cause(kind="invalidated")
        return Decision(step=step.id, decision="rerun", reason=unit.reason or "invalidated", because=because)
    return Decision(step=step.id, decision="run", reason="not started yet", because=Cause(kind="not-started"))


def _interrupted(step: Step, unit: UnitState, seen: AttemptProgress | None, *, blocked: bool) -> Decision:
    how = inflight.interruption_reason(unit, seen)
    if step.idempotent and blocked:
        times = unit.crashes + (unit.status == "running")
        reason = f"{inflight.describe_crashes(times)}; waiting for rerail mark"
        return Decision(step=step.id, decision="rerun", reason=reason, because=how.cause)
    if step.idempotent:
        return Decision(step=step.id, decision="rerun", reason=how.text, because=how.cause)
    reason = f"{how.text} and the step is not idempotent: its outcome is in doubt"
    return Decision(step=step.id, decision="in-doubt", reason=reason, because=how.cause)


def _kept_reason(unit: UnitState, *, edited: bool) -> Reason:
    if unit.status == "skipped":
        return Reason(f"skipped: {unit.reason}", Cause(kind="skipped"))
    if unit.status == "failed":
        return Reason("failed (allowed)", Cause(kind="allowed-failure"))
    text = "completed; definition changed, ignored by --changes keep" if edited else "completed"
    return Reason(text, Cause(kind="completed"))


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
                    Reason(f"{unit} was interrupted during attempt {state_of_unit.attempts}", Cause(kind="interrupted")),
                    "its outcome is in doubt",
                )
            )
        flaws = tuple(flaw for flaw in audit.flaws.get(unit, ()) if not (flaw.temporary or flaw.later))
        if flaws:
            decisions.append(_flawed(unit, step, flaws, options))
    return tuple(decisions)


def _ask(unit: UnitId, what: Reason, why: str) -> Decision:
    reason = f"{what.text} and it is not idempotent: {why}"
    return Decision(step=unit.step, item=unit.item, decision="in-doubt", reason=reason, because=what.cause)


def _flawed(unit: UnitId, step: Step, flaws: tuple[Flaw, ...], options: PlanOptions) -> Decision:
    lost = [flaw for flaw in flaws if not (flaw.restorable and options.restore)]
    if not lost:
        words = ", ".join(flaw.words for flaw in flaws[:3])
        because = Cause(kind="restored", path=flaws[0].path)
        return Decision(step=unit.step, item=unit.item, decision="restore", reason=words, because=because, flaws=flaws)
    why = Reason(lost[0].words, Cause(kind="artifact", path=lost[0].path))
    if not step.idempotent:
        return _ask(unit, why, "rerail does not repeat it by itself")
    return Decision(step=unit.step, item=unit.item, decision="rerun", reason=why.text, because=why.cause, flaws=flaws)


def describe_progress(unit: UnitState) -> str:
    """Describe the progress of a controller."""
    items = unit.items
    if items is None or (items.total == 0 and not items.is_loop):
        return "started"
    if items.is_loop:
        return f"{items.completed} iteration{'' if items.completed == 1 else 's'} done"
    failed = f", {items.failed} in the dead letter queue" if items.failed else ""
    return f"{items.closed} of {items.total} items done{failed}"
