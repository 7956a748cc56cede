"""Why a life of a run starts nothing more: a signal, state that cannot be written, something that is used up."""

from __future__ import annotations

import signal
from collections.abc import Iterable

import msgspec

from rerail.core.events import PauseCause
from rerail.core.state import Unit
from rerail.engine.budgets import Purse
from rerail.engine.desk import Desk
from rerail.engine.spec import STOP_GRACE, Job, Tools


class Stop(msgspec.Struct, frozen=True):
    """Why nothing new may start, the signal that said so, or whether something is used up."""

    reason: str
    signal: signal.Signals | None
    pausing: PauseCause = ""


class Stopping:
    """Decides once, and remembers why."""

    def __init__(self, job: Job, tools: Tools, desk: Desk, running: Iterable[Unit]) -> None:
        self.reason = ""
        self.signal: signal.Signals | None = None
        self.purse = Purse(job, desk, tools.clock, running)
        self._pausing: PauseCause = ""
        self._executor = tools.executor
        self._signals = tools.signals
        self._desk = desk

    @property
    def stop(self) -> Stop:
        now = self.purse.overspent() if self._pausing == "budget" else ""  # what was under way went on spending
        return Stop(now or self.reason, self.signal, self._pausing)

    @property
    def words(self) -> str:
        """What attempts are cut off by."""
        if self._pausing and not self.signal:
            return self.purse.name
        return self.signal.name if self.signal else self.reason or self._desk.recorder.degraded or "--fail-fast"

    @property
    def spares_clean_up(self) -> bool:
        """Whether what cleans up after a failure runs all the same: it does although a budget is spent."""
        return self._pausing == "budget" and self.signal is None

    def start_nothing(self, reason: str) -> None:
        self.reason = self.reason or reason
        self._desk.stopping = True

    def mind_purse(self) -> None:
        """Start nothing more once something is used up."""
        why = "" if self.reason else self.purse.why_not()
        if why:
            self._pausing = self.purse.cause
            self.start_nothing(why)
            if self.purse.stops:
                self._executor.stop(STOP_GRACE)

    def heed_signals(self, *, running: bool) -> bool:
        """Take what was received; whether nobody wants to wait any more."""
        received = []
        while self._signals.received:  # one by one: another may arrive meanwhile
            received.append(self._signals.received.pop(0))
        again = self.signal is not None
        if not again:
            self.signal = received[0]
            self.start_nothing(f"stopped by {received[0].name}")
            if running:
                self._desk.recorder.warn(f"{received[0].name}: ending what runs, in {STOP_GRACE:g} s at most; again: now")
        at_once = again or len(received) > 1
        self._executor.stop(0.0 if at_once else STOP_GRACE)
        return at_once
