"""Tasks and the queue of tasks that are ready, waiting for a time, or in flight.

Holds no clock and does no I/O; times are passed in.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from rerail.core.events import Reason
from rerail.core.expressions.render import Inherited
from rerail.core.model import Step
from rerail.core.state import RunState, UnitState
from rerail.core.unit_id import UnitId


class TaskParent(Protocol):
    """Parent of a task: a frame of several steps, or a map whose items are one step."""

    item: str | None  # the instance
    status: str  # value of `run.status` in its final hooks; '' before them
    env: Inherited  # variables that the enclosing steps set for all of its tasks
    counted: bool  # its tasks count against the parallelism of the run; tasks in a map count against the map's

    def names(self, task: Task) -> Mapping[str, Any]:
        """Return the values of `item`, `loop` and `params` where they differ from the run's."""

    def lookup(self, name: str, state: RunState) -> UnitId:
        """Return the unit that a name under `steps` refers to."""

    def outdated(self, task: Task, unit: UnitState, state: RunState) -> Reason | None:
        """Return why the record of this unit no longer counts, if a dependency changed since it started, or None."""

    def required(self, task: Task) -> Reason | None:
        """Return why the plan has a settled unit run again; None if it does not."""

    def settle(self, task: Task, unit: UnitState) -> None:
        """Record that a task is done, and queue the tasks it releases."""

    def fail(self, task: Task, *, allowed: bool) -> list[Task]:
        """Record that a task failed permanently; return its clean-up hooks, the first of which is queued."""

    def leave(self, task: Task) -> None:
        """Record that a task does nothing more in this invocation."""

    def allows_failure(self, task: Task) -> bool:
        """Return whether dependants run although the task failed permanently."""

    def block(self, task: Task) -> None:
        """Let everything else go on: the task is blocked until something outside the run happens."""

    def unblock(self, task: Task) -> None:
        """Undo `block`."""


class Task:
    """A step in one instance."""

    __slots__ = ("controls", "index", "parent", "step", "unit")

    def __init__(
        self, step: Step, unit: UnitId, parent: TaskParent, index: int | None = None, *, controls: bool = False
    ) -> None:
        self.step = step
        self.unit = unit
        self.parent = parent
        self.index = index  # position in its map, for an item that is one step
        self.controls = controls  # a map, loop or pipeline step: it runs other steps


class ReadyQueue:
    """Queue of ready tasks, with timers."""

    def __init__(self) -> None:
        self.in_doubt: list[str] = []  # units whose outcome a person has to decide first
        self._counted: deque[Task] = deque()
        self._free: deque[Task] = deque()
        self._timers: list[tuple[float, int, Task | Callable[[], None]]] = []
        self._number = 0

    def push(self, task: Task) -> None:
        """Add a ready task."""
        (self._counted if task.parent.counted else self._free).append(task)

    def push_front(self, task: Task) -> None:
        """Add a ready task before all others: it has waited already."""
        (self._counted if task.parent.counted else self._free).appendleft(task)

    def push_at(self, entry: Task | Callable[[], None], due: float) -> None:
        """Add a task that becomes ready, or a function to call, at a time of the monotonic clock."""
        self._number += 1
        heapq.heappush(self._timers, (due, self._number, entry))

    def pop_ready(self, now: float, has_room: Callable[[], bool]) -> Iterator[Task]:
        """Fire the timers that are due, then yield ready tasks; counted ones only while there is room."""
        while self._timers and self._timers[0][0] <= now:
            entry = heapq.heappop(self._timers)[2]
            if isinstance(entry, Task):
                self.push_front(entry)
            else:
                entry()
        while self._free:
            yield self._free.popleft()
        while self._counted and has_room():
            yield self._counted.popleft()
            while self._free:
                yield self._free.popleft()

    def expedite(self, step: str, now: float) -> None:
        """Make the waiting tasks of a step due now."""
        self._timers = [
            (now, number, entry) if isinstance(entry, Task) and entry.step.id == step else (due, number, entry)
            for due, number, entry in self._timers
        ]
        heapq.heapify(self._timers)

    def next_due(self) -> float | None:
        """Return when the next timer fires."""
        return self._timers[0][0] if self._timers else None

    def is_ready(self, has_room: Callable[[], bool]) -> bool:
        """Return whether `pop_ready` would yield a task."""
        return bool(self._free) or (bool(self._counted) and has_room())

    @property
    def empty(self) -> bool:
        """Whether no task is ready and no timer is set."""
        return not (self._counted or self._free or self._timers)

    def keep(self, wanted: Callable[[Task], bool]) -> None:
        """Drop all timers of functions, and all tasks but the wanted ones."""
        self._counted = deque(task for task in self._counted if wanted(task))
        self._free = deque(task for task in self._free if wanted(task))
        kept = [entry for entry in self._timers if isinstance(entry[2], Task) and wanted(entry[2])]
        heapq.heapify(kept)
        self._timers = kept


class RunningTask(NamedTuple):
    """A task in flight."""

    task: Task
    attempt: int  # its number
    began: float  # on the monotonic clock


class RunningTasks:
    """Tasks in flight, by unit."""

    def __init__(self) -> None:
        self.counted = 0  # tasks that count against the parallelism of the run
        self._tasks: dict[UnitId, RunningTask] = {}
        self._charged: list[UnitId] = []

    def __iter__(self) -> Iterator[UnitId]:
        return iter(self._tasks)

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def values(self) -> Iterator[RunningTask]:
        return iter(self._tasks.values())

    def attempt(self, unit: UnitId) -> int:
        """Return the number of the attempt of a unit in flight."""
        return self._tasks[unit].attempt

    def add(self, task: Task, attempt: int, now: float) -> None:
        self._tasks[task.unit] = RunningTask(task, attempt, now)
        if task.parent.counted and not task.controls:
            self.counted += 1

    def remove(self, unit: UnitId) -> RunningTask:
        running = self._tasks.pop(unit)
        if running.task.parent.counted and not running.task.controls:
            self.counted -= 1
        return running

    def count(self, step: str, since: float = float("-inf")) -> int:
        """Return how many attempts of a step are in flight that began since a time."""
        return sum(
            running.task.step.id == step and not running.task.controls and running.began >= since
            for running in self._tasks.values()
        )

    def charge(self, controller: UnitId) -> None:
        """Remember a controller whose own command has a cost that is recorded only when the controller ends."""
        self._charged.append(controller)

    def spenders(self) -> tuple[UnitId, ...]:
        """Return the units with costs that are not recorded yet."""
        return (*self._tasks, *self._charged)
