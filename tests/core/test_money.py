"""Money is exact, and budgets say so in time."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from rerail.core import events as ev
from rerail.core import money
from rerail.core.ledger import entries, overall, summed
from rerail.core.model import Budget
from rerail.core.money import Spent
from rerail.core.values import parse_metrics

AT = datetime(2026, 1, 2, tzinfo=UTC)
CENTS = st.integers(0, 10_000_000).map(lambda cents: cents / 100)


@given(st.lists(st.integers(0, 10_000_000), max_size=60))
def test_a_sum_of_cents_is_exact_in_any_order(cents: list[int]) -> None:
    values = [cent / 100 for cent in cents]

    assert money.total(values) == money.total(reversed(values))
    assert Decimal(repr(money.total(values))) == Decimal(sum(cents)) / 100


@given(st.lists(st.tuples(CENTS, st.sampled_from(["opus", "haiku", ""])), max_size=30))
def test_the_shares_of_models_add_up_to_the_whole(lines: list[tuple[float, str]]) -> None:
    text = "".join(
        f'{{"cost_usd": {cost!r}{f", {chr(34)}model{chr(34)}: {chr(34)}{model}{chr(34)}" if model else ""}}}\n'
        for cost, model in lines
    )
    usage, wrong = parse_metrics(text.encode())
    event = ev.StepCompleted(at=AT, step="s", attempt=1, duration=1.0, metrics=usage.metrics, models=usage.models)
    ledger = list(entries("r", "p", [(1, event)]))

    assert not wrong
    assert money.total(row.cost_usd for row in summed(ledger, "model")) == overall(ledger).cost_usd
    assert overall(ledger).cost_usd == money.total(cost for cost, _ in lines)


@given(CENTS, CENTS, st.floats(0.01, 1e6))
def test_a_budget_is_spent_exactly_from_its_limit_on(before: float, more: float, limit: float) -> None:
    budget = Budget(cost_usd=limit)
    after = money.plus(before, more)

    assert bool(money.exhausted(budget, Spent(cost_usd=after))) == (after >= limit)
    said = money.warning(budget, Spent(cost_usd=before), Spent(cost_usd=after))
    passed = [percent for percent in (50, 75, 90) if before < limit * percent / 100 <= after]
    assert bool(said) == (bool(passed) and after < limit)
    if said:
        assert said.startswith(f"{max(passed)} %")


def test_what_is_no_amount_is_named_and_not_counted() -> None:
    lines = [
        '{"cost_usd": -1}',
        '{"cost_usd": NaN}',
        '{"cost_usd": 1e300}',
        '{"cost_usd": "1.50"}',
        '{"input_tokens": -5, "output_tokens": 7}',
        "not JSON",
        '{"cost_usd": 0.25, "cost_usd": 0.75}',
        '{"cost_usd": true}',
        '{"model": 7, "cost_usd": 0.5}',
    ]
    for number, line in enumerate(lines):
        usage, wrong = parse_metrics(line.encode())
        assert len(wrong) == 1, line
        assert "line 1" in wrong[0]
        assert usage.metrics == ({"output_tokens": 7} if number == 4 else {"cost_usd": 0.5} if number == 8 else {}), line


def test_ten_megabytes_of_metrics_are_named_and_counted_as_far_as_they_are_read() -> None:
    usage, wrong = parse_metrics(b'{"cost_usd": 0.01}\n' * 600_000)

    assert "was not counted" in wrong[-1]
    assert usage.metrics["cost_usd"] < 600_000 * 0.01
