"""Real time."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()
