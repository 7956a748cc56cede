"""Functions of this process as attempts: in place, or in daemon threads that only return their outcome."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Container
from typing import Any

import msgspec

from rerail.core.unit_id import UnitId
from rerail.core.values import clean, problem
from rerail.executors import outcomes
from rerail.ports import Attempt, FunctionWork, Outcome


class _Call(msgspec.Struct, kw_only=True):
    attempt: Attempt
    began: float
    deadline: float | None


class FunctionThreads:
    """Functions that run in threads. A thread cannot be ended: the result of an abandoned one does not count.

    A hand-over between threads costs more than most tiny functions. So one thread serves all that wait, until one of them
    takes long: then a thread is woken for each function that waits.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._calls: dict[UnitId, _Call] = {}
        self._limited = 0  # number of calls with a deadline
        self._tasks: deque[tuple[Attempt, FunctionWork]] = deque()
        self._turns: queue.SimpleQueue[str] = queue.SimpleQueue()  # one for each thread that is to serve; "": end
        self._returned: deque[tuple[int, Outcome]] = deque()
        self._woken = False  # `wake` was called since the last look
        self._threads = 0
        self._serving = 0
        self._lock = threading.Lock()

    def submit(self, attempt: Attempt, work: FunctionWork) -> None:
        began = time.monotonic()
        deadline = None if attempt.timeout is None else began + attempt.timeout
        self._calls[attempt.unit] = _Call(attempt=attempt, began=began, deadline=deadline)
        self._limited += deadline is not None
        self._tasks.append((attempt, work))
        if self._serving == 0:
            self._have_served(1)

    @property
    def waiting(self) -> bool:
        """Whether functions wait for a thread that serves others."""
        return bool(self._tasks)

    def expedite(self) -> None:
        """Serve all waiting functions at once, because nothing has returned for a while."""
        self._have_served(len(self._tasks))

    def _have_served(self, count: int) -> None:
        with self._lock:
            self._serving += count
            missing = self._serving - self._threads
            self._threads += max(missing, 0)
        for _ in range(missing):
            threading.Thread(target=self._serve, daemon=True).start()
        for _ in range(count):
            self._turns.put("serve")

    def deadlines(self) -> list[float]:
        if not self._limited:
            return []
        return [call.deadline for call in self._calls.values() if call.deadline is not None]

    def returned(self, now: float) -> list[tuple[Attempt, Outcome]]:
        """Return the outcomes of the functions that returned, and of those that timed out."""
        found = []
        self._woken = False  # before looking: a function that returns from now on wakes again
        while self._returned:
            number, outcome = self._returned.popleft()
            known = self._calls.get(outcome.unit)
            if known is not None and known.attempt.number == number:
                self._forget(outcome.unit)
                found.append((known.attempt, outcome))
        for unit, known in list(self._calls.items()) if self._limited else ():
            if known.deadline is not None and now >= known.deadline:
                self._forget(unit)
                found.append((known.attempt, outcomes.timed_out(known.attempt, now - known.began)))
        return found

    def _forget(self, unit: UnitId) -> _Call:
        lost = self._calls.pop(unit)
        self._limited -= lost.deadline is not None
        return lost

    def give_up(self, now: float, spare: Container[str]) -> list[Outcome]:
        given_up = [self._forget(unit) for unit in list(self._calls) if unit.step not in spare]
        self._tasks = deque(task for task in self._tasks if task[0].unit.step in spare)
        return [Outcome(unit=lost.attempt.unit, status="stopped", duration=now - lost.began) for lost in given_up]

    def close(self) -> None:
        for _ in range(self._threads):
            self._turns.put("")

    def _serve(self) -> None:
        while self._turns.get():
            while True:
                try:
                    attempt, work = self._tasks.popleft()
                except IndexError:
                    break
                self._returned.append((attempt.number, call(attempt, work)))
                if not self._woken and not self._tasks:
                    # While others wait, the executor looks again soon by itself: all that return meanwhile are
                    # one batch.
                    self._woken = True
                    self._wake()
            with self._lock:
                self._serving -= 1
            if self._tasks and self._serving == 0:  # submitted while this thread was leaving
                self._have_served(1)


def call(attempt: Attempt, work: FunctionWork) -> Outcome:
    """Call a function and return its outcome; any exception is the attempt's failure."""
    began = time.monotonic()
    try:
        outputs: dict[str, Any] = work.function() or {}
        wrong = problem(outputs) if type(outputs) is dict else f"it returned a {type(outputs).__name__}, not a dict"
    except BaseException as error:  # noqa: BLE001 - user code
        return Outcome(
            unit=attempt.unit,
            status="failed",
            duration=time.monotonic() - began,
            type=type(error).__name__,
            message=_message(error),
            traceback=_traceback(error),
        )
    duration = time.monotonic() - began
    if wrong:
        return Outcome(
            unit=attempt.unit,
            status="failed",
            duration=duration,
            type="OutputsInvalid",
            message=wrong,
            retryable=False,
        )
    return Outcome(unit=attempt.unit, status="ok", duration=duration, outputs=outputs)


def _message(error: BaseException) -> str:
    try:
        text = clean(str(error))
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    except Exception:  # noqa: BLE001 - an exception without a usable text
        return type(error).__name__


def _traceback(error: BaseException) -> str:
    try:
        return clean("".join(traceback.format_exception(error)))
    except Exception:  # noqa: BLE001
        return ""
