"""A gate: how fast the attempts of one step may follow each other, after the service they use refused one of them.

One refusal slows all: nothing new of the step starts until the gate opens, and then one tries. When it has got through,
half as many as before may be under way, at half the pace; each that gets through lets one more be under way, and the next
start a little sooner. So the step finds the pace that the service allows, whatever that is. Holds no clock and does no
I/O; times are given to it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from rerail.core.retry import MOST_SPREAD

FIRST_GAP: Final = 1.0  # seconds, at most: how long a refusal lasts says nothing about the pace after it
MOST_GAP: Final = 60.0
SOONER: Final = 0.9  # what a gap shrinks to when one gets through
NO_GAP: Final = 0.005  # seconds below which there is none


class Throttle:
    """The gate of one step."""

    def __init__(self) -> None:
        self.opens = float("-inf")  # on the monotonic clock
        self.opens_at: datetime | None = None  # the same for people, and for a clock that was put forward
        self.width = 1  # how many may be under way once one has got through
        self.full = 1  # how many were, before the first refusal
        self.gap = 0.0  # seconds between two starts
        self.refusals = 0  # in a row, those that arrived together counted once
        self.name = ""
        self._next = float("-inf")  # when the next may start
        self._delay = 0.0

    def refuse(self, now: float, delay: float, at: datetime, under_way: int) -> None:
        """An attempt was refused, one of so many that were under way; until `at`, `delay` seconds from now."""
        if not self.is_closed(now):  # those that were sent off together are refused together, which is one refusal
            self.full = max(self.full, under_way)
            self.width = max(under_way // 2, 1)
            self.gap = self._slower(delay, under_way)
            self.refusals += 1
        if now + delay > self.opens:
            self.opens, self.opens_at, self._delay = now + delay, at, delay

    def _slower(self, delay: float, under_way: int) -> float:
        """The gap after a refusal. If nothing got through since the last one, it need not be the pace."""
        most = max(self.gap, FIRST_GAP) if self.refusals else MOST_GAP
        return min(self.gap * 2 or min(delay, FIRST_GAP) / under_way, most)

    @property
    def allowed(self) -> int:
        """How many may be under way now: until one has got through, one that tries."""
        return 1 if self.refusals else self.width

    def let_through(self, now: float) -> None:
        """An attempt got through; one that was sent off before the last refusal says nothing about the service now."""
        if self.is_closed(now):
            return
        self.refusals = 0
        self.width += 1
        self.gap = self.gap * SOONER if self.gap > NO_GAP else 0.0

    @property
    def is_over(self) -> bool:
        """Whether it makes no difference any more, once it is open."""
        return self.refusals == 0 and self.width >= self.full and not self.gap

    def is_closed(self, now: float) -> bool:
        """Whether a refusal that arrives now is one of those that closed it."""
        return now < self.opens

    def turn(self, dice: float) -> float:
        """When one of those that wait may try: not all at the same moment."""
        return self.opens + dice * min(self._delay / 2, MOST_SPREAD)

    def wait_for_pace(self, now: float) -> float | None:
        """When the next may start, if not now."""
        return self._next if now < self._next else None

    def start(self, now: float, dice: float) -> None:
        """One starts: the next not before a gap."""
        self._next = now + self.gap * (0.75 + dice / 2)

    def put_forward(self, now: float, at: datetime) -> bool:
        """Open it if the time for people has come although the monotonic clock stood still; whether that is so."""
        if self.opens_at is None or at < self.opens_at or now >= self.opens:
            return False
        self.opens = now
        return True
