"""What can be seen of running attempts without asking whoever runs them: their logs and their progress files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from rerail.cli.board import Glimpse
from rerail.core.state import RunState
from rerail.executors import channels
from rerail.text import one_line, without_escapes

TAIL_BYTES = 2048


class Glimpses:
    """Looks at the attempts of one run."""

    def __init__(self, run_dir: str, mark: Callable[[], str]) -> None:
        self._logs = os.path.join(run_dir, "logs")
        self._mark = mark
        self._channels = ""

    def of(self, state: RunState) -> dict[str, Glimpse]:
        """One for every running step."""
        running = [
            (step, unit) for (step, item), unit in state.units.items() if unit.status == "running" and item is None
        ]
        return {step: self._glimpse(f"{step}.{unit.attempts}") for step, unit in running}

    def _glimpse(self, name: str) -> Glimpse:
        if not (self._channels and os.path.isdir(self._channels)):
            self._channels = channels.directory_of(self._mark())
        progress = channels.progress(os.path.join(self._channels, name)) if self._channels else None
        return Glimpse(last_line=self._last_line(name), progress=progress)

    def _last_line(self, name: str) -> str:
        newest, text = 0, ""
        for ending in (".out", ".err", ".out.rest", ".err.rest", ".out.rest2", ".err.rest2"):
            with contextlib.suppress(OSError), open(os.path.join(self._logs, name + ending), "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_mtime_ns > newest:
                    file.seek(max(status.st_size - TAIL_BYTES, 0))
                    newest, text = status.st_mtime_ns, file.read(TAIL_BYTES).decode(errors="replace")
        lines = [line for line in without_escapes(text).replace("\r", "\n").splitlines() if line.strip()]
        return one_line(lines[-1].strip(), 300) if lines else ""
