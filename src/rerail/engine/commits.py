"""`commit_required`: a step that has to commit is complete only if HEAD of its work tree has moved while it ran.

HEAD says that there is a commit, not whose it is. So two units that have to commit never run in one work tree at the same
time; that they would is found when the file is checked, where it can be told from the file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from rerail.core.expressions.language import ExpressionError
from rerail.core.state import Unit
from rerail.engine.desk import Desk
from rerail.engine.launch import directory_of
from rerail.engine.ready_queue import Task
from rerail.ports import Outcome


class Commits:
    """The work trees in which units that have to commit run, and the proof that they did."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._trees: dict[Unit, str] = {}  # of the units that run
        self._queues: dict[str, deque[Task]] = {}  # those that wait for a work tree

    def _directory(self, task: Task) -> str:
        try:
            return directory_of(self._desk.job, task, self._desk.view)
        except ExpressionError:
            return self._desk.job.work_dir  # the attempt fails for the same reason, with a better message

    def reserve(self, task: Task) -> bool:
        """Take the work tree of a unit that is about to start; if another has it, the unit's turn comes after that."""
        if task.unit in self._trees:
            return True
        tree = self._desk.tools.work_tree(self._directory(task))
        if tree and tree in self._trees.values():
            self._queues.setdefault(tree, deque()).append(task)
            return False
        self._trees[task.unit] = tree
        return True

    def keep(self, wanted: Callable[[Task], bool]) -> None:
        """Forget all waiting tasks but these."""
        self._queues = {tree: deque(filter(wanted, queue)) for tree, queue in self._queues.items()}

    def release(self, unit: Unit) -> None:
        """Nothing more comes of a unit, retries included: whoever waits for its work tree has the next turn."""
        tree = self._trees.pop(unit, "")
        queue = self._queues.get(tree)
        if queue:
            self._desk.turns.next(queue.popleft())

    def head(self, task: Task) -> str:
        """The commit the work tree of a unit is at."""
        return self._desk.tools.head(self._directory(task))

    def prove(self, task: Task, outcome: Outcome, before: str) -> Outcome:
        """An outcome that counts only if HEAD is no longer where it was when the unit was first tried."""
        head = self.head(task)
        if head not in ("", before):
            return outcome
        uncommitted = self._desk.tools.uncommitted(self._directory(task))
        what = f"changed and not committed: {', '.join(uncommitted)}" if uncommitted else "nothing was changed either"
        if not head:
            what = "there is no git work tree with a commit here"
        message = f"commit_required, but no commit was created; {what}"
        return msgspec.structs.replace(outcome, status="failed", type="CommitRequired", message=message, outputs={})
