"""Expression scopes: the values of `params`, `env`, `steps`, `run`, `item` and `loop` in the expressions of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rerail.core.expressions.language import Scope
from rerail.core.expressions.render import StepResults
from rerail.core.state import RunState
from rerail.engine.ready_queue import Task, TaskParent
from rerail.engine.spec import RunSpec


class ScopeBuilder:
    """Builder of the scope of an expression."""

    def __init__(self, spec: RunSpec, state: RunState) -> None:
        self._spec = spec
        self._state = state
        self.status: Callable[[], str] = lambda: state.status

    def scope(self, parent: TaskParent, names: Mapping[str, Any]) -> Scope:
        """Return the scope of a parent, with names of its own."""
        spec, state = self._spec, self._state
        own_params = names.get("params") if names else None
        return Scope(
            params=spec.header.params if own_params is None else own_params,
            env=spec.base_env,
            steps=StepResults(state, lambda name: parent.lookup(name, state)),
            run={
                "id": spec.header.run_id,
                "dir": spec.environment.get("RERAIL_RUN_DIR", ""),
                "status": parent.status or self.status(),
            },
            more={name: value for name, value in names.items() if name != "params"},
        )

    def of(self, task: Task) -> Scope:
        """Return the scope of a task."""
        return self.scope(task.parent, task.parent.names(task))
