"""Shutdown: why an invocation starts no more steps, and the result of the run.

`Shutdown` is the only owner of that fact. Causes are a signal, a journal that cannot be written, a spent budget,
`--max-runtime`, `--fail-fast`, and the end of the run, after which only final hooks start.
"""

from __future__ import annotations

import signal

import msgspec

from rerail.core import events as ev
from rerail.core.dead_letters import dead_letters
from rerail.core.events import BudgetKind, PauseCause
from rerail.engine.admission import Blocked
from rerail.engine.budgets import RunBudget
from rerail.engine.frame import Frame
from rerail.engine.recorder import Recorder
from rerail.engine.spec import STOP_GRACE, RunResult, RunSpec, Toolbox
from rerail.errors import StateUnwritable
from rerail.ports import Clock


class StopRequest(msgspec.Struct, frozen=True):
    """Why nothing new may start: the reason, and the signal or the cause of a pause that it came from."""

    reason: str
    signal: signal.Signals | None
    pausing: PauseCause = ""
    budget_kind: BudgetKind = ""


class Shutdown:
    """Reason why an invocation starts no more steps, or nothing at all; the first one counts."""

    def __init__(self, spec: RunSpec, tools: Toolbox, recorder: Recorder, budget: RunBudget) -> None:
        self.reason = ""
        self.signal: signal.Signals | None = None
        self.final_status = ""  # status of the run, once only its final hooks are left
        self._only_hooks = False
        self._pausing: PauseCause = ""
        self._budget = budget
        self._executor = tools.executor
        self._signals = tools.signals
        self._recorder = recorder
        self._stops_on_error = spec.pipeline.checkpoint.on_error == "stop"

    @property
    def is_draining(self) -> bool:
        """Whether nothing may start: attempts in flight end."""
        if self.final_status:  # final hooks run after success and failure, unless told to stop or unable to record
            return self.signal is not None or self._recorder.write_error is not None
        return bool(self.reason)

    @property
    def is_stopping(self) -> bool:
        """Whether controllers may open no more frames: only hooks may start, or nothing."""
        return bool(self.reason or self._only_hooks)

    @property
    def stop(self) -> StopRequest:
        spent = self._budget.overspent() if self._pausing == "budget" else ""  # attempts in flight went on spending
        kind = self._budget.kind if self._pausing == "budget" else ""
        return StopRequest(spent or self.reason, self.signal, self._pausing, kind)

    @property
    def cause(self) -> str:
        """Cause of the interruption of attempts in flight, as their records say it."""
        if self._pausing and not self.signal:
            return self._budget.name
        return self.signal.name if self.signal else self.reason or self._recorder.degraded or "--fail-fast"

    @property
    def lets_cleanup_start(self) -> bool:
        """Whether clean-up hooks start while draining: a spent budget does not hold them back."""
        return self._pausing == "budget" and self.signal is None

    def drain(self, reason: str) -> None:
        """Start nothing more. The first reason counts."""
        self.reason = self.reason or reason

    def start_only_hooks(self, final_status: str = "") -> None:
        """Start no more steps; with a final status, the run is done but for its final hooks."""
        self._only_hooks = True
        self.final_status = self.final_status or final_status

    def stop_unwritable(self, reason: str) -> bool:
        """Stop because something of the run cannot be made durable; return False if `on_error: warn` forbids that."""
        if self._stops_on_error:
            self._recorder.blocked_reason = self._recorder.blocked_reason or reason
            self._only_hooks = True
        return self._stops_on_error

    def check_budget(self) -> None:
        """Drain once the budget of the run or `--max-runtime` is used up."""
        if self.final_status:
            return
        reason = "" if self.reason else self._budget.exhausted()
        if reason:
            self._pausing = self._budget.cause
            self.drain(reason)
            if self._budget.stops:
                self._executor.stop(STOP_GRACE)

    def take_signals(self, *, in_flight: bool) -> bool:
        """Take the signals received and stop the executor; return whether to stop at once."""
        received = []
        while self._signals.received:  # one by one: another may arrive meanwhile
            received.append(self._signals.received.pop(0))
        again = self.signal is not None
        if not again:
            self.signal = received[0]
            self.drain(f"stopped by {received[0].name}")
            if in_flight:
                self._recorder.warn(
                    f"{received[0].name}: stopping steps (up to {STOP_GRACE:g} s); a second signal kills them"
                )
        at_once = again or len(received) > 1
        self._executor.stop(0.0 if at_once else STOP_GRACE)
        return at_once


def run_result(spec: RunSpec, recorder: Recorder, root: Frame, stop: StopRequest, blocked: Blocked | None) -> RunResult:
    """Return the result of the run now that nothing is left to do in this invocation."""
    error = recorder.write_error
    if error is not None:
        return RunResult(status="interrupted", reason=error.message, lost=error)
    if recorder.degraded:
        stopped = StateUnwritable(
            f"{recorder.degraded}: stopped while the state can still be written",
            hint=f"free some space, then: rerail resume {spec.header.run_id}",
        )
        return RunResult(status="interrupted", reason=recorder.degraded, lost=stopped)
    if stop.signal is not None:
        return RunResult(status="interrupted", reason=stop.reason, signal=stop.signal)
    in_doubt = tuple(root.in_doubt)
    unknown = f"the outcome of {', '.join(in_doubt)} is unknown" if in_doubt else ""
    if root.failed and not (blocked is not None and blocked.hooks):  # a blocked clean-up is not left out silently
        also = [stop.reason or (blocked.why if blocked is not None else ""), unknown]
        return RunResult(
            status="failed", reason="; ".join(filter(None, also)), cause=stop.pausing, budget_kind=stop.budget_kind
        )
    if stop.pausing == "max-runtime" and blocked is not None and blocked.cause == "quota" and not root.complete:
        return RunResult(status="paused", reason=f"{blocked.why}; {stop.reason}", cause="quota", until=blocked.until)
    if stop.pausing and not root.complete:
        return RunResult(status="paused", reason=stop.reason, cause=stop.pausing, budget_kind=stop.budget_kind)
    if in_doubt:
        return RunResult(status="paused", reason=unknown, waiting_for=in_doubt, cause="in-doubt")
    if blocked is not None:
        return RunResult(
            status="paused", reason=blocked.why, cause=blocked.cause, until=blocked.until, waiting_for=blocked.waiting
        )
    if spec.execute.until and root.reached and not root.complete:
        return RunResult(
            status="paused", reason=f"stopped after {spec.execute.until} (--until)", reached=True, cause="until"
        )
    return RunResult(status="completed" if root.complete else "failed", reason=stop.reason)


def record_result(recorder: Recorder, clock: Clock, result: RunResult, began: float) -> RunResult:
    """Record the result of an invocation that began at a time; return it with the ends that could not be recorded."""
    now, active = clock.now(), round(clock.monotonic() - began, 6)
    match result.status:
        case "completed" | "failed":
            dead = sum(1 for _ in dead_letters(recorder.state))
            recorder.stage(ev.RunFinished(at=now, status=result.status, dead_letters=dead, active_seconds=active))
        case "paused":
            recorder.stage(
                ev.RunPaused(
                    at=now,
                    reason=result.reason,
                    cause=result.cause,
                    until=result.until,
                    waiting_for=result.waiting_for,
                    budget_kind=result.budget_kind,
                    active_seconds=active,
                )
            )
        case "interrupted":
            name = result.signal.name if result.signal else None
            recorder.stage(ev.RunInterrupted(at=now, reason=result.reason, signal=name, active_seconds=active))
    unrecorded = recorder.unacknowledged_ends()
    if recorder.final_flush():
        unrecorded = ()
    elif result.lost is None:
        result = RunResult(status="interrupted", reason="its end could not be recorded", lost=recorder.write_error)
    recorder.snapshot()
    return msgspec.structs.replace(result, unrecorded=unrecorded)
