"""Values of an execution, as a program asks for it and gets it back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rerail.core.state import RunState

Functions = Mapping[str, Callable[..., dict[str, Any] | None]]


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of an invocation; `end` is the engine's result."""

    run_id: str
    end: Any
    state: RunState
