"""Probe of running attempts from outside the executing process: their logs and their progress files."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice

from rerail.cli.render.dashboard import AttemptGlance
from rerail.core.money import COST
from rerail.core.state import RunState
from rerail.core.unit_id import UnitId, is_step_within
from rerail.engine.spec import attempt_name
from rerail.executors import channels
from rerail.ports import RunLogs
from rerail.text import one_line, without_escapes

TAIL_BYTES = 2048
ENDINGS = (".out", ".err", ".out.rest", ".err.rest", ".out.rest2", ".err.rest2")
MAX_ATTEMPTS = 64  # more would not fit any screen


class AttemptProbe:
    """Probe of the attempts of one run."""

    def __init__(self, logs: RunLogs, mark: Callable[[], str]) -> None:
        self._logs = logs
        self._mark = mark
        self._channels = ""
        self._costs: dict[str, tuple[int, float]] = {}

    def of(self, state: RunState) -> dict[UnitId, AttemptGlance]:
        """Return a glance at every running attempt, up to a limit."""
        running = (
            (unit, known)
            for unit, known in state.units.items()
            if known.status == "running" and known.items is None and unit.step not in self._groups(state, unit)
        )
        return {
            unit: self._glimpse(attempt_name(unit, known.attempts), unit) for unit, known in islice(running, MAX_ATTEMPTS)
        }

    @staticmethod
    def _groups(state: RunState, unit: UnitId) -> tuple[str, ...]:
        """Return the step of an item that consists of several steps: these have glances of their own."""
        step, item = unit
        inside = state.inner.get(item, ()) if item is not None else ()
        return (step,) if any(name != step and is_step_within(name, step) for name in inside) else ()

    def _glimpse(self, name: str, unit: UnitId) -> AttemptGlance:
        if not (self._channels and os.path.isdir(self._channels)):
            self._channels = channels.directory_of(self._mark())
        prefix = os.path.join(self._channels, name)
        progress = channels.progress(prefix) if self._channels else None
        cost = self._cost(prefix) if self._channels else 0
        return AttemptGlance(last_line=self._last_line(name) if unit.item is None else "", progress=progress, cost=cost)

    def _cost(self, prefix: str) -> float:
        """Return the cost of an attempt so far; read again only when its metrics file has grown."""
        try:
            size = os.stat(prefix + channels.METRICS).st_size
        except OSError:
            return 0
        known = self._costs.get(prefix)
        if known is None or known[0] != size:
            self._costs[prefix] = known = (size, channels.usage(prefix).metrics.get(COST, 0))
        return known[1]

    def _last_line(self, name: str) -> str:
        found = (self._logs.stat(name + ending) for ending in ENDINGS)
        newest = max((file for file in found if file is not None), key=lambda file: file.modified, default=None)
        if newest is None:
            return ""
        text = self._logs.read(newest.name, max(newest.size - TAIL_BYTES, 0), TAIL_BYTES).decode(errors="replace")
        lines = [line for line in without_escapes(text).replace("\r", "\n").splitlines() if line.strip()]
        return one_line(lines[-1].strip(), 300) if lines else ""
