"""Money and tokens: exact sums, and the rules of a budget. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from rerail.core.events import BudgetKind, Metrics
from rerail.core.model import Budget
from rerail.core.run_state import RunState
from rerail.core.unit_id import top_step

COST = "cost_usd"
MAX_COST = 1e9  # dollars, so that no sum of them loses a cent
TOKENS = ("input_tokens", "output_tokens")  # summed as `total_tokens`; the others are parts of these, or not, by vendor
OTHER_TOKENS = ("cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
COUNTED = frozenset((COST, *TOKENS, *OTHER_TOKENS))  # can only be spent: never below zero
WARNING_PERCENTS = (90, 75, 50)


def plus(first: float, second: float) -> float:
    """Add two numbers exactly in decimal: 0.1 and 0.2 are 0.3, however many are added."""
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    from decimal import Decimal  # lazily: most runs count no money

    return float(Decimal(repr(first)) + Decimal(repr(second)))


def total(values: Iterable[float]) -> float:
    """Add many numbers exactly in decimal."""
    result: float = 0
    for value in values:
        result = plus(result, value)
    return result


def added(first: Metrics, second: Metrics) -> Metrics:
    """Add two sets of metrics, name by name."""
    result = dict(first)
    for key, value in second.items():
        result[key] = plus(result.get(key, 0), value)
    return result


def tokens(metrics: Metrics) -> int:
    """Return the input and output tokens of a set of metrics."""
    return int(sum(metrics.get(name, 0) for name in TOKENS))


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts that a run has spent so far, in all its invocations."""

    cost_usd: float = 0
    tokens: int = 0
    time: float = 0.0  # seconds of execution

    def of(self, what: str) -> float:
        """Return the amount of one kind: `cost_usd`, `tokens` or `time`."""
        amount: float = getattr(self, what)
        return amount

    def plus(self, other: Spent) -> Spent:
        """Add two amounts."""
        return Spent(
            cost_usd=plus(self.cost_usd, other.cost_usd), tokens=self.tokens + other.tokens, time=self.time + other.time
        )


def limits(budget: Budget) -> list[tuple[BudgetKind, float]]:
    """Return the kinds that a budget limits, with their limits."""
    found: tuple[tuple[BudgetKind, float | None], ...] = (
        ("cost_usd", budget.cost_usd),
        ("tokens", budget.tokens),
        ("time", budget.time),
    )
    return [(what, limit) for what, limit in found if limit is not None]


def exhausted_kind(budget: Budget, spent: Spent) -> BudgetKind:
    """Return the kind of which nothing is left, or ''."""
    return next((what for what, limit in limits(budget) if spent.of(what) >= limit), "")


def exhausted(budget: Budget, spent: Spent, of: str = "") -> str:
    """Return why nothing new may start, or ''.

    The budget can be exceeded: by the attempts that were in flight when it was reached.
    """
    for what, limit in limits(budget):
        used = spent.of(what)
        if used >= limit:
            over = f" ({amount(what, plus(used, -limit))} over, by attempts in flight)" if used > limit else ""
            return f"the budget{of} is spent: {amount(what, used)} of {amount(what, limit)}{over}"
    return ""


def warning(budget: Budget, before: Spent, after: Spent, of: str = "", percents: Sequence[int] = WARNING_PERCENTS) -> str:
    """Return the warning for a threshold that was passed between `before` and `after`, or ''."""
    for what, limit in limits(budget):
        for percent in percents:
            mark = limit * percent / 100
            if before.of(what) < mark <= after.of(what) < limit:
                return f"{percent} % of the budget{of} is spent: {amount(what, after.of(what))} of {amount(what, limit)}"
    return ""


def amount(what: str, value: float) -> str:
    """Format an amount for people."""
    if what == "cost_usd":
        return f"${value:,.2f}" if value >= 0.01 or not value else f"${value:.4f}"
    if what == "tokens":
        return f"{value:,.0f} tokens".replace(",", " ")
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours or minutes:
        return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"
    return f"{value:.1f} s" if 0 < value < 10 and round(value, 1) != round(value) else f"{value:.0f} s"


class StepTotals(NamedTuple):
    """Totals of all attempts of a step, and of every unit inside a map, a loop or a pipeline."""

    metrics: Metrics = {}  # noqa: RUF012 - of a tuple, which is never changed
    worked: float = 0.0  # seconds

    @property
    def cost_usd(self) -> float:
        return self.metrics.get(COST, 0)


NOTHING = StepTotals()


def totals_by_step(state: RunState, *, lasting: bool = False) -> dict[str, StepTotals]:
    """Return the totals of each top-level step; with `lasting`, only of work that need not be repeated."""
    found: dict[str, StepTotals] = {}
    for (step, _), unit in state.units.items():
        if lasting and unit.items is None and unit.status not in ("completed", "skipped"):
            continue
        outermost = top_step(step)
        before = found.get(outermost, NOTHING)
        metrics = added(before.metrics, unit.metrics) if unit.metrics else before.metrics
        worked = unit.worked - unit.void if lasting else unit.worked
        found[outermost] = StepTotals(metrics, before.worked + worked)
    return found
