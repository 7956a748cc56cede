"""Signals become a list that the loop reads: a handler never touches state, so none can tear a save."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from rerail.ports import Executor

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """While active, stop signals are collected in `received`, and the terminal's Ctrl-Z stops the steps with us."""

    def __init__(self, executor: Executor) -> None:
        self.received: list[signal.Signals] = []
        self._executor = executor
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in _STOPPING:
                # What is ignored stays ignored: that is what nohup is for.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
            if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
                self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._pause)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(signal.Signals(number))
        self._executor.wake()

    def _pause(self, _number: int, _frame: FrameType | None) -> None:
        """Stop what runs, then ourselves; go on together, as if no time had passed."""
        self._executor.suspend(signal.SIGSTOP)
        began = time.monotonic()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._executor.shift_deadlines(time.monotonic() - began)
        self._executor.suspend(signal.SIGCONT)
