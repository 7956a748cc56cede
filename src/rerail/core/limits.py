"""Services that ask to be left alone for a while: what they say then, and until when. Pure.

Two tables: what a refusal looks like, and how a time is told. They stand here because every service words it its own
way; a step can add its own with `rate_limit: {on: [...]}`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, NamedTuple

from rerail.core.model import Refusal

TRY_LATER: Final = 75  # EX_TEMPFAIL of sysexits.h: "a failure that is temporary; try again later"
MOST_SKEW: Final = timedelta(minutes=10)  # by which the clock of a service may be behind: its "now" is just over here
MOST_AHEAD: Final = timedelta(days=31)  # a time further away is a misunderstanding


class _Row(NamedTuple):
    name: Refusal
    looks_like: re.Pattern[str]


def _row(name: Refusal, *patterns: str) -> _Row:
    return _Row(name, re.compile("|".join(patterns), re.IGNORECASE))


# The first row that fits counts. Nothing here may take long: what is read was written by strangers.
REFUSALS: Final = (
    _row(
        "rate limit",  # who counts by the minute says "quota" and means soon
        r"(?:limit|quota|exceed)[^\n]{0,80}\b(?:requests|tokens)[ _-]per[ _-](?:min|sec)",
        r"\b(?:requests|tokens)[ _-]per[ _-](?:min|sec)[^\n]{0,40}(?:limit|quota|exceed)",
        r"per[ _-]?(?:minute|second)[ _-]?(?:limit|quota)",
    ),
    _row(
        "quota",
        r"usage limit (?:has been )?(?:reached|exceeded|hit)",
        r"(?:hit|reached|exceeded) your (?:(?:usage|session|weekly|daily|monthly|current|api) ){0,2}(?:limit|quota)",
        r"(?:session|weekly|daily|monthly|5-hour) limit (?:reached|exceeded|hit)",
        r"(?<!disk )quota[ _-]?(?:was |has been |is )?(?:exceeded|exhausted|reached)",
        r"exceeded (?:your|the) (?:\w{1,20} )?quota",
        r"insufficient[ _]quota|resource_?exhausted\b|out of (?:credits|quota)|credit balance is too low",
    ),
    _row(
        "overloaded",
        r"overloaded[ _]?error|(?:is|are|model|server|service|currently) overloaded",
        r"(?:http|status|error|code)\W{0,4}(?:code\W{0,3})?529\b|\b529\b\W{0,4}(?:overloaded|site is)",
        r"\bSlowDown\b",
    ),
    _row(
        "rate limit",
        r"rate[ _-]?limits?[ _-]?(?:ed\b|exceed|reached|hit|error|exception)",
        r"(?:exceed|reach|hit)\w{0,6}(?: \w{1,20}){0,3} rate[ _-]?limit",
        r"too[ _-]?many[ _-]?requests",
        r"throttl(?:ed|ing)[ _-]?(?:exception|error)|requests? (?:was |were )?throttled",
        r"(?:http(?:/[\d.]{1,3})?|status|error|code)\W{0,4}(?:code\W{0,3})?429\b|\b429\b\W{0,4}(?:too many|client error)",
    ),
)

MOST_TEXT: Final = 8_000  # characters that are looked at, half of them from the end
_SPACE: Final = re.compile(r"[^\S\n]+")
_TALK: Final = re.compile(r"\bassert|\bexpected\b[^\n]{0,60}\b(?:got|but|received)\b", re.IGNORECASE)

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_PIECE = rf"{_NUMBER} ?(?:ms|milliseconds?|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)\b"
_PIECES: Final = re.compile(rf"({_NUMBER}) ?(ms|mil|s|m|h|d)", re.IGNORECASE)
_SPAN = rf"((?:{_NUMBER}[dhm]){{0,3}}{_PIECE}(?:(?:,? and |, | )?{_PIECE}){{0,4}})"

_HEADER: Final = re.compile(
    rf"retry[-_ ]?after(?:[-_ ]?(ms|s|seconds))?[\"']? ?[:=]? ?[\"']?({_NUMBER}) ?"
    r"(ms|milliseconds|s|seconds?|secs?|m|minutes?|mins?|h|hours?)?\b",
    re.IGNORECASE,
)
_HTTP_DATE: Final = re.compile(
    r"(?:retry-after|reset)\W{1,4}((?:\w{3}, )?\d{1,2} \w{3} \d{4} \d\d:\d\d:\d\d GMT)", re.IGNORECASE
)
_IN: Final = re.compile(
    rf"(?:try|retry|wait|again|available|reset|resets|retrydelay)[\"']?(?: \w{{1,20}}){{0,3}}? ?[:=]? ?[\"']?"
    rf"(?:(?:in|after|for) )?(?:about )?{_SPAN}",
    re.IGNORECASE,
)
_EPOCH: Final = re.compile(
    r"(?:reset|limit reached|until)[\w-]{0,20}[\"']?(?: at)? ?[:=|] ?[\"']?(\d{13}|\d{10})\b", re.IGNORECASE
)
_WORD = r"(?:resets?|again|until|available|after|reset_at|resetsat)"
_ISO: Final = re.compile(
    _WORD + r"[^\n]{0,30}?(20\d\d-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)? ?(?:Z|UTC|[+-]\d\d:?\d\d)?)",
    re.IGNORECASE,
)
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK: Final = re.compile(
    _WORD
    + r" (?:on |at )?(?:("
    + "|".join(_MONTHS)
    + r")[a-z]{0,6}\.? (\d{1,2})(?:st|nd|rd|th)?(?:, ?| )(?:at |\d{4} )?)?"
    r"(?:at )?(\d{1,2})(?::(\d\d))? ?([ap]\.?m\b\.?)?(?: ?\(?([A-Za-z]{1,20}(?:/[A-Za-z_]{1,20}){1,2}|UTC|GMT)\)?)?",
    re.IGNORECASE,
)


def heard(text: str) -> str:
    """What is worth looking at: without talk of what was expected, and no more than can be looked at quickly."""
    if len(text) > MOST_TEXT:  # what says why stands at its beginning or at its end
        text = f"{text[: MOST_TEXT // 2]}\n{text[-MOST_TEXT // 2 :]}"
    return "\n".join(line for line in _SPACE.sub(" ", text).split("\n") if not _TALK.search(line))


def refused(text: str, kind: str, exit_code: int | None) -> Refusal | None:
    """What kind of refusal this is, if it is one: by what was said, by the name of an exception, by the exit code."""
    said = heard(f"{kind}\n{text}")
    for row in REFUSALS:
        if row.looks_like.search(said):
            return row.name
    return "rate limit" if exit_code == TRY_LATER else None


def told_until(text: str, now: datetime) -> datetime | None:
    """When the service may be asked again, if it said so. `now` is in the zone of this machine."""
    text = heard(text)
    for read in (_header, _http_date, _span, _epoch, _iso, _clock):
        try:
            found = read(text, now)
        except (ValueError, OverflowError):  # no such day, or one that no calendar has
            continue
        if found is not None and now - MOST_SKEW < found <= now + MOST_AHEAD:  # one that is long over tells nothing
            return max(found, now)
    return None


def _header(text: str, now: datetime) -> datetime | None:
    match = _HEADER.search(text)
    if match is None:
        return None
    return _later(now, float(match[2]) * _unit(match[1] or match[3] or "s"))


def _span(text: str, now: datetime) -> datetime | None:
    match = _IN.search(text)
    if match is None:
        return None
    return _later(now, sum(float(number) * _unit(unit) for number, unit in _PIECES.findall(match[1])))


def _unit(word: str) -> float:
    """The seconds of a unit, by how its name begins."""
    return _UNITS["ms"] if word.lower().startswith(("ms", "mil")) else _UNITS[word[0].lower()]


def _later(now: datetime, seconds: float) -> datetime | None:
    return now + timedelta(seconds=seconds) if seconds <= MOST_AHEAD.total_seconds() else None


def _http_date(text: str, _now: datetime) -> datetime | None:
    match = _HTTP_DATE.search(text)
    if match is None:
        return None
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(match[1])
    except ValueError:
        return None


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
    try:
        found = datetime.fromisoformat(match[1].replace(" UTC", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _clock(text: str, now: datetime) -> datetime | None:
    """A time of day, with a date or without: the next one there is. What is neither 3pm nor 15:00 is no time."""
    for match in _CLOCK.finditer(text):
        month, day, hour, minute, half, zone = match.groups()
        if half is None and minute is None:
            continue
        here = now.astimezone(_zone(zone, now.tzinfo))
        number = int(hour) % 12 + (12 if half[0].lower() == "p" else 0) if half else int(hour)
        try:
            found = here.replace(hour=number, minute=int(minute or 0), second=0, microsecond=0)
            if month is not None:
                found = found.replace(month=_MONTHS.index(month.lower()) + 1, day=int(day))
                return found if found >= here else found.replace(year=found.year + 1)
        except ValueError:
            continue
        return found if found > here else found + timedelta(days=1)
    return None


def _zone(name: str | None, default: tzinfo | None) -> tzinfo | None:
    if name is None:
        return default
    if name.upper() in ("UTC", "GMT"):
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # no such zone, or no list of zones here
        return default
