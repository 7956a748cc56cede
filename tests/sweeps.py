"""Sweeps: tests that try every point, state, case or value of a kind. A whole run tries all; a sample, those a seed chooses.

`./test` runs a sample, `./test --all` everything. In a sample a test runs with one of its parameters (or as many as its
`@pytest.mark.sweep(n)` says, where "all" is for tables that take no time), and a test that loops asks the fixture `sample` what to try. What is chosen depends on the
seed and on the test alone, not on what else is run or by which worker.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")
WHOLE = "RERAIL_SAMPLE" not in os.environ
SEED = int(os.environ.get("RERAIL_SEED", "1"))


class Sample:
    """The part of one test's sweep that is tried: all of it, or what the seed chooses."""

    def __init__(self, name: str) -> None:
        self.whole = WHOLE
        self._dice = random.Random(f"{SEED} {name}")

    def of(self, things: Sequence[T], number: int) -> list[T]:
        """Choose so many of these, in their own order."""
        if self.whole or number >= len(things):
            return list(things)
        return [things[at] for at in sorted(self._dice.sample(range(len(things)), number))]

    def points(self, every: int, *, shard: int = 0, shards: int = 1) -> tuple[int, int]:
        """Return the first point to try and the step to the next: in a sample one of `every` points of this shard."""
        if self.whole:
            return 1 + shard, shards
        return 1 + shard + shards * self._dice.randrange(every), shards * every


def part(few: T, everything: T) -> T:
    """Choose how much to try of what chance decides, such as examples or moments: few in a sample."""
    return everything if WHOLE else few


def sampled(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Split tests into those a sample runs and those it leaves out: of one that has parameters, few are kept."""
    sweeps: dict[str, list[pytest.Item]] = {}
    for item in items:
        sweeps.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept: set[pytest.Item] = set()
    for name, cases in sweeps.items():
        marker = cases[0].get_closest_marker("sweep")
        number = marker.args[0] if marker else 1
        kept.update(cases if number == "all" else Sample(name).of(cases, number))
    return [item for item in items if item in kept], [item for item in items if item not in kept]
