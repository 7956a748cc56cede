"""The last words of a life."""

from __future__ import annotations

import msgspec

from rerail.core import events as ev
from rerail.engine.job import End
from rerail.engine.recorder import Recorder
from rerail.ports import Clock


def finish(recorder: Recorder, clock: Clock, end: End) -> End:
    """Record how it ended, if it can be; what could not be is said."""
    now = clock.now()
    match end.status:
        case "completed" | "failed":
            recorder.stage(ev.RunFinished(at=now, status=end.status))
        case "paused":
            recorder.stage(ev.RunPaused(at=now, reason=end.reason))
        case "interrupted":
            name = end.signal.name if end.signal else None
            recorder.stage(ev.RunInterrupted(at=now, reason=end.reason, signal=name))
    unrecorded = recorder.unacknowledged_ends()
    if recorder.last_words():
        unrecorded = ()
    elif end.lost is None:
        end = End(status="interrupted", reason="its end could not be recorded", lost=recorder.lost)
    recorder.snapshot()
    return msgspec.structs.replace(end, unrecorded=unrecorded)
