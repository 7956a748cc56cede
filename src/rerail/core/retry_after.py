"""Retry-After: the time until which a service asks its clients to wait, parsed from headers and messages. Pure.

Nothing here may take long: the text comes from strangers. So every repetition in a pattern has an end.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from typing import Final

from rerail.core.rate_limits import relevant_text

MAX_SKEW: Final = timedelta(minutes=10)  # by which the clock of a service may be behind: its "now" has just passed here
MAX_AHEAD: Final = timedelta(days=31)  # a time further away is a misunderstanding

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"(?:\d{1,3}(?:,\d{3}){1,2}\b|\d{1,9}(?:\.\d{1,9})?)"
_PIECE = rf"{_NUMBER} ?(?:ms|milliseconds?|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)\b"
_PIECES: Final = re.compile(rf"({_NUMBER}) ?(ms|mil|s|m|h|d)", re.IGNORECASE)
_SPAN = rf"((?:{_NUMBER}[dhm]){{0,3}}{_PIECE}(?:(?:,? and |, | )?{_PIECE}){{0,4}})"
_NO_TIME = r"attempts?|tries|times|requests?|retries|weeks?|months?|years?"
_WATCH = r"(\d{1,2}):(\d\d):(\d\d)\b"

# `Retry-After: 30`, `retry after 1 hour 30 minutes`, `RateLimit-Reset: 12`; a count of anything else is not a time.
_HEADER: Final = re.compile(
    rf"(?:retry[-_ ]?after(?:[-_ ]?(ms|s|seconds))?|ratelimit-reset)[\"']? ?[:=]? ?[\"']?"
    rf"(?:{_SPAN}|({_NUMBER})(?![\w:-]|[.,]\d| (?:{_NO_TIME})\b))",
    re.IGNORECASE,
)
_HTTP_DATE: Final = re.compile(
    r"(?:retry[- ]after|reset)\W{1,4}((?:\w{3,9}, )?\d{1,2}[ -]\w{3}[ -]\d{2,4} \d\d:\d\d:\d\d GMT)", re.IGNORECASE
)
_IN: Final = re.compile(
    rf"(?:try|retry|wait|again|available|resets?|retrydelay)(?:[-_][a-z]{{1,15}}){{0,2}}[\"']?"
    rf"(?: [a-z]{{1,20}}){{0,3}}? ?[:=]? ?[\"']?"
    rf"(?:(?:in|after|for) )?(?:about )?(?:{_SPAN}|(?<=in ){_WATCH})",
    re.IGNORECASE,
)
_EPOCH: Final = re.compile(
    r"(?:reset|limit reached|until|again)[\w-]{0,20}[\"']?(?: at| on)? ?[:=|]? ?[\"']?(\d{13}|\d{10})\b", re.IGNORECASE
)
_WORD = r"(?:resets?|until|reset_at|resetsat|(?:retry|try|again|available|wait)(?:\ after)?)"
_ISO: Final = re.compile(
    _WORD + r"[^\n]{0,30}?(20\d\d-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)? ?(?:Z|UTC|[+-]\d\d:?\d\d)?)",
    re.IGNORECASE,
)
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTH = rf"(?:{'|'.join(_MONTHS)})[a-z]{{0,6}}"
_CLOCK: Final = re.compile(
    rf"""{_WORD}\ (?:on\ |at\ )?
    (?:(?P<day>today|tomorrow|(?:{"|".join(_DAYS)})[a-z]{{0,6}}),?\ )?
    (?:(?:(?P<month>{_MONTH})\.?\ (?P<date>\d{{1,2}})(?:st|nd|rd|th)?
        |(?P<date_first>\d{{1,2}})(?:st|nd|rd|th)?\ (?P<month_last>{_MONTH})\.?)(?:,?\ \d{{4}})?,?\ )?
    (?:at\ )?(?P<hour>\d{{1,2}})(?::(?P<minute>\d\d)(?::(?P<second>\d\d))?)?\ ?(?P<half>[ap]\.?m\b\.?)?
    (?:\ ?\(?(?P<zone>[A-Za-z]{{1,20}}(?:/[A-Za-z_]{{1,20}}){{1,2}}|(?-i:Z|[A-Z]{{2,5}})\b|[+-]\d\d:?\d\d)\)?)?""",
    re.IGNORECASE | re.VERBOSE,
)
# Hours from UTC; for names without a season, a place where they are used.
_OFFSETS: Final = {
    "UTC": 0,
    "GMT": 0,
    "Z": 0,
    "BST": 1,
    "CET": 1,
    "CEST": 2,
    "MSK": 3,
    "JST": 9,
    "KST": 9,
    "AEST": 10,
    "AEDT": 11,
    "EST": -5,
    "EDT": -4,
    "CST": -6,
    "CDT": -5,
    "MST": -7,
    "MDT": -6,
    "PST": -8,
    "PDT": -7,
}
_PLACES: Final = {"PT": "Los_Angeles", "MT": "Denver", "CT": "Chicago", "ET": "New_York"}


def parse_retry_after(text: str, now: datetime) -> datetime | None:
    """Return when the service may be asked again, in UTC; None if it did not say.

    A time of day without a zone is in the zone of `now`. Moments are compared and added to in UTC only: between two of
    the same zone Python compares wall-clock times, an hour off where daylight saving time begins or ends in between.
    """
    text, present = relevant_text(text), now.astimezone(UTC)
    for read in (_http_date, _header, _span, _epoch, _iso, _clock):
        try:
            found = read(text, now)
            found = found and found.astimezone(UTC)
        except (ValueError, OverflowError):  # no such day, or a year out of range
            continue
        if found and present - MAX_SKEW < found <= present + MAX_AHEAD:  # a moment long past says nothing
            return max(found, present)
    return None


def _header(text: str, now: datetime) -> datetime | None:
    for match in _HEADER.finditer(text):
        unit, span, number = match.groups()
        seconds = _seconds(span) if span else _float(number) * _unit(unit or "s")
        if span or len(number) < 10:  # more digits are a moment, not a duration
            return _later(now, seconds)
    return None


def _span(text: str, now: datetime) -> datetime | None:
    """Return the end of the longest span: a program that retries by itself prints its own short wait, too."""
    found = []
    for span, hours, minutes, seconds in _IN.findall(text):
        found.append(_seconds(span) if span else int(hours) * 3600 + int(minutes) * 60 + int(seconds))
    return _later(now, max(found)) if found else None


def _seconds(span: str) -> float:
    return sum(_float(number) * _unit(unit) for number, unit in _PIECES.findall(span))


def _float(number: str) -> float:
    return float(number.replace(",", ""))


def _unit(word: str) -> float:
    """Return the seconds of a unit, by the beginning of its name."""
    return _UNITS["ms"] if word.lower().startswith(("ms", "mil")) else _UNITS[word[0].lower()]


def _later(now: datetime, seconds: float) -> datetime | None:
    return now.astimezone(UTC) + timedelta(seconds=seconds) if seconds <= MAX_AHEAD.total_seconds() else None


def _http_date(text: str, _now: datetime) -> datetime | None:
    match = _HTTP_DATE.search(text)
    if match is None:
        return None
    from email.utils import parsedate_to_datetime

    return parsedate_to_datetime(match[1])


def _epoch(text: str, _now: datetime) -> datetime | None:
    match = _EPOCH.search(text)
    if match is None:
        return None
    seconds = int(match[1]) / (1000 if len(match[1]) == 13 else 1)
    return datetime.fromtimestamp(seconds, UTC)


def _iso(text: str, _now: datetime) -> datetime | None:
    match = _ISO.search(text)
    if match is None:
        return None
    found = datetime.fromisoformat(match[1].replace(" UTC", "+00:00"))
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _clock(text: str, now: datetime) -> datetime | None:
    """Parse a time of day, with or without a date, as its next occurrence. Neither 3pm nor 15:00 is not a time."""
    for match in _CLOCK.finditer(text):
        zone = _zone(match["zone"], now)
        if (match["half"] is None and match["minute"] is None) or zone is None:
            continue
        try:
            return _next(match, now.astimezone(zone))
        except ValueError:
            continue
    return None


def _next(match: re.Match[str], here: datetime) -> datetime | None:
    """Return the first matching moment since shortly before `here`, or None.

    A moment that has just passed counts as now, by a clock that is behind.
    """
    hour, half = int(match["hour"]), (match["half"] or "")[:1].lower()
    hour = hour % 12 + (12 if half == "p" else 0) if half else hour
    at = time(hour, int(match["minute"] or 0), int(match["second"] or 0))
    since = here.astimezone(UTC) - MAX_SKEW
    moments = (moment for day in _days(match, here.date()) for moment in _moments(datetime.combine(day, at, here.tzinfo)))
    return min((moment for moment in moments if moment > since), default=None)


def _days(match: re.Match[str], today: date) -> Iterator[date]:
    """Yield the days that may be meant, among those around `today`."""
    month, day = match["month"] or match["month_last"], (match["day"] or "")[:3].lower()
    if month is not None:
        for year in (today.year - 1, today.year, today.year + 1):
            with contextlib.suppress(ValueError):  # not every year has a 29th of February
                yield date(year, _MONTHS.index(month[:3].lower()) + 1, int(match["date"] or match["date_first"]))
        return
    first, last = (1, 1) if day == "tom" else (-1, 7)
    for ahead in range(first, last + 1):
        candidate = today + timedelta(days=ahead)
        if day not in _DAYS or candidate.weekday() == _DAYS.index(day):
            yield candidate


def _moments(wall: datetime) -> Iterator[datetime]:
    """Yield the moments at which a wall clock shows this: two in the night that daylight saving time ends.

    In the night that it begins, when no clock shows this time, yield the moment as long after the change as was meant.
    """
    first, second = wall.replace(fold=0).astimezone(UTC), wall.replace(fold=1).astimezone(UTC)
    yield first
    if second > first:
        yield second


def _zone(name: str | None, now: datetime) -> tzinfo | None:
    """Return the time zone of a name; None if it is unknown, because a time in it may be hours away from one here."""
    if name is None:
        return now.tzinfo
    if name[0] in "+-":
        ahead = timedelta(hours=int(name[1:3]), minutes=int(name[-2:]))
        return timezone(ahead if name[0] == "+" else -ahead)
    if name.upper() in _OFFSETS:
        return timezone(timedelta(hours=_OFFSETS[name.upper()]))
    place = f"America/{_PLACES[name.upper()]}" if name.upper() in _PLACES else name
    if "/" not in place:
        return None
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(place)
    except (OSError, ValueError, KeyError):  # no such zone, or no list of zones here
        return now.tzinfo
