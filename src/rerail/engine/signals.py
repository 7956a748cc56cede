"""Signals become a list that the loop reads: a handler never touches state, so none can tear a save."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """While active, stop signals are collected in `received` and `wake` is called for each."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.received: list[signal.Signals] = []
        self._wake = wake
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in _STOPPING:
                # What is ignored stays ignored: that is what nohup is for.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(signal.Signals(number))
        self._wake()
