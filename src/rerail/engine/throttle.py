"""Throttle: how many attempts of a step may run, and how fast they may start, after a service refused one of them.

One refusal slows all (AIMD, as TCP does): no attempt of the step starts until the throttle opens, and then one tries.
Once it has got through, half as many as before may be in flight, at half the pace; each that gets through lets one more
be in flight, and the next start a little sooner. So the step finds the pace that the service allows, whatever that is.
Holds no clock and does no I/O; times are passed in.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from rerail.core.retry import MAX_SPREAD

FIRST_GAP: Final = 1.0  # seconds, at most: how long a refusal lasts says nothing about the pace after it
MAX_GAP: Final = 60.0
DECREASE: Final = 0.9  # factor of the gap when an attempt gets through
MIN_GAP: Final = 0.005  # seconds; a smaller gap is none


class Throttle:
    """Throttle of one step."""

    def __init__(self) -> None:
        self.opens = float("-inf")  # on the monotonic clock
        self.opens_at: datetime | None = None  # the same on the wall clock
        self.width = 1  # attempts that may be in flight once one has got through
        self.full = 1  # attempts in flight before the first refusal
        self.gap = 0.0  # seconds between two starts
        self.refusals = 0  # in a row; refusals that arrive together count once
        self.name = ""
        self._next = float("-inf")  # when the next attempt may start
        self._delay = 0.0

    def refuse(self, now: float, delay: float, at: datetime, in_flight: int) -> None:
        """Close for `delay` seconds, until `at`: one of `in_flight` attempts was refused."""
        if not self.is_closed(now):  # attempts that started together are refused together: one refusal
            self.full = max(self.full, in_flight)
            self.width = max(in_flight // 2, 1)
            self.gap = self._slower(delay, in_flight)
            self.refusals += 1
        if now + delay > self.opens:
            self.opens, self.opens_at, self._delay = now + delay, at, delay

    def _slower(self, delay: float, in_flight: int) -> float:
        """Return the gap after a refusal; it stays small if nothing got through since the last refusal."""
        most = max(self.gap, FIRST_GAP) if self.refusals else MAX_GAP
        return min(self.gap * 2 or min(delay, FIRST_GAP) / in_flight, most)

    @property
    def allowed(self) -> int:
        """Number of attempts that may be in flight now: one, until it has got through."""
        return 1 if self.refusals else self.width

    def let_through(self, now: float) -> None:
        """Let more attempts run after one got through; one that started before the last refusal does not count."""
        if self.is_closed(now):
            return
        self.refusals = 0
        self.width += 1
        self.gap = self.gap * DECREASE if self.gap > MIN_GAP else 0.0

    @property
    def is_over(self) -> bool:
        """Whether an open throttle limits nothing any more."""
        return self.refusals == 0 and self.width >= self.full and not self.gap

    def is_closed(self, now: float) -> bool:
        """Return whether it is closed: a refusal that arrives now is one of those that closed it."""
        return now < self.opens

    def turn(self, random: float) -> float:
        """Return when a waiting attempt may try: not all at the same moment."""
        return self.opens + random * min(self._delay / 2, MAX_SPREAD)

    def wait_for_pace(self, now: float) -> float | None:
        """Return when the next attempt may start, or None if it may now."""
        return self._next if now < self._next else None

    def start(self, now: float, random: float) -> None:
        """Start an attempt: the next starts after the gap."""
        self._next = now + self.gap * (0.75 + random / 2)

    def put_forward(self, now: float, at: datetime) -> bool:
        """Open if the wall clock says so although the monotonic clock stood still; return whether it does."""
        if self.opens_at is None or at < self.opens_at or now >= self.opens:
            return False
        self.opens = now
        return True
