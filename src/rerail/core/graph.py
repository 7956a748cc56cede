"""The dependency graph of steps: dependants, topological order, ready steps, cycles.

`Frontier` counts unmet needs per step, so that releasing a step costs its own edges, not the whole graph.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence


def dependants(needs: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return for every step the steps that need it, in declaration order."""
    result: dict[str, list[str]] = {step: [] for step in needs}
    for step, needed in needs.items():
        for need in needed:
            result[need].append(step)
    return result


def topological(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return all steps, each after its needs; ties in declaration order. Assumes no cycle."""
    frontier = Frontier(needs)
    order: list[str] = []
    ready = deque(frontier.ready())
    while ready:
        step = ready.popleft()
        order.append(step)
        ready.extend(frontier.settle(step))
    return order


def find_cycle(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return one cycle as a path that ends where it began, or an empty list."""
    done: set[str] = set()
    for root in needs:
        if root in done:
            continue
        path: list[str] = []
        on_path: set[str] = set()
        stack: list[tuple[str, int]] = [(root, 0)]
        while stack:
            step, edge = stack.pop()
            if edge == 0:
                path.append(step)
                on_path.add(step)
            needed = needs.get(step, ())
            if edge < len(needed):
                stack.append((step, edge + 1))
                target = needed[edge]
                if target in on_path:
                    return [*path[path.index(target) :], target]
                if target not in done:
                    stack.append((target, 0))
            else:
                done.add(step)
                on_path.discard(path.pop())
    return []


class Frontier:
    """Steps that wait, each with the number of its unmet needs."""

    def __init__(self, needs: Mapping[str, Sequence[str]], edges: Mapping[str, Sequence[str]] | None = None) -> None:
        self._dependants = dependants(needs) if edges is None else edges
        self._unmet = {step: len(wanted) for step, wanted in needs.items()}

    def ready(self) -> list[str]:
        """Return the steps without unmet needs, in declaration order."""
        return [step for step, count in self._unmet.items() if count == 0]

    def is_ready(self, step: str) -> bool:
        """Return whether all needs of a step are met."""
        return self._unmet[step] == 0

    def settle(self, step: str) -> list[str]:
        """Mark a step as done; return the steps that this releases."""
        released = []
        for dependant in self._dependants[step]:
            self._unmet[dependant] -= 1
            if self._unmet[dependant] == 0:
                released.append(dependant)
        return released


class Ancestors:
    """Transitive needs of every step; one bit per step, so that it stays small for thousands."""

    def __init__(self, needs: Mapping[str, Sequence[str]]) -> None:
        self._bit = {step: 1 << position for position, step in enumerate(needs)}
        self._above: dict[str, int] = {}
        for step in topological(needs):
            bits = 0
            for need in needs[step]:
                bits |= self._above[need] | self._bit[need]
            self._above[step] = bits

    def of(self, step: str) -> Collection[str]:
        """Return all transitive needs of a step, as a collection to look names up in."""
        return _Above(self._bit, self._above[step])


class _Above(Collection[str]):
    def __init__(self, bits: Mapping[str, int], above: int) -> None:
        self._bits = bits
        self._above = above

    def __contains__(self, step: object) -> bool:
        return bool(self._above & self._bits.get(str(step), 0))

    def __iter__(self) -> Iterator[str]:
        return (step for step, bit in self._bits.items() if self._above & bit)

    def __len__(self) -> int:
        return self._above.bit_count()


def downstream(needs: Mapping[str, Sequence[str]], roots: Iterable[str]) -> set[str]:
    """Return the roots and everything that needs them, directly or not."""
    edges = dependants(needs)
    seen: set[str] = set()
    stack = list(roots)
    while stack:
        step = stack.pop()
        if step not in seen:
            seen.add(step)
            stack.extend(edges[step])
    return seen
