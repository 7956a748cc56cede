"""Durations, times and amounts as text."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from rerail.core.money import amount
from rerail.errors import UsageError


def plain(value: Any) -> str:
    """Format the value of a param as expressions do: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def seconds(value: float | None) -> str:
    """Format a duration for people."""
    if value is None:
        return ""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def worked(active: float | None, span: float | None, ended: bool = True) -> str:
    """Format the time in which a run was executed, and where it differs, that from its start to its end."""
    if active is None or span is None or span - active < max(1.0, active / 20):
        return seconds(span if active is None else active)
    return f"{seconds(active)} ({seconds(span)} from start to {'finish' if ended else 'now'})"


def span(text: str) -> float | None:
    """Parse a time such as 12h or 30d into seconds; None if it is not one."""
    from rerail.loaders.fields import parse_duration  # and with it all of YAML, which most commands do not need

    days = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]+)?)d", text)
    return float(days[1]) * 86400 if days else parse_duration(text)


def since_moment(text: str, command: str) -> datetime:
    """Parse the value of `--since`, a day or a time before now; raise UsageError."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):  # not a date, or one out of range
        seconds = span(text)
    if seconds is None:
        why = f"--since {text!r}: neither a day such as 2026-11-01 nor a time such as 7d"
        raise UsageError(why, hint=f"{command} --help")
    with contextlib.suppress(OverflowError):
        return datetime.now(UTC) - timedelta(seconds=seconds)
    return datetime.min.replace(tzinfo=UTC)  # before any run


def age(created_at: str, now: datetime) -> str:
    """Format the time since a moment."""
    try:
        then = datetime.fromisoformat(created_at.replace("Z", "+00:00"))
    except ValueError:
        return ""
    passed = max((now - then).total_seconds(), 0.0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed >= size:
            return f"{int(passed // size)} {unit}"
    return f"{int(passed)} s"


def zoned(at: datetime) -> str:
    """Format a moment in local time, with the name of the zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def clock(at: datetime) -> str:
    return at.astimezone().strftime("%H:%M:%S")


def moment(at: datetime, now: datetime | None = None) -> str:
    """Format a future time: the time of day, and the date if it is not today."""
    there, here = at.astimezone(), (now or datetime.now(UTC)).astimezone()
    return there.strftime("%H:%M" if there.date() == here.date() else "%Y-%m-%d %H:%M")


def until(at: datetime | None, now: datetime | None = None) -> str:
    """Format ` until 15:30 (in 25 min 00 s)`; '' without a time."""
    if at is None:
        return ""
    left = (at - (now or datetime.now(UTC))).total_seconds()
    return f" until {moment(at, now)}" + (f" (in {seconds(left)})" if left > 0 else " (passed)")


def dollars(value: float) -> str:
    """Format an amount; '' for zero."""
    return amount("cost_usd", value) if value else ""


def counted(number: int, what: str) -> str:
    """Format a count: `1 step`, `2 steps`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
