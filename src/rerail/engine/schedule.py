"""Whose turn it is: what is ready, what waits for a retry, what a settled step releases, which hooks follow a failure.

Holds no clock and does no I/O; times are given to it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import pairwise

from rerail.core.graph import Ancestors, Frontier
from rerail.core.model import Pipeline, Step
from rerail.core.plan import lineage_of, stale
from rerail.core.state import RunState, UnitState


class Schedule:
    """The steps of a pipeline on their way through one life of a run."""

    def __init__(self, pipeline: Pipeline, until: str = "") -> None:
        needs = {step.id: step.needs for step in pipeline.steps}
        self.steps = {step.id: step for step in all_steps(pipeline)}
        self.asked: list[str] = []  # steps a person has to judge first
        self._env = pipeline.env
        self._wanted = {until, *Ancestors(needs).of(until)} if until else set(needs)
        self._frontier = Frontier(needs)
        self._lineage: dict[str, int] = {}
        self._unfinished: set[str] = set()
        self._ready: deque[str] = deque()
        self._waiting: list[tuple[float, str]] = []  # retries, by the time they are due
        self._after: dict[str, str] = {}  # hook → the hook after it
        self._held: dict[str, str] = {}  # last hook of a clean-up → the step that waits for it
        self.hooks = frozenset(pipeline.hooks)

    # What earlier lives left

    def reuse(self, step_id: str, unit: UnitState) -> None:
        """A step whose record counts. Called in an order in which its needs come first."""
        self._lineage[step_id] = lineage_of(self.steps[step_id], unit, self._lineage)
        self._frontier.settle(step_id)

    def expect(self, step_id: str, *, ask: bool = False) -> None:
        """A step that is still to run, or that a person has to judge."""
        self._unfinished.add(step_id)
        if ask:
            self.asked.append(step_id)

    def hold(self, step: Step, hooks: tuple[Step, ...]) -> None:
        """A step whose clean-up an earlier life did not finish: these hooks first, then the step."""
        self._held[hooks[-1].id] = step.id

    def begin(self) -> list[str]:
        """The steps that wait for nothing; the caller says for each whether it is ready now or later."""
        return [step for step in self._frontier.ready() if self._may_run(step) and step not in self._lineage]

    # Turns

    def ready(self, step_id: str) -> None:
        self._ready.append(step_id)

    def next(self, step_id: str) -> None:
        """Ready, and before all others: it has waited for its turn already."""
        self._ready.appendleft(step_id)

    def wait(self, step_id: str, due: float) -> None:
        heapq.heappush(self._waiting, (due, step_id))

    def turns(self, now: float) -> Iterator[Step]:
        """The steps whose turn it is; stop asking when there is no more room."""
        while self._waiting and self._waiting[0][0] <= now:
            self._ready.appendleft(heapq.heappop(self._waiting)[1])
        while self._ready:
            yield self.steps[self._ready.popleft()]

    def next_due(self) -> float | None:
        """When the next retry is due."""
        return self._waiting[0][0] if self._waiting else None

    @property
    def empty(self) -> bool:
        """Whether nothing is ready or waiting."""
        return not (self._ready or self._waiting)

    def outdated(self, step: Step, unit: UnitState, state: RunState) -> str | None:
        """The step that produced something different since this unit started, if there is one that counts."""
        return stale(step, unit, self._lineage, state, self._env)

    # Ends

    def settle(self, step: Step, unit: UnitState) -> None:
        """A step is done: what waited for it may be ready."""
        if step.id in self.hooks:
            self._next_hook(step)
            return
        self._unfinished.discard(step.id)
        self._lineage[step.id] = lineage_of(step, unit, self._lineage)
        for released in self._frontier.settle(step.id):
            if self._may_run(released):
                self._ready.append(released)

    def fail(self, step: Step) -> list[Step]:
        """A step has failed for good: the hooks that clean up after it, the first of which is ready now."""
        if step.id in self.hooks:
            self._next_hook(step)
        return self.start_hooks(step.on_failure)

    def start_hooks(self, hooks: tuple[Step, ...]) -> list[Step]:
        """These hooks one after the other, the first of them now."""
        if hooks:
            self._ready.append(hooks[0].id)
        return self.chain(hooks)

    def chain(self, hooks: tuple[Step, ...]) -> list[Step]:
        """These hooks one after the other, once the first is ready."""
        self._after |= {hook.id: following.id for hook, following in pairwise(hooks)}
        if hooks:
            self._after.pop(hooks[-1].id, None)
        return list(hooks)

    def halt(self) -> None:
        """No further step runs in this life, only hooks."""
        self._wanted = set()
        self._ready = deque(step for step in self._ready if step in self.hooks)
        self._waiting = [(due, step) for due, step in self._waiting if step in self.hooks]
        heapq.heapify(self._waiting)

    @property
    def complete(self) -> bool:
        """Whether every step is settled."""
        return not self._unfinished

    @property
    def reached(self) -> bool:
        """Whether every step that was wanted is settled."""
        return not self._unfinished & self._wanted

    def _next_hook(self, hook: Step) -> None:
        if hook.id in self._after:
            self._ready.append(self._after[hook.id])
        elif hook.id in self._held:
            step = self._held.pop(hook.id)
            if self._frontier.is_ready(step) and self._may_run(step):
                self._ready.append(step)

    def _may_run(self, step_id: str) -> bool:
        if self._held and step_id in self._held.values():
            return False
        return step_id in self._wanted and step_id not in self.asked


def all_steps(pipeline: Pipeline) -> Iterator[Step]:
    """Every step of a pipeline, hooks included."""
    for step in pipeline.steps:
        yield step
        yield from step.on_failure
    yield from pipeline.finally_
