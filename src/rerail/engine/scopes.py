"""Expression scopes: a run as the expressions of its steps see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rerail.core.expressions.language import Scope
from rerail.core.expressions.render import StepResults
from rerail.core.state import RunState
from rerail.engine.ready_queue import Task, TaskParent
from rerail.engine.spec import RunSpec


class ScopeBuilder:
    """A run as the expressions of its steps see it."""

    def __init__(self, job: RunSpec, state: RunState) -> None:
        self._job = job
        self._state = state
        self.status: Callable[[], str] = lambda: state.status

    def scope(self, home: TaskParent, names: Mapping[str, Any]) -> Scope:
        """What the names in an expression stand for now."""
        job, state = self._job, self._state
        own_params = names.get("params") if names else None
        return Scope(
            params=job.header.params if own_params is None else own_params,
            env=job.base_env,
            steps=StepResults(state, lambda name: home.lookup(name, state)),
            run={
                "id": job.header.run_id,
                "dir": job.environment["RERAIL_RUN_DIR"],
                "status": home.status or self.status(),
            },
            more={name: value for name, value in names.items() if name != "params"},
        )

    def of(self, task: Task) -> Scope:
        """What the names in the texts of a task stand for."""
        return self.scope(task.home, task.home.names(task))
