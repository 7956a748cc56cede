"""A write to the state that hangs: somebody says so, and a person can leave, though the loop waits for the disk."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from types import TracebackType

from rerail import processes
from rerail.engine.recorder import Recorder
from rerail.ports import Clock

SLOW_SECONDS = 30.0  # a disk that takes longer deserves a word
AGAIN_SECONDS = 60.0
CHECK_SECONDS = 5.0
LEAVING = 3  # so many stop signals end the process although a write hangs
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class HangWatch:
    """A thread that looks at how long the present write takes, and hears signals that the loop cannot hear."""

    def __init__(self, recorder: Recorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._over = False
        self._heard = False  # whether signals are told to our pipe
        self._stops = 0
        self._told = float("-inf")
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._heard = before < 0
            if not self._heard:  # somebody else listens, such as an event loop: it is theirs
                signal.set_wakeup_fd(before)
        with contextlib.suppress(RuntimeError):  # no thread to be had: then nobody watches
            self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._heard:
            signal.set_wakeup_fd(-1)
        self._over = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"\0")
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def _serve(self) -> None:
        while not self._over:
            heard = os.read(self._read, 64) if self._poll.poll(CHECK_SECONDS * 1000) else b""
            heard = bytes(number for number in heard if number in _STOPPING)
            self._stops += len(heard)
            since = self._recorder.writing_since
            if since is not None and not self._over:
                self._look(self._clock.monotonic(), since, heard)

    def _leave(self, code: int) -> None:
        # Not through a reporter: whoever prints for it does so in its own time, and there is none left.
        with contextlib.suppress(OSError):
            os.write(2, b"rerail: left while a write to the state was under way; what was acknowledged is safe\n")
        os._exit(code)

    def _look(self, now: float, since: float, heard: bytes) -> None:
        if now - since > SLOW_SECONDS and now - self._told > AGAIN_SECONDS:
            self._told = now
            self._recorder.warn(
                f"a write to the state has taken {now - since:.0f} s so far: the disk does not answer"
                f" ({LEAVING} times Ctrl-C: leave without waiting)"
            )
        # A program that uses rerail as a library is not ours to end.
        if heard and self._stops >= LEAVING and now - since > 1.0 and processes.only_steps:
            self._leave(128 + heard[-1])
