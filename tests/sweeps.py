"""Sweeps: tests that try every point, state, case or value of a kind. A whole run tries all; a sample, those a seed chooses.

`./test` runs a sample, `./test --all` everything. In a sample a test runs with one of its parameters, or with as many as its
`@pytest.mark.sweep(n)` says ("all" is for tables that take no time), and a test that loops asks the fixture `sample` what to
try. Of the other tests that start rerail, half run. What is chosen depends on the seed and on names alone: not on the worker,
nor on what another module holds.
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
STARTS_RERAIL = {"project", "lab"}  # fixtures of tests that take a second


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
    """Split tests into those a sample runs and those it leaves out.

    Every sweep is kept, with few of its parameters; of what else starts rerail, half of each module, rounded up.
    """
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    slow: dict[str, list[str]] = {}
    for name, (first, *_) in tests.items():
        uses = {*getattr(first, "fixturenames", ())}
        if uses & STARTS_RERAIL and "sample" not in uses and not first.get_closest_marker("sweep"):
            slow.setdefault(name.partition("::")[0], []).append(name)
    for module, names in slow.items():
        for name in {*names} - {*Sample(module).of(names, -(-len(names) // 2))}:
            del tests[name]
    kept: set[pytest.Item] = set()
    for name, cases in tests.items():
        marker = cases[0].get_closest_marker("sweep")
        number = marker.args[0] if marker else 1
        kept.update(cases if number == "all" else Sample(name).of(cases, number))
    return [item for item in items if item in kept], [item for item in items if item not in kept]
