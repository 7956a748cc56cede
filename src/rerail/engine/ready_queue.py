"""Tasks and turns: steps in the instance they stand in, and whose turn it is.

Holds no clock and does no I/O; times are given to it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from rerail.core.expressions.render import Inherited
from rerail.core.model import Step
from rerail.core.state import RunState, Unit, UnitState


class TaskParent(Protocol):
    """What a task is part of: a frame of several steps, or a map whose items are one step."""

    item: str | None  # the instance
    status: str  # what the run, or what it takes for one, has come to, if that is known
    env: Inherited  # what the steps around it give to all of its tasks
    counted: bool  # its tasks count against the width of the run; those in a map have the map's

    def names(self, task: Task) -> Mapping[str, Any]:
        """What `item`, `loop` and `params` stand for, where they stand for something of their own."""

    def lookup(self, name: str, state: RunState) -> Unit:
        """The unit that a name under `steps` stands for."""

    def outdated(self, task: Task, unit: UnitState, state: RunState) -> str | None:
        """The step that produced something different since this unit started, if there is one that counts."""

    def required(self, task: Task) -> str:
        """Why the plan has a settled unit run again; '' if it does not."""

    def settle(self, task: Task, unit: UnitState) -> None:
        """A task is done: what waited for it may be ready."""

    def fail(self, task: Task, *, allowed: bool) -> list[Task]:
        """A task has failed for good: the hooks that clean up after it, the first of which is ready now."""

    def leave(self, task: Task) -> None:
        """Nothing more will come of a task in this life."""

    def allows_failure(self, task: Task) -> bool:
        """Whether a failure for good is none for whoever comes after."""

    def set_aside(self, task: Task) -> None:
        """A task waits for something outside the run: whatever else there is goes on."""

    def take_back(self, task: Task) -> None:
        """It has come."""


class Task:
    """A step in the instance it stands in."""

    __slots__ = ("controls", "home", "index", "step", "unit")

    def __init__(
        self, step: Step, unit: Unit, home: TaskParent, index: int | None = None, *, controls: bool = False
    ) -> None:
        self.step = step
        self.unit = unit
        self.home = home
        self.index = index  # of an item that is one step: its position
        self.controls = controls  # it does nothing itself but have other steps run


class ReadyQueue:
    """Tasks that are ready, and what waits for a time to come."""

    def __init__(self) -> None:
        self.asked: list[str] = []  # units a person has to judge first
        self._counted: deque[Task] = deque()
        self._free: deque[Task] = deque()
        self._waiting: list[tuple[float, int, Task | Callable[[], None]]] = []
        self._number = 0

    def ready(self, task: Task) -> None:
        (self._counted if task.home.counted else self._free).append(task)

    def next(self, task: Task) -> None:
        """Ready, and before all others: it has waited for its turn already."""
        (self._counted if task.home.counted else self._free).appendleft(task)

    def wait(self, what: Task | Callable[[], None], due: float) -> None:
        """A task that is ready, or something to do, when the time has come."""
        self._number += 1
        heapq.heappush(self._waiting, (due, self._number, what))

    def turns(self, now: float, has_room: Callable[[], bool]) -> Iterator[Task]:
        """The tasks whose turn it is."""
        while self._waiting and self._waiting[0][0] <= now:
            what = heapq.heappop(self._waiting)[2]
            if isinstance(what, Task):
                self.next(what)
            else:
                what()
        while self._free:
            yield self._free.popleft()
        while self._counted and has_room():
            yield self._counted.popleft()
            while self._free:
                yield self._free.popleft()

    def hurry(self, step: str, now: float) -> None:
        """Tasks of a step need not wait any longer."""
        self._waiting = [
            (now, number, what) if isinstance(what, Task) and what.step.id == step else (due, number, what)
            for due, number, what in self._waiting
        ]
        heapq.heapify(self._waiting)

    def next_due(self) -> float | None:
        return self._waiting[0][0] if self._waiting else None

    def is_ready(self, has_room: Callable[[], bool]) -> bool:
        """Whether it is anybody's turn."""
        return bool(self._free) or (bool(self._counted) and has_room())

    @property
    def empty(self) -> bool:
        """Whether nothing is ready or waiting."""
        return not (self._counted or self._free or self._waiting)

    def keep(self, wanted: Callable[[Task], bool]) -> None:
        """Forget all tasks but these."""
        self._counted = deque(task for task in self._counted if wanted(task))
        self._free = deque(task for task in self._free if wanted(task))
        kept = [entry for entry in self._waiting if isinstance(entry[2], Task) and wanted(entry[2])]
        heapq.heapify(kept)
        self._waiting = kept
