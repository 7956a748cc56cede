"""The system clock and the local time zone."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, tzinfo


class SystemClock:
    """Clocks of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class LocalZone(tzinfo):
    """Time zone of this machine, with its changes of daylight saving time.

    The zone of `datetime.astimezone()` knows the offset of one moment only: tomorrow's nine o'clock may have another.
    """

    def utcoffset(self, at: datetime | None) -> timedelta | None:
        if at is None:
            return None
        wall = at.replace(tzinfo=None)
        return wall - datetime.fromtimestamp(wall.timestamp(), UTC).replace(tzinfo=None)

    def dst(self, _at: datetime | None) -> timedelta | None:
        return None

    def tzname(self, at: datetime | None) -> str | None:
        return None if at is None else at.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, at: datetime) -> datetime:
        return datetime.fromtimestamp(at.replace(tzinfo=UTC).timestamp()).replace(tzinfo=self)  # noqa: DTZ006 - ours
