"""Events for programs: one line of JSON each on stdout."""

from __future__ import annotations

from typing import Any

import msgspec

from rerail.cli.render.failure import details_command, more_items
from rerail.cli.render.streams import put_line, say
from rerail.core import events as ev
from rerail.core.failures import FailureLog
from rerail.core.state import RunState

_encode = msgspec.json.Encoder().encode


class JsonReporter:
    """Reporter of one event per line on stdout, once it is durable.

    The error of a step that failed for good says where it began, and the next command. Warnings are left to a reporter of
    lines beside it, unless it is `alone`.
    """

    def __init__(self, run_id: str, where: str, *, alone: bool) -> None:
        self._run_id = run_id
        self._where = where
        self._failures = FailureLog()
        self._alone = alone

    def show(self, seq: int, event: ev.Event, state: RunState) -> None:
        self._failures.note(event)
        encoded = _encode(event)
        if isinstance(event, ev.StepFailed) and event.retry_at is None:
            encoded = _encode(msgspec.json.decode(encoded) | {"error": self._error(event, state)})
        put_line(b'{"seq":%d,%b' % (seq, encoded[1:]))

    def _error(self, event: ev.StepFailed, state: RunState) -> dict[str, Any]:
        cause = self._failures.cause(state, event)
        began = {
            "step": cause.unit.step,
            "item": cause.unit.item,
            "command": cause.error.command,
            "stderr_tail": cause.tail,
        }
        more = more_items(self._run_id, cause, self._where)
        said = {"next": details_command(self._run_id, cause, self._where), **({"more": more} if more else {})}
        return {**msgspec.to_builtins(event.error), **began, **said}

    def warn(self, message: str) -> None:
        if self._alone:
            say(f"rerail: {message}")
