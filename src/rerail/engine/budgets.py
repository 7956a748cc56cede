"""Budgets of a run, its steps and its items: checked when attempts end and as time passes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rerail.core import money
from rerail.core.events import BudgetKind, Metrics, PauseCause
from rerail.core.model import Budget, Map, Pipeline, RunOptions, Subpipeline, every_step
from rerail.core.money import Spent
from rerail.core.unit_id import UnitId, ancestor_item, steps_around
from rerail.engine.ready_queue import RunningTasks
from rerail.engine.recorder import Recorder
from rerail.engine.spec import RunSpec
from rerail.ports import Clock


class RunBudget:
    """Budget of a run, and the time limit of this invocation."""

    def __init__(self, spec: RunSpec, recorder: Recorder, clock: Clock, running: RunningTasks) -> None:
        self._running = running
        self._recorder = recorder
        self._budget = budget_of(spec.pipeline.budget, spec.options)
        self._limit = spec.options.max_runtime
        self._state = recorder.state
        self._clock = clock
        self._began = clock.monotonic()
        self._checked = self._spent()
        self.name = "the budget"  # of the limit that was reached
        self.cause: PauseCause = "budget"
        self.kind: BudgetKind = ""  # the part of the budget that is spent
        self.stops = self._budget is not None and self._budget.on_exceed == "stop"

    def exhausted(self) -> str:
        """Return why nothing new may start, or ''; warn when a threshold of the budget is passed."""
        if self._limit is not None and self._clock.monotonic() - self._began >= self._limit:
            self.name = "--max-runtime"
            self.cause = "max-runtime"
            self.stops = True  # the process is going to be killed at a certain time: nothing may be in flight then
            return f"--max-runtime {money.amount('time', self._limit)} is reached"
        if self._budget is None:
            return ""
        spent = self._spent()
        warning = money.warning(self._budget, self._checked, spent)
        if warning:
            self._recorder.warn(warning)
        self._checked = spent
        self.kind = money.exhausted_kind(self._budget, spent)
        return money.exhausted(self._budget, spent)

    def overspent(self) -> str:
        """Return how far the budget is exceeded by now; '' if it is not."""
        return money.exhausted(self._budget, self._spent()) if self._budget is not None else ""

    def due(self) -> float | None:
        """Return when time alone will have reached a limit, on the monotonic clock."""
        ends = []
        if self._limit is not None:
            ends.append(self._began + self._limit)
        if self._budget is not None and self._budget.time is not None:
            ends.append(self._began + max(self._budget.time - self._state.active_seconds, 0.0))
        return min(ends, default=None)

    def is_out_of_time(self) -> bool:
        due = self.due()
        return due is not None and self._clock.monotonic() >= due

    def _spent(self) -> Spent:
        metrics = self._state.spent
        for unit in self._running.spenders():
            record = self._state.unit(unit)
            seen = record.progress
            if seen is not None and seen.metrics and record.status == "running":
                metrics = money.added(metrics, seen.metrics)
        active = self._state.active_seconds + self._clock.monotonic() - self._began
        return Spent(cost_usd=metrics.get(money.COST, 0), tokens=money.tokens(metrics), time=active)


def budget_of(declared: Budget | None, options: RunOptions) -> Budget | None:
    """Return the budget in force: the command line overrides the pipeline."""
    if options.budget_usd is None:
        return declared
    return msgspec.structs.replace(declared or Budget(), cost_usd=options.budget_usd)


Scope = UnitId  # a step, a map item, or a step in one instance of what is around it


class Exceeded(msgspec.Struct, frozen=True, kw_only=True):
    """Reason why nothing more of a step or item may start; false if there is none."""

    why: str
    of_item: bool = False

    def __bool__(self) -> bool:
        return bool(self.why)


_NOTHING = Exceeded(why="")


class StepBudgets:
    """Budgets of the steps and items of one run, and the amounts spent of each."""

    def __init__(self, pipeline: Pipeline, recorder: Recorder, running: RunningTasks) -> None:
        self._recorder = recorder
        self._running = running
        # By step: for each instance at which depth. A step inside a map or loop has its budget once per item of it.
        self._budgets: dict[str, list[tuple[int, Budget]]] = {}
        for depth, step in every_step(pipeline):
            if step.budget is not None:
                self._budgets.setdefault(step.id, []).append((depth, step.budget))
            if isinstance(step.action, Subpipeline) and step.action.budget is not None:
                self._budgets.setdefault(step.id, []).append((depth, step.action.budget))
            if isinstance(step.action, Map) and step.action.item_budget is not None:
                self._budgets.setdefault(step.id, []).append((depth + 1, step.action.item_budget))
        self.any = bool(self._budgets)
        self._spent: dict[Scope, Spent] = {}
        self._checked: dict[Scope, Spent] = {}  # the amounts at the last check, for warnings

    def restore(self) -> None:
        """Count the amounts that earlier invocations have spent, interrupted attempts included."""
        for unit, record in self._recorder.state.units.items() if self.any else ():
            self._count(unit, _spent(record.metrics, record.worked))
        self._checked = dict(self._spent)

    def exceeded(self, unit: UnitId) -> Exceeded:
        """Return the budget that forbids to spend more on a unit, if one does."""
        for scope, budget in self._scopes(unit) if self.any else ():
            why = money.exhausted(budget, self._by_now(scope), of=f" of {scope}")
            if why:
                return Exceeded(why=why, of_item=scope.item is not None)
        return _NOTHING

    def charge(self, unit: UnitId, metrics: Metrics, seconds: float) -> list[str]:
        """Count the cost of an attempt; return the steps to stop: their budget is spent and says `on_exceed: stop`."""
        if not self.any:
            return []
        self._count(unit, _spent(metrics, seconds))
        return self._check(self._scopes(unit))

    def overdrawn(self) -> list[str]:
        """Return the steps to stop, with the cost of the attempts in flight counted."""
        return self._check({one: None for unit in self._running for one in self._scopes(unit)}) if self.any else []

    def _check(self, scopes: Iterable[tuple[Scope, Budget]]) -> list[str]:
        """Warn about thresholds passed; return the steps to stop."""
        stopped = []
        amounts = {}
        for scope, budget in scopes:
            before, now = self._checked.get(scope, Spent()), self._by_now(scope)
            amounts[scope] = now
            percents = money.WARNING_PERCENTS if scope.item is None else money.WARNING_PERCENTS[:1]  # items are many
            warning = money.warning(budget, before, now, of=f" of {scope}", percents=percents)
            if warning:
                self._recorder.warn(warning)
            spent = money.exhausted(budget, now, of=f" of {scope}") if scope.item is None else ""
            if spent and not money.exhausted(budget, before):
                self._recorder.warn(spent)
            if spent and budget.on_exceed == "stop":
                stopped.append(scope.step)
        self._checked |= amounts  # at last: there may be two budgets of one
        return stopped

    def _by_now(self, scope: Scope) -> Spent:
        """Return the amount spent, with the progress of the attempts in flight."""
        spent = self._spent.get(scope, Spent())
        for unit in self._running:
            seen = self._recorder.state.unit(unit).progress
            if seen is not None and any(scope == one for one, _ in self._scopes(unit)):
                spent = spent.plus(_spent(seen.metrics, seen.elapsed))
        return spent

    def _count(self, unit: UnitId, used: Spent) -> None:
        for scope in {scope for scope, _ in self._scopes(unit)}:  # there may be two budgets of one
            self._spent[scope] = self._spent.get(scope, Spent()).plus(used)

    def _scopes(self, unit: UnitId) -> list[tuple[Scope, Budget]]:
        """Return the budgets that a unit draws on: its own, and those of everything around it."""
        return [
            (Scope(step, ancestor_item(unit.item, depth)), budget)
            for step in reversed((unit.step, *steps_around(unit.step)))
            for depth, budget in self._budgets.get(step, ())
            if unit.depth >= depth
        ]


def _spent(metrics: Metrics, seconds: float) -> Spent:
    return Spent(cost_usd=metrics.get(money.COST, 0), tokens=money.tokens(metrics), time=seconds)
