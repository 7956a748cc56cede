"""Functions of this process as attempts: in place, or in daemon threads that only hand their outcome back."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Container
from typing import Any

import msgspec

from rerail.core.state import Unit
from rerail.core.values import clean, problem
from rerail.executors import outcomes
from rerail.ports import Attempt, FunctionWork, Outcome


class _Call(msgspec.Struct, kw_only=True):
    attempt: Attempt
    began: float
    deadline: float | None


class Calls:
    """The functions that run in threads. A thread cannot be ended: one that is given up has no result that counts."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._calls: dict[Unit, _Call] = {}
        self._tasks: queue.SimpleQueue[tuple[Attempt, FunctionWork] | None] = queue.SimpleQueue()
        self._returned: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._threads = 0
        self._idle = 0

    def hand_over(self, attempt: Attempt, work: FunctionWork) -> None:
        began = time.monotonic()
        deadline = None if attempt.timeout is None else began + attempt.timeout
        self._calls[attempt.unit] = _Call(attempt=attempt, began=began, deadline=deadline)
        if self._idle == 0:
            threading.Thread(target=self._serve, daemon=True).start()
            self._threads += 1
        else:
            self._idle -= 1
        self._tasks.put((attempt, work))

    def deadlines(self) -> list[float]:
        return [call.deadline for call in self._calls.values() if call.deadline is not None]

    def returned(self, now: float) -> list[tuple[Attempt, Outcome]]:
        """The outcomes of those that came back, and of those whose time is up."""
        found = []
        while True:
            try:
                number, outcome = self._returned.get_nowait()
            except queue.Empty:
                break
            self._idle += 1
            known = self._calls.get(outcome.unit)
            if known is not None and known.attempt.number == number:
                del self._calls[outcome.unit]
                found.append((known.attempt, outcome))
        for unit, known in list(self._calls.items()):
            if known.deadline is not None and now >= known.deadline:
                del self._calls[unit]
                found.append((known.attempt, outcomes.timed_out(known.attempt, now - known.began)))
        return found

    def give_up(self, now: float, spare: Container[str]) -> list[Outcome]:
        given_up = [self._calls.pop(unit) for unit in list(self._calls) if unit[0] not in spare]
        return [Outcome(unit=lost.attempt.unit, status="stopped", duration=now - lost.began) for lost in given_up]

    def close(self) -> None:
        for _ in range(self._threads):
            self._tasks.put(None)

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            attempt, work = task
            self._returned.put((attempt.number, call(attempt, work)))
            self._wake()


def call(attempt: Attempt, work: FunctionWork) -> Outcome:
    """Call a function and tell how that ended; whatever it raises is the attempt's failure."""
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
    except Exception:  # noqa: BLE001 - an exception that cannot even say what it is
        return type(error).__name__


def _traceback(error: BaseException) -> str:
    try:
        return clean("".join(traceback.format_exception(error)))
    except Exception:  # noqa: BLE001
        return ""
