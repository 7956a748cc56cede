"""`commit_required`: a step that has to commit is complete only if HEAD of its work tree has moved while it ran.

HEAD says that there is a commit, not whose it is. So two units that have to commit never run in one work tree at the same
time; that they would is found when the file is checked, where it can be told from the file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from rerail.core.expressions.language import ExpressionError
from rerail.core.unit_id import UnitId
from rerail.engine.launch import directory_of
from rerail.engine.ready_queue import ReadyQueue, Task
from rerail.engine.scopes import ScopeBuilder
from rerail.engine.spec import RunSpec, Toolbox
from rerail.ports import Outcome


class Commits:
    """Work trees in use by units that have to commit, and the proof that they did."""

    def __init__(self, spec: RunSpec, tools: Toolbox, queue: ReadyQueue, scopes: ScopeBuilder) -> None:
        self._spec = spec
        self._tools = tools
        self._queue = queue
        self._scopes = scopes
        self._trees: dict[UnitId, str] = {}  # by running unit
        self._queues: dict[str, deque[Task]] = {}  # by work tree: tasks that wait for it

    def _directory(self, task: Task) -> str:
        try:
            return directory_of(self._spec, task, self._scopes)
        except ExpressionError:
            return self._spec.work_dir  # the attempt fails for the same reason, with a better message

    def reserve(self, task: Task) -> bool:
        """Reserve the work tree of a task; if another unit has it, queue the task behind that and return False."""
        if task.unit in self._trees:
            return True
        tree = self._tools.work_tree(self._directory(task))
        if tree and tree in self._trees.values():
            self._queues.setdefault(tree, deque()).append(task)
            return False
        self._trees[task.unit] = tree
        return True

    def keep(self, wanted: Callable[[Task], bool]) -> None:
        """Drop all waiting tasks but the wanted ones."""
        self._queues = {tree: deque(filter(wanted, queue)) for tree, queue in self._queues.items()}

    def release(self, unit: UnitId) -> None:
        """Release the work tree of a unit that is done, retries included, to the next task."""
        tree = self._trees.pop(unit, "")
        queue = self._queues.get(tree)
        if queue:
            self._queue.push_front(queue.popleft())

    def head(self, task: Task) -> str:
        """Return the commit that the work tree of a task is at."""
        return self._tools.head(self._directory(task))

    def prove(self, task: Task, outcome: Outcome, before: str) -> Outcome:
        """Return the outcome, as a failure unless HEAD has moved since the first attempt of the unit."""
        head = self.head(task)
        if head not in ("", before):
            return outcome
        uncommitted = self._tools.uncommitted(self._directory(task))
        what = f"changed and not committed: {', '.join(uncommitted)}" if uncommitted else "nothing was changed either"
        if not head:
            what = "no git work tree with a commit here"
        message = f"commit_required, but no commit was created; {what}"
        return msgspec.structs.replace(outcome, status="failed", type="CommitRequired", message=message, outputs={})
