"""What a life has come to, and its last words."""

from __future__ import annotations

import msgspec

from rerail.core import events as ev
from rerail.core.dead_letters import dead_letters
from rerail.engine.admission import Held
from rerail.engine.frame import Frame
from rerail.engine.recorder import Recorder
from rerail.engine.shutdown import Stop
from rerail.engine.spec import End, Job
from rerail.errors import StateUnwritable
from rerail.ports import Clock


def ending_of(job: Job, recorder: Recorder, root: Frame, stop: Stop, held: Held | None) -> End:
    """How it stands when nothing is left to do."""
    lost = recorder.lost
    if lost is not None:
        return End(status="interrupted", reason=lost.message, lost=lost)
    if recorder.degraded:
        stopped = StateUnwritable(
            f"{recorder.degraded}: stopped before the state could no longer be written",
            hint=f"rerail resume {job.header.run_id}, once there is room",
        )
        return End(status="interrupted", reason=recorder.degraded, lost=stopped)
    if stop.signal is not None:
        return End(status="interrupted", reason=stop.reason, signal=stop.signal)
    asked = tuple(root.asked)
    unknown = f"the outcome of {', '.join(asked)} is unknown" if asked else ""
    if root.failed and not (held is not None and held.hooks):  # a clean-up that waits is not left out without a word
        also = [stop.reason or (held.why if held is not None else ""), unknown]
        return End(status="failed", reason="; ".join(filter(None, also)), cause=stop.pausing)
    if stop.pausing == "max-runtime" and held is not None and held.cause == "quota" and not root.complete:
        return End(status="paused", reason=f"{held.why}; {stop.reason}", cause="quota", until=held.until)
    if stop.pausing and not root.complete:
        return End(status="paused", reason=stop.reason, cause=stop.pausing)
    if asked:
        return End(status="paused", reason=unknown, asked=asked, cause="unknown outcome")
    if held is not None:
        return End(status="paused", reason=held.why, cause=held.cause, until=held.until, waiting=held.waiting)
    if job.until and root.reached and not root.complete:
        return End(status="paused", reason=f"stopped after {job.until}, as --until asked", reached=True, cause="until")
    return End(status="completed" if root.complete else "failed", reason=stop.reason)


def finish(recorder: Recorder, clock: Clock, end: End, began: float) -> End:
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
        end = End(status="interrupted", reason="its end could not be recorded", lost=recorder.lost)
    recorder.snapshot()
    return msgspec.structs.replace(end, unrecorded=unrecorded)
