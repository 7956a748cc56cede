"""Why a life of a run starts nothing more: a signal, state that cannot be written, something that is used up."""

from __future__ import annotations

import signal
from collections.abc import Iterable

import msgspec

from rerail.core import events as ev
from rerail.core.dead_letters import dead_letters
from rerail.core.events import PauseCause
from rerail.core.state import Unit
from rerail.engine.admission import Blocked
from rerail.engine.budgets import RunBudget
from rerail.engine.desk import Desk
from rerail.engine.frame import Frame
from rerail.engine.recorder import Recorder
from rerail.engine.spec import STOP_GRACE, RunResult, RunSpec, Toolbox
from rerail.errors import StateUnwritable
from rerail.ports import Clock


class StopRequest(msgspec.Struct, frozen=True):
    """Why nothing new may start, the signal that said so, or whether something is used up."""

    reason: str
    signal: signal.Signals | None
    pausing: PauseCause = ""


class Shutdown:
    """Decides once, and remembers why."""

    def __init__(self, job: RunSpec, tools: Toolbox, desk: Desk, running: Iterable[Unit]) -> None:
        self.reason = ""
        self.signal: signal.Signals | None = None
        self.purse = RunBudget(job, desk, tools.clock, running)
        self._pausing: PauseCause = ""
        self._executor = tools.executor
        self._signals = tools.signals
        self._desk = desk

    @property
    def stop(self) -> StopRequest:
        now = self.purse.overspent() if self._pausing == "budget" else ""  # what was under way went on spending
        return StopRequest(now or self.reason, self.signal, self._pausing)

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


def ending_of(job: RunSpec, recorder: Recorder, root: Frame, stop: StopRequest, held: Blocked | None) -> RunResult:
    """How it stands when nothing is left to do."""
    lost = recorder.lost
    if lost is not None:
        return RunResult(status="interrupted", reason=lost.message, lost=lost)
    if recorder.degraded:
        stopped = StateUnwritable(
            f"{recorder.degraded}: stopped before the state could no longer be written",
            hint=f"rerail resume {job.header.run_id}, once there is room",
        )
        return RunResult(status="interrupted", reason=recorder.degraded, lost=stopped)
    if stop.signal is not None:
        return RunResult(status="interrupted", reason=stop.reason, signal=stop.signal)
    asked = tuple(root.asked)
    unknown = f"the outcome of {', '.join(asked)} is unknown" if asked else ""
    if root.failed and not (held is not None and held.hooks):  # a clean-up that waits is not left out without a word
        also = [stop.reason or (held.why if held is not None else ""), unknown]
        return RunResult(status="failed", reason="; ".join(filter(None, also)), cause=stop.pausing)
    if stop.pausing == "max-runtime" and held is not None and held.cause == "quota" and not root.complete:
        return RunResult(status="paused", reason=f"{held.why}; {stop.reason}", cause="quota", until=held.until)
    if stop.pausing and not root.complete:
        return RunResult(status="paused", reason=stop.reason, cause=stop.pausing)
    if asked:
        return RunResult(status="paused", reason=unknown, asked=asked, cause="unknown outcome")
    if held is not None:
        return RunResult(status="paused", reason=held.why, cause=held.cause, until=held.until, waiting=held.waiting)
    if job.until and root.reached and not root.complete:
        return RunResult(
            status="paused", reason=f"stopped after {job.until}, as --until asked", reached=True, cause="until"
        )
    return RunResult(status="completed" if root.complete else "failed", reason=stop.reason)


def finish(recorder: Recorder, clock: Clock, end: RunResult, began: float) -> RunResult:
    """Record how it ended, if it can be; what could not be is said. It began then, on the monotonic clock."""
    now, driven = clock.now(), round(clock.monotonic() - began, 6)
    match end.status:
        case "completed" | "failed":
            dead = sum(1 for _ in dead_letters(recorder.state))
            recorder.stage(ev.RunFinished(at=now, status=end.status, dead_letters=dead, driven=driven))
        case "paused":
            paused = ev.RunPaused(at=now, reason=end.reason, cause=end.cause, until=end.until, driven=driven)
            recorder.stage(paused)
        case "interrupted":
            name = end.signal.name if end.signal else None
            recorder.stage(ev.RunInterrupted(at=now, reason=end.reason, signal=name, driven=driven))
    unrecorded = recorder.unacknowledged_ends()
    if recorder.last_words():
        unrecorded = ()
    elif end.lost is None:
        end = RunResult(status="interrupted", reason="its end could not be recorded", lost=recorder.lost)
    recorder.snapshot()
    return msgspec.structs.replace(end, unrecorded=unrecorded)
