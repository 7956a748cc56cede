"""Signals become a list that the loop reads: a handler never touches state, so none can tear a save.

The third signal is the exception: it ends the process at once. Acknowledged records are safe then, as after any kill.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from rerail import processes
from rerail.ports import Executor


class Signals:
    """While active, stop signals are collected in `received`, and the terminal's Ctrl-Z stops the steps with us.

    The number of each is also written to `heard`, if that is a descriptor: at once, and by the handler in C, so that
    another process can count them although the interpreter is stuck.
    """

    def __init__(self, executor: Executor, heard: int = -1) -> None:
        self.received: list[signal.Signals] = []
        self._executor = executor
        self._heard = heard
        self._heard_before: int | None = None
        self._stops = 0
        self._before: dict[signal.Signals, Any] = {}
        self._leaving = threading.Lock()

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in processes.STOPPING:
                # What is ignored stays ignored: that is what nohup is for.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
            if self._executor.capabilities.suspends and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
                self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._pause)
            if self._heard >= 0:
                self._heard_before = signal.set_wakeup_fd(self._heard, warn_on_full_buffer=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._restore()

    def detach(self) -> None:
        """Write no more numbers to the descriptor: it is about to be closed. Must come before that."""
        if self._heard_before is not None:
            signal.set_wakeup_fd(self._heard_before)
            self._heard_before = None

    def _restore(self) -> None:
        self.detach()
        while self._before:
            signal.signal(*self._before.popitem())

    def leave(self, number: int, when: str = "now") -> None:
        """End the process now, from any thread: the user has asked three times."""
        if not self._leaving.acquire(blocking=False):
            return  # another thread does so already
        # Not through a reporter: it prints in its own time, and there is none left.
        text = f"rerail: third signal ({signal.Signals(number).name}): exiting {when}; recorded progress is safe\n"
        with contextlib.suppress(OSError):
            os.write(2, text.encode())
        os._exit(128 + number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._stops += 1
        self.received.append(signal.Signals(number))
        if self._stops < processes.LEAVING:
            self._executor.wake()
        elif processes.only_steps:
            self.leave(number)
        else:  # the process is a program that uses rerail, and not ours to end: what it would have done without us
            before = self._before.get(signal.Signals(number), signal.SIG_DFL)
            self._restore()
            if callable(before):
                before(number, frame)
            elif before == signal.SIG_DFL:
                os.kill(os.getpid(), number)

    def _pause(self, _number: int, _frame: FrameType | None) -> None:
        """Stop the steps, then this process; continue together, as if no time had passed."""
        self._executor.suspend(signal.SIGSTOP)
        began = time.monotonic()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._executor.shift_deadlines(time.monotonic() - began)
        self._executor.suspend(signal.SIGCONT)
