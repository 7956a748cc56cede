"""Frames: one instance of a body of steps during one invocation.

The steps of the pipeline itself are one frame; those of an item, an iteration or a nested pipeline are another each. A
frame belongs to a controller and reports to it when all of its tasks are done. Holds no clock and does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

from rerail.core.events import Reason
from rerail.core.expressions.render import NOTHING
from rerail.core.graph import Ancestors, Frontier, dependants
from rerail.core.model import Step
from rerail.core.staleness import stale_reason, upstream_seq
from rerail.core.state import RunState, UnitState
from rerail.core.unit_id import UnitId
from rerail.engine.ready_queue import ReadyQueue, Task


class Body:
    """Steps of a body and their dependency graph, shared by all frames of it."""

    def __init__(self, steps: tuple[Step, ...], last: tuple[Step, ...], env: Mapping[str, str]) -> None:
        self.steps = steps
        self.last = last  # final hooks
        self.env = env
        self.needs = {step.id: step.needs for step in steps}
        self.edges = dependants(self.needs)
        cleaning = [hook for step in steps for hook in step.on_failure]
        self.by_id = {step.id: step for step in (*steps, *cleaning, *last)}
        self.hooks = frozenset(hook.id for hook in (*cleaning, *last))
        self.paths = {step.local: step.id for step in steps}
        self.controllers = frozenset(step.id for step in steps if step.is_controller)


class FrameOwner(Protocol):
    """Controller that opened a frame."""

    def frame_over(self, frame: Frame) -> None:
        """React to a frame whose tasks are all done."""

    def frame_blocked(self, frame: Frame) -> None:
        """React to a frame whose remaining tasks are all blocked."""

    def frame_unblocked(self, frame: Frame) -> None:
        """React to a blocked frame that goes on."""


class Frame:
    """Instance of a body: which of its tasks are done, ready, blocked or waiting for others."""

    def __init__(self, body: Body, queue: ReadyQueue, parent: Frame | None = None, item: str | None = None) -> None:
        self.body = body
        self.item = item
        self.parent = parent
        self.owner: FrameOwner | None = None
        self.values: Mapping[str, Any] = {}  # of `item`, `loop` and `params`
        self.env = NOTHING
        self.previous: str | None = None  # in a loop: the previous iteration
        self.counted = True
        self.failed: set[str] = set()  # steps that failed permanently and were not allowed to
        self.first_failure: UnitId | None = None
        self._queue = queue
        self._wanted: set[str] | None = None  # None: all
        self._frontier = Frontier(body.needs, body.edges)
        self._upstream: dict[str, int] = {}  # settled step → its upstream_seq
        self._unfinished: set[str] = set()
        self._next: dict[str, str] = {}  # hook → the hook after it
        self._held: dict[str, str] = {}  # last hook of a clean-up → the step that waits for it
        self._cleaning: dict[str, str] = {}  # step → the last hook of its clean-up, while that runs
        self._blocked: set[str] = set()  # steps in doubt, or blocked by admission
        self._required: dict[str, Reason] = {}  # settled step → why the plan has it run again
        self._final_begun = False
        self.active = 0  # tasks that are not done
        self.status = ""  # value of `run.status` in its final hooks

    def want(self, until: str) -> None:
        """Run only one step and its dependencies."""
        self._wanted = {until, *Ancestors(self.body.needs).of(until)}

    def task(self, step_id: str) -> Task:
        return Task(self.body.by_id[step_id], UnitId(step_id, self.item), self, controls=step_id in self.body.controllers)

    # Names

    def names(self, task: Task | None = None) -> Mapping[str, Any]:  # noqa: ARG002 - all of a frame share them
        return self.values

    def lookup(self, name: str, state: RunState) -> UnitId:
        path = self.body.paths.get(name)
        if path is None:
            return self.parent.lookup(name, state) if self.parent is not None else UnitId(name, self.item)
        unit = UnitId(path, self.item)
        if self.previous is not None and state.unit(unit).status not in ("completed", "failed", "skipped"):
            return UnitId(path, self.previous)
        return unit

    def allows_failure(self, task: Task) -> bool:
        return task.step.allow_failure

    # Recovery

    def reuse(self, step_id: str, unit: UnitState) -> None:
        """Settle a step whose record is reused. Dependencies have to come first."""
        self._upstream[step_id] = upstream_seq(self.body.by_id[step_id], unit, self._upstream)
        self._frontier.settle(step_id)

    def expect(self, step_id: str, *, in_doubt: bool = False, of: Sequence[str] = ()) -> None:
        """Expect a step that is still to run; or one that is in doubt, itself or `of` units inside it."""
        self._unfinished.add(step_id)
        if in_doubt:
            self.doubt(step_id, of)

    def require(self, step_id: str, reason: Reason) -> None:
        """Have a settled step run again, even if its dependencies come out unchanged."""
        self._required[step_id] = reason

    def required(self, task: Task) -> Reason | None:
        """Return why the plan has a settled step run again; None if it does not."""
        return self._required.get(task.step.id)

    def doubt(self, step_id: str, of: Sequence[str] = ()) -> None:
        """Block a step in doubt, itself or `of` units inside it, until a person decides: the frame is not done before."""
        self._blocked.add(step_id)
        self._queue.in_doubt += of or [str(UnitId(step_id, self.item))]
        self.active += 1

    def block(self, task: Task) -> None:
        if task.step.id not in self._blocked:
            self._blocked.add(task.step.id)
            if self.owner is not None:
                self.report()

    def unblock(self, task: Task) -> None:
        if task.step.id not in self._blocked:
            return
        blocked = self.active == len(self._blocked)
        self._blocked.discard(task.step.id)
        if blocked and self.owner is not None:
            self.owner.frame_unblocked(self)

    @property
    def in_doubt(self) -> list[str]:
        """Units in doubt, anywhere in the run."""
        return self._queue.in_doubt

    def hold(self, step: Step, hooks: tuple[Step, ...]) -> None:
        """Hold a step back until the rest of its clean-up is done."""
        self._held[hooks[-1].id] = step.id

    def begin(self) -> list[Task]:
        """Return the tasks whose dependencies are settled; the caller queues each, now or later."""
        ready = (step for step in self._frontier.ready() if self._may_run(step) and step not in self._upstream)
        return [self.task(step) for step in ready]

    def begin_new(self) -> None:
        """Queue the first tasks of a frame in which nothing has run."""
        self._unfinished = set(self.body.needs)
        for step_id in self._frontier.ready():
            self.ready(self.task(step_id))

    # Queue

    def ready(self, task: Task) -> None:
        self.active += 1
        self._queue.push(task)

    def wait(self, task: Task, due: float) -> None:
        self.active += 1
        self._queue.push_at(task, due)

    def outdated(self, task: Task, unit: UnitState, state: RunState) -> Reason | None:
        return stale_reason(task.step, unit, self._upstream, self.body.needs, state, self.body.env, self.item)

    # Completion

    def settle(self, task: Task, unit: UnitState) -> None:
        step = task.step
        if step.id in self.body.hooks:
            self._next_hook(step)
            return
        self._unfinished.discard(step.id)
        self._upstream[step.id] = upstream_seq(step, unit, self._upstream)
        for released in self._frontier.settle(step.id):
            if self._may_run(released):
                self.ready(self.task(released))

    def fail(self, task: Task, *, allowed: bool) -> list[Task]:
        step = task.step
        if step.id in self.body.hooks:
            self._next_hook(step)
        if not allowed:
            self.failed.add(step.id)
            self.first_failure = self.first_failure or task.unit
        if step.on_failure:
            self._cleaning[step.id] = step.on_failure[-1].id
        return self.start_hooks(step.on_failure)

    def reopen(self, task: Task) -> bool:
        """Queue a step again that had failed permanently; return False if no step may start any more."""
        if not self._may_run(task.step.id):
            return False
        self.failed.discard(task.step.id)
        if self.first_failure == task.unit:
            self.first_failure = None
        last = self._cleaning.get(task.step.id)
        if last is None:
            self.ready(task)
        else:
            self._held[last] = task.step.id  # its clean-up comes first
        return True

    def leave(self, task: Task) -> None:
        self.active -= 1
        self._blocked.discard(task.step.id)
        if self.owner is not None:
            self.report()

    def report(self) -> None:
        """Report to the owner if all tasks are done, or all that are left are blocked."""
        assert self.owner is not None
        if self.active == 0:
            self.owner.frame_over(self)
        elif self.active == len(self._blocked):
            self.owner.frame_blocked(self)

    def start_final_hooks(self) -> list[Task]:
        """Queue the first of the final hooks and return all of them; an empty list if they ran already."""
        if self._final_begun or not self.body.last:
            return []
        self._final_begun = True
        self.status = "completed" if self.complete and not self.failed else "failed"
        return self.start_hooks(self.body.last)

    def start_hooks(self, hooks: tuple[Step, ...]) -> list[Task]:
        """Queue the first of these hooks, and the others one after the other."""
        if hooks:
            self.ready(self.task(hooks[0].id))
        return self.chain(hooks)

    def chain(self, hooks: tuple[Step, ...]) -> list[Task]:
        """Run these hooks one after the other, once the caller queues the first."""
        self._next |= {hook.id: following.id for hook, following in pairwise(hooks)}
        if hooks:
            self._next.pop(hooks[-1].id, None)
        return [self.task(hook.id) for hook in hooks]

    def halt(self) -> None:
        """Start no more steps, only hooks."""
        self._wanted = set()

    @property
    def complete(self) -> bool:
        """Whether all steps are settled."""
        return not self._unfinished

    @property
    def reached(self) -> bool:
        """Whether all wanted steps are settled."""
        return not (self._unfinished if self._wanted is None else self._unfinished & self._wanted)

    def _next_hook(self, hook: Step) -> None:
        if hook.id in self._next:
            self.ready(self.task(self._next[hook.id]))
            return
        self._cleaning = {step: last for step, last in self._cleaning.items() if last != hook.id}
        if hook.id in self._held:
            step = self._held.pop(hook.id)
            if self._frontier.is_ready(step) and self._may_run(step):
                self.ready(self.task(step))

    def _may_run(self, step_id: str) -> bool:
        if self._held and step_id in self._held.values():
            return False
        return (self._wanted is None or step_id in self._wanted) and step_id not in self._blocked
