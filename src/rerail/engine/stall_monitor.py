"""Stall monitor: reports a write to the state that hangs, and lets the user leave while the loop waits for the disk."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from types import TracebackType

from rerail import processes
from rerail.engine.recorder import Recorder
from rerail.engine.signals import Signals
from rerail.ports import Clock

SLOW_SECONDS = 30.0  # a disk that takes longer deserves a word
AGAIN_SECONDS = 60.0
CHECK_SECONDS = 5.0


class StallMonitor:
    """Thread that watches how long the present write takes, and ends the process on request: the loop may be stuck.

    `leave` is the descriptor from which it reads the number of the signal that the user gave up with; -1: there is none.
    """

    def __init__(self, recorder: Recorder, clock: Clock, signals: Signals, leave: int = -1) -> None:
        self._recorder = recorder
        self._clock = clock
        self._signals = signals
        self._leave = leave
        self._read, self._write = os.pipe()
        self._told = float("-inf")
        self._poll = select.poll()
        for fd in (self._read, leave):
            if fd >= 0:
                self._poll.register(fd, select.POLLIN)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> None:
        with contextlib.suppress(RuntimeError):  # no thread to be had: then writes are not watched
            self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._write)
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._read)

    def _serve(self) -> None:
        while True:
            ready = [fd for fd, _ in self._poll.poll(CHECK_SECONDS * 1000)]
            since = self._recorder.writing_since
            if self._leave in ready:
                when = "now" if since is None else "during a write to the state"
                self._signals.leave(os.read(self._leave, 1)[0], when)
            if self._read in ready:
                return
            if since is not None:
                self._look(self._clock.monotonic(), since)

    def _look(self, now: float, since: float) -> None:
        if now - since > SLOW_SECONDS and now - self._told > AGAIN_SECONDS:
            self._told = now
            self._recorder.warn(
                f"a write to the state has taken {now - since:.0f} s so far: the disk does not answer"
                f" ({processes.LEAVING} times Ctrl-C exits without waiting)"
            )
