"""Values of an execution: the request for one invocation of a run, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rerail.core.plan import ExecuteOptions
from rerail.core.state import RunState
from rerail.ports import Reporter

if TYPE_CHECKING:  # planning and dry runs start without the engine
    from rerail.engine.spec import Ask, RunResult
    from rerail.ports import OutputListener

Functions = Mapping[str, Callable[..., dict[str, Any] | None]]


class InvocationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for one invocation of a run. Not recorded: the next invocation says all of it again."""

    execute: ExecuteOptions = ExecuteOptions()
    ask: Ask | None = None  # the person at the terminal
    listener: OutputListener | None = None  # to the output of steps while they run
    executor: str = "local"  # or the URL of one that a package has registered
    kinds: dict[str, str] = {}  # action → a registered kind that does it instead of the built-in one


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of an invocation; `end` is the engine's result."""

    run_id: str
    end: RunResult
    state: RunState


def teller_of(reporters: Sequence[Reporter]) -> Callable[[str], None]:
    """Return a function that tells all reporters why nothing begins yet."""

    def tell(message: str) -> None:
        for reporter in reporters:
            reporter.warn(message)

    return tell
