"""Until when a service wants to be left alone: times of day where clocks change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.adapters.clock import LocalZone
from rerail.core.retry_after import MAX_AHEAD, parse_retry_after
from tests.core.services import NOW


@given(st.text(max_size=300), st.timedeltas(timedelta(0), timedelta(days=1)), st.integers(-12, 12))
def test_a_told_time_is_ahead_and_not_too_far(text: str, later: timedelta, zone: int) -> None:
    at = (NOW + later).astimezone(timezone(timedelta(hours=zone)))
    for said in (text, f"try again in {text}", f"resets at {text}", f"retry-after: {text}"):
        until = parse_retry_after(said, at)
        assert until is None or at <= until <= at + MAX_AHEAD


# Where it is, the time there (the first of two, or the second), what is said, and the moment that is meant, in UTC.
# Daylight saving time ends in Berlin on 25 October 2026 at 03:00, and begins in New York on 14 March 2027 at 02:00 and on
# Lord Howe Island, by half an hour, on 4 October 2026 at 02:00.
CHANGES = [
    ("Europe/Berlin", "2026-10-24 20:00", 0, "resets 8am", "2026-10-25 07:00"),
    ("Europe/Berlin", "2026-10-24 20:00", 0, "resets tomorrow at 8am", "2026-10-25 07:00"),
    ("Europe/Berlin", "2026-10-24 20:00", 0, "resets Sunday at 8am", "2026-10-25 07:00"),
    ("Europe/Berlin", "2026-10-24 20:00", 0, "resets Oct 25, 8am", "2026-10-25 07:00"),
    ("Europe/Berlin", "2026-10-24 20:00", 0, "try again in 12 hours", "2026-10-25 06:00"),
    ("Europe/Berlin", "2026-10-24 20:00", 0, "retry-after: 43200", "2026-10-25 06:00"),
    ("UTC", "2026-10-24 18:00", 0, "resets 8am (Europe/Berlin)", "2026-10-25 07:00"),
    ("Europe/Berlin", "2026-10-25 02:50", 0, "resets 2:30am", "2026-10-25 01:30"),  # the second one, in 40 minutes
    ("Europe/Berlin", "2026-10-25 02:10", 1, "resets 2:30am", "2026-10-25 01:30"),
    ("Europe/Berlin", "2026-10-25 02:55", 0, "resets 2:05am", "2026-10-25 01:05"),  # on the wall that is over for long
    ("Europe/Berlin", "2026-10-25 02:05", 1, "resets 2:55am", "2026-10-25 01:55"),
    ("Europe/Berlin", "2026-10-25 02:30", 0, "try again in 45 minutes", "2026-10-25 01:15"),
    ("America/New_York", "2027-03-14 01:45", 0, "try again in 30 minutes", "2027-03-14 07:15"),
    ("America/New_York", "2027-03-14 01:45", 0, "resets 3:15am", "2027-03-14 07:15"),
    ("America/New_York", "2027-03-14 01:45", 0, "resets 2:15am", "2027-03-14 07:15"),  # which no clock shows
    ("America/New_York", "2027-03-13 23:30", 0, "resets 9am", "2027-03-14 13:00"),
    ("Australia/Lord_Howe", "2026-10-03 23:30", 0, "resets 9am", "2026-10-03 22:00"),
    ("UTC", "2026-11-30 23:30", 0, "resets 12:15am", "2026-12-01 00:15"),
    ("UTC", "2026-11-30 23:30", 0, "resets Dec 1, 9am", "2026-12-01 09:00"),
    ("UTC", "2026-12-31 23:30", 0, "resets Jan 1, 9am", "2027-01-01 09:00"),
    ("UTC", "2026-12-01 00:05", 0, "resets 11:58pm", "2026-12-01 00:05"),  # by a clock that is a little behind
    ("UTC", "2026-12-01 00:05", 0, "resets Nov 30, 11:58pm", "2026-12-01 00:05"),
    ("UTC", "2027-01-01 00:05", 0, "resets Dec 31, 11:58pm", "2027-01-01 00:05"),
    ("UTC", "2028-02-28 23:30", 0, "resets Feb 29, 9am", "2028-02-29 09:00"),
]


@pytest.mark.parametrize(("place", "wall", "fold", "said", "meant"), CHANGES)
def test_a_time_of_day_is_the_one_that_clocks_will_show(place: str, wall: str, fold: int, said: str, meant: str) -> None:
    now = datetime.fromisoformat(wall).replace(tzinfo=ZoneInfo(place), fold=fold)
    assert parse_retry_after(f"usage limit reached, {said}", now) == datetime.fromisoformat(meant + "+00:00")


PLACES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kathmandu", "UTC"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where this process is, as far as it knows."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def test_the_zone_of_this_machine_knows_its_changes_of_time(place: str) -> None:
    """Every half hour of two years, there and back: the rules that the C library has are those of the zone's own list."""
    here, there = LocalZone(), ZoneInfo(place)
    for half_hours in range(2 * 365 * 48):
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=30 * half_hours)
        mine, known = at.astimezone(here), at.astimezone(there)
        assert (mine.replace(tzinfo=None), mine.fold, mine.utcoffset(), mine.tzname()) == (
            known.replace(tzinfo=None),
            known.fold,
            known.utcoffset(),
            known.tzname(),
        )
        assert mine.astimezone(UTC) == at
    for half_hours in range(365 * 48):  # also what no clock on the wall shows
        wall = datetime(2026, 1, 1, tzinfo=here) + timedelta(minutes=30 * half_hours)
        for fold in (0, 1):
            shown = wall.replace(fold=fold)
            assert shown.utcoffset() == shown.replace(tzinfo=there).utcoffset(), shown
