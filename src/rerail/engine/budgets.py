"""What a run may still use up: looked at when attempts end and as time passes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rerail.core import money
from rerail.core.events import PauseCause
from rerail.core.model import Budget, RunOptions
from rerail.core.money import Spent
from rerail.core.state import Unit
from rerail.engine.desk import Desk
from rerail.engine.spec import Job
from rerail.ports import Clock


class Purse:
    """The budget of a run and the time limit of this life."""

    def __init__(self, job: Job, desk: Desk, clock: Clock, running: Iterable[Unit]) -> None:
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
