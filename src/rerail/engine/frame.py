"""A frame: the steps of one body on their way through one life of a run.

The pipeline's own steps are one frame; those of an item, an iteration or an inner pipeline are another each, and belong
to a controller, which is told when nothing more will come of them. Holds no clock and does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

from rerail.core.expressions.render import NOTHING
from rerail.core.graph import Ancestors, Frontier, dependants
from rerail.core.model import Step
from rerail.core.staleness import stale_need, upstream_seq
from rerail.core.state import RunState, Unit, UnitState, name
from rerail.engine.ready_queue import ReadyQueue, Task


class Body:
    """What all frames of the same steps share."""

    def __init__(self, steps: tuple[Step, ...], last: tuple[Step, ...], env: Mapping[str, str]) -> None:
        self.steps = steps
        self.last = last  # hooks that come at the end, whatever happened
        self.env = env
        self.needs = {step.id: step.needs for step in steps}
        self.edges = dependants(self.needs)
        cleaning = [hook for step in steps for hook in step.on_failure]
        self.by_id = {step.id: step for step in (*steps, *cleaning, *last)}
        self.hooks = frozenset(hook.id for hook in (*cleaning, *last))
        self.paths = {step.local: step.id for step in steps}
        self.controllers = frozenset(step.id for step in steps if step.is_controller)


class FrameOwner(Protocol):
    """Whoever opened a frame."""

    def frame_over(self, frame: Frame) -> None:
        """Nothing more will come of it in this life, and it was not cut off."""

    def frame_blocked(self, frame: Frame) -> None:
        """Something outside the run has to happen before anything more can come of it."""

    def frame_unblocked(self, frame: Frame) -> None:
        """It has happened."""


class Frame:
    """One instance of a body."""

    def __init__(self, body: Body, turns: ReadyQueue, parent: Frame | None = None, item: str | None = None) -> None:
        self.body = body
        self.item = item
        self.parent = parent
        self.owner: FrameOwner | None = None
        self.values: Mapping[str, Any] = {}  # what names stand for here
        self.env = NOTHING
        self.previous: str | None = None  # in a loop: the iteration before
        self.counted = True
        self.failed: set[str] = set()  # steps that failed for good and were not allowed to
        self.first_failure: Unit | None = None
        self._turns = turns
        self._wanted: set[str] | None = None  # None: all
        self._frontier = Frontier(body.needs, body.edges)
        self._lineage: dict[str, int] = {}
        self._unfinished: set[str] = set()
        self._after: dict[str, str] = {}  # hook → the hook after it
        self._held: dict[str, str] = {}  # last hook of a clean-up → the step that waits for it
        self._cleaning: dict[str, str] = {}  # step → the last hook of its clean-up, while that is under way
        self._asked: set[str] = set()
        self._required: dict[str, str] = {}  # settled steps that the plan has run again, and why
        self._last_begun = False
        self.active = 0  # tasks that something will still come of
        self.status = ""  # what `run.status` stands for in its last hooks

    def want(self, until: str) -> None:
        """Only the way to one step is wanted."""
        self._wanted = {until, *Ancestors(self.body.needs).of(until)}

    def task(self, step_id: str) -> Task:
        return Task(self.body.by_id[step_id], (step_id, self.item), self, controls=step_id in self.body.controllers)

    # What names stand for

    def names(self, task: Task | None = None) -> Mapping[str, Any]:  # noqa: ARG002 - all of a frame share them
        return self.values

    def lookup(self, name: str, state: RunState) -> Unit:
        path = self.body.paths.get(name)
        if path is None:
            return self.parent.lookup(name, state) if self.parent is not None else (name, self.item)
        unit = (path, self.item)
        if self.previous is not None and state.unit(unit).status not in ("completed", "failed", "skipped"):
            return (path, self.previous)
        return unit

    def allows_failure(self, task: Task) -> bool:
        return task.step.allow_failure

    # What earlier lives left

    def reuse(self, step_id: str, unit: UnitState) -> None:
        """A step whose record counts. Called in an order in which its needs come first."""
        self._lineage[step_id] = upstream_seq(self.body.by_id[step_id], unit, self._lineage)
        self._frontier.settle(step_id)

    def expect(self, step_id: str, *, ask: bool = False, of: Sequence[str] = ()) -> None:
        """A step that is still to run, or that a person has to judge, or units inside it."""
        self._unfinished.add(step_id)
        if ask:
            self.ask(step_id, of)

    def require(self, step_id: str, reason: str) -> None:
        """Have a settled step run again when its turn comes, whether or not what it needs comes out the same."""
        self._required[step_id] = reason

    def required(self, task: Task) -> str:
        """Why the plan has a settled step run again; '' if it does not."""
        return self._required.get(task.step.id, "")

    def ask(self, step_id: str, of: Sequence[str] = ()) -> None:
        """A person has to judge a step of this frame first, or units inside it: until then the frame is not over."""
        self._asked.add(step_id)
        self._turns.asked += of or [name((step_id, self.item))]
        self.active += 1

    def set_aside(self, task: Task) -> None:
        if task.step.id not in self._asked:
            self._asked.add(task.step.id)
            if self.owner is not None:
                self.tell()

    def take_back(self, task: Task) -> None:
        if task.step.id not in self._asked:
            return
        blocked = self.active == len(self._asked)
        self._asked.discard(task.step.id)
        if blocked and self.owner is not None:
            self.owner.frame_unblocked(self)

    @property
    def asked(self) -> list[str]:
        """What a person has to judge first, anywhere in the run."""
        return self._turns.asked

    def hold(self, step: Step, hooks: tuple[Step, ...]) -> None:
        """A step whose clean-up an earlier life did not finish: these hooks first, then the step."""
        self._held[hooks[-1].id] = step.id

    def begin(self) -> list[Task]:
        """The tasks that wait for nothing; the caller says for each whether it is ready now or later."""
        ready = (step for step in self._frontier.ready() if self._may_run(step) and step not in self._lineage)
        return [self.task(step) for step in ready]

    def begin_new(self) -> None:
        """All steps are still to run, and nothing is known of any."""
        self._unfinished = set(self.body.needs)
        for step_id in self._frontier.ready():
            self.ready(self.task(step_id))

    # Its place in the queue

    def ready(self, task: Task) -> None:
        self.active += 1
        self._turns.ready(task)

    def wait(self, task: Task, due: float) -> None:
        self.active += 1
        self._turns.wait(task, due)

    def outdated(self, task: Task, unit: UnitState, state: RunState) -> str | None:
        return stale_need(task.step, unit, self._lineage, state, self.body.env, self.item)

    # Ends

    def settle(self, task: Task, unit: UnitState) -> None:
        step = task.step
        if step.id in self.body.hooks:
            self._next_hook(step)
            return
        self._unfinished.discard(step.id)
        self._lineage[step.id] = upstream_seq(step, unit, self._lineage)
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
        """A step that had failed for good has another turn, if steps still have turns; whether they have."""
        if not self._may_run(task.step.id):
            return False
        self.failed.discard(task.step.id)
        if self.first_failure == task.unit:
            self.first_failure = None
        last = self._cleaning.get(task.step.id)
        if last is None:
            self.ready(task)
        else:
            self._held[last] = task.step.id  # what cleans up after it comes first
        return True

    def leave(self, task: Task) -> None:
        self.active -= 1
        self._asked.discard(task.step.id)
        if self.owner is not None:
            self.tell()

    def tell(self) -> None:
        """Let the owner know if nothing more will come of this frame, or not before a person has judged."""
        assert self.owner is not None
        if self.active == 0:
            self.owner.frame_over(self)
        elif self.active == len(self._asked):
            self.owner.frame_blocked(self)

    def last_hooks(self) -> list[Task]:
        """What comes at the end, once; the first of it is ready now."""
        if self._last_begun or not self.body.last:
            return []
        self._last_begun = True
        self.status = "completed" if self.complete and not self.failed else "failed"
        return self.start_hooks(self.body.last)

    def start_hooks(self, hooks: tuple[Step, ...]) -> list[Task]:
        """These hooks one after the other, the first of them now."""
        if hooks:
            self.ready(self.task(hooks[0].id))
        return self.chain(hooks)

    def chain(self, hooks: tuple[Step, ...]) -> list[Task]:
        """These hooks one after the other, once the first is ready."""
        self._after |= {hook.id: following.id for hook, following in pairwise(hooks)}
        if hooks:
            self._after.pop(hooks[-1].id, None)
        return [self.task(hook.id) for hook in hooks]

    def halt(self) -> None:
        """No further step runs in this life, only hooks."""
        self._wanted = set()

    @property
    def complete(self) -> bool:
        """Whether every step is settled."""
        return not self._unfinished

    @property
    def reached(self) -> bool:
        """Whether every step that was wanted is settled."""
        return not (self._unfinished if self._wanted is None else self._unfinished & self._wanted)

    def _next_hook(self, hook: Step) -> None:
        if hook.id in self._after:
            self.ready(self.task(self._after[hook.id]))
            return
        self._cleaning = {step: last for step, last in self._cleaning.items() if last != hook.id}
        if hook.id in self._held:
            step = self._held.pop(hook.id)
            if self._frontier.is_ready(step) and self._may_run(step):
                self.ready(self.task(step))

    def _may_run(self, step_id: str) -> bool:
        if self._held and step_id in self._held.values():
            return False
        return (self._wanted is None or step_id in self._wanted) and step_id not in self._asked
