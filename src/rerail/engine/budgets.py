"""What a run may still use up: looked at when attempts end and as time passes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rerail.core import money
from rerail.core.events import Metrics, PauseCause
from rerail.core.model import Budget, Map, Pipeline, RunOptions, Subpipeline, every_step
from rerail.core.money import Spent
from rerail.core.state import Unit
from rerail.engine.desk import Desk
from rerail.engine.recorder import Recorder
from rerail.engine.spec import RunSpec
from rerail.ports import Clock


class RunBudget:
    """The budget of a run and the time limit of this life."""

    def __init__(self, job: RunSpec, desk: Desk, clock: Clock, running: Iterable[Unit]) -> None:
        self._running = running
        self._desk = desk
        self._budget = budget_of(job.pipeline.budget, job.options)
        self._limit = job.options.max_runtime
        self._state = desk.state
        self._clock = clock
        self._began = clock.monotonic()
        self._seen = self._spent()
        self.name = "the budget"  # what was used up
        self.cause: PauseCause = "budget"
        self.stops = self._budget is not None and self._budget.on_exceed == "stop"

    def why_not(self) -> str:
        """Why nothing new may start any more, or ''; says so when a mark is passed."""
        if self._limit is not None and self._clock.monotonic() - self._began >= self._limit:
            self.name = "--max-runtime"
            self.cause = "max-runtime"
            self.stops = True  # it is for who is going to be killed at a certain time: nothing may be under way then
            return f"--max-runtime {money.amount('time', self._limit)} is over"
        if self._budget is None:
            return ""
        spent = self._spent()
        said = money.warning(self._budget, self._seen, spent)
        if said:
            self._desk.recorder.warn(said)
        self._seen = spent
        return money.exhausted(self._budget, spent)

    def overspent(self) -> str:
        """How far the budget is spent by now, if it is."""
        return money.exhausted(self._budget, self._spent()) if self._budget is not None else ""

    def due(self) -> float | None:
        """When time itself will have used something up, on the monotonic clock."""
        ends = []
        if self._limit is not None:
            ends.append(self._began + self._limit)
        if self._budget is not None and self._budget.time is not None:
            ends.append(self._began + max(self._budget.time - self._state.driven, 0.0))
        return min(ends, default=None)

    def _spent(self) -> Spent:
        metrics = self._state.spent
        for unit in (*self._running, *self._desk.spending):  # what is known of attempts under way is spent, too
            known = self._state.unit(unit)
            seen = known.so_far
            if seen is not None and seen.metrics and known.status == "running":
                metrics = money.added(metrics, seen.metrics)
        driven = self._state.driven + self._clock.monotonic() - self._began
        return Spent(cost_usd=metrics.get(money.COST, 0), tokens=money.tokens(metrics), time=driven)


def budget_of(declared: Budget | None, options: RunOptions) -> Budget | None:
    """The budget in force: what was said on the command line goes before what the pipeline says."""
    if options.budget_usd is None:
        return declared
    return msgspec.structs.replace(declared or Budget(), cost_usd=options.budget_usd)


Scope = tuple[str, str | None]  # a step, and of a map the item


class Exceeded(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing more of a step or item may start."""

    why: str
    of_item: bool = False

    def __bool__(self) -> bool:
        return bool(self.why)


_NOTHING = Exceeded(why="")


class StepBudgets:
    """The budgets of the steps and items of one run, and what was spent of each."""

    def __init__(self, pipeline: Pipeline, recorder: Recorder, running: Iterable[Unit]) -> None:
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
        self._looked: dict[Scope, Spent] = {}  # what it was when warnings were last thought of

    def restore(self) -> None:
        """Count what earlier lives have used up, once that of attempts they lost is known."""
        for unit, known in self._recorder.state.units.items() if self.any else ():
            self._count(unit, _spent(known.metrics, known.worked))
        self._looked = dict(self._spent)

    def why_not(self, unit: Unit) -> Exceeded:
        """Why nothing more may be spent on a unit."""
        for scope, budget in self._scopes(unit) if self.any else ():
            why = money.exhausted(budget, self._by_now(scope), of=_name(scope))
            if why:
                return Exceeded(why=why, of_item=scope[1] is not None)
        return _NOTHING

    def took(self, unit: Unit, metrics: Metrics, seconds: float) -> list[str]:
        """An attempt used something up; what to stop: the steps whose budget says so and is spent now."""
        if not self.any:
            return []
        self._count(unit, _spent(metrics, seconds))
        return self._mind(self._scopes(unit))

    def overdrawn(self) -> list[str]:
        """The steps to stop: their budget says so, and is spent with what their attempts under way have used."""
        return self._mind({one: None for unit in self._running for one in self._scopes(unit)}) if self.any else []

    def _mind(self, scopes: Iterable[tuple[Scope, Budget]]) -> list[str]:
        """Say what marks were passed; the steps to stop."""
        stopped = []
        looked = {}
        for scope, budget in scopes:
            before, now = self._looked.get(scope, Spent()), self._by_now(scope)
            looked[scope] = now
            said = money.warning(budget, before, now, of=_name(scope))
            if said and (scope[1] is None or said.startswith("90")):  # of items there are many
                self._recorder.warn(said)
            spent = money.exhausted(budget, now, of=_name(scope)) if scope[1] is None else ""
            if spent and not money.exhausted(budget, before):
                self._recorder.warn(spent)
            if spent and budget.on_exceed == "stop":
                stopped.append(scope[0])
        self._looked |= looked  # at last: there may be two budgets of one
        return stopped

    def _by_now(self, scope: Scope) -> Spent:
        """What was spent, and what is known of attempts under way."""
        spent = self._spent.get(scope, Spent())
        for unit in self._running:
            seen = self._recorder.state.unit(unit).so_far
            if seen is not None and any(scope == one for one, _ in self._scopes(unit)):
                spent = spent.plus(_spent(seen.metrics, seen.elapsed))
        return spent

    def _count(self, unit: Unit, used: Spent) -> None:
        for scope in {scope for scope, _ in self._scopes(unit)}:  # there may be two budgets of one
            self._spent[scope] = self._spent.get(scope, Spent()).plus(used)

    def _scopes(self, unit: Unit) -> list[tuple[Scope, Budget]]:
        """The budgets that a unit draws on: its own, and those of whatever it is inside of."""
        step, item = unit
        names = item.split("::") if item is not None else []
        parts = step.split("/")
        paths = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
        return [
            ((path, "::".join(names[:depth]) or None), budget)
            for path in paths
            for depth, budget in self._budgets.get(path, ())
            if len(names) >= depth
        ]


def _name(scope: Scope) -> str:
    step, item = scope
    return f" of {step}" if item is None else f" of {step}[{item}]"


def _spent(metrics: Metrics, seconds: float) -> Spent:
    return Spent(cost_usd=metrics.get(money.COST, 0), tokens=money.tokens(metrics), time=seconds)
