"""Laws of a gate."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from rerail.engine.throttle import Throttle
from tests.core.services import NOW


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 100), st.floats(0.001, 1000), st.integers(1, 64)), max_size=40))
def test_laws_of_a_gate(happened: list[tuple[bool, float, float, int]]) -> None:
    gate, now = Throttle(), 0.0
    for passes, later, delay, under_way in happened:
        now += later
        closed, opens, width, refusals = gate.is_closed(now), gate.opens, gate.width, gate.refusals
        if passes:
            gap = gate.gap
            gate.let_through(now)
            assert gate.gap <= gap
            assert gate.refusals == (refusals if closed else 0)
            assert gate.width == (width if closed else width + 1)
            assert gate.opens == opens, "who was under way does not open it"
            continue
        gate.refuse(now, delay, NOW, under_way)
        assert gate.opens >= max(opens, now + delay), "it never opens sooner than anybody was told"
        if closed:
            assert (gate.width, gate.refusals) == (width, refusals), "those refused together are one refusal"
        else:
            assert gate.refusals == refusals + 1
            assert gate.width == max(under_way // 2, 1)
            assert 0 < gate.gap <= 60
        gate.start(now, 0.5)
        assert (gate.wait_for_pace(now) or now) >= now
        assert gate.wait_for_pace(now + gate.gap * 1.25 + 1e-6) is None
        assert gate.opens <= gate.turn(0.5) <= gate.opens + 10


def test_a_gate_whose_time_has_come_by_the_clock_on_the_wall_opens() -> None:
    gate = Throttle()
    gate.refuse(100.0, 3600, NOW + timedelta(hours=1), 1)
    assert not gate.put_forward(101.0, NOW + timedelta(minutes=59))
    assert gate.is_closed(101.0)
    assert gate.put_forward(102.0, NOW + timedelta(hours=2))
    assert not gate.is_closed(102.0)
