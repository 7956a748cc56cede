"""A graph has a cycle or an order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rerail.core.graph import Frontier, downstream, find_cycle, topological

GRAPHS = st.dictionaries(st.integers(0, 9).map(str), st.lists(st.integers(0, 9).map(str), unique=True, max_size=4)).map(
    lambda graph: {step: [need for need in needs if need in graph] for step, needs in graph.items()}
)


@given(GRAPHS)
def test_a_graph_has_a_cycle_or_an_order(graph: dict[str, list[str]]) -> None:
    cycle = find_cycle(graph)
    order = topological(graph)
    if cycle:
        assert cycle[0] == cycle[-1]
        assert all(after in graph[before] for before, after in zip(cycle, cycle[1:], strict=False))
        assert len(order) < len(graph)
    else:
        assert sorted(order) == sorted(graph)
        place = {step: position for position, step in enumerate(order)}
        assert all(place[need] < place[step] for step, needs in graph.items() for need in needs)


def test_ten_thousand_steps_in_a_row_need_no_recursion() -> None:
    chain = {str(number): [str(number - 1)] if number else [] for number in range(10_000)}

    assert find_cycle(chain) == []
    assert topological(chain) == list(chain)
    assert len(downstream(chain, ["0"])) == 10_000
    assert Frontier(chain).ready() == ["0"]
