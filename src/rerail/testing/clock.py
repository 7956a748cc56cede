"""A clock that tests can hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_START = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


class ManualClock:
    """A clock that moves only when it is told to."""

    def __init__(self, start: datetime = _START) -> None:
        self._now = start
        self._monotonic = 1000.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds

    def set_wall_clock(self, now: datetime) -> None:
        """Set the wall clock as a person or NTP would; the other goes on."""
        self._now = now
