"""Histories of units: those of all units from one pass over the records are those of each from all records."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any

from rerail.core import events as ev
from rerail.core.model import RunOptions
from rerail.core.unit_history import RecordsByUnit, unit_history
from rerail.core.unit_id import UnitId

AT = datetime(2026, 11, 20, tzinfo=UTC)
OWNER = ev.Owner(pid=1, started="", boot="", namespace="", host="", since=AT)


def records(items: int) -> list[tuple[int, ev.Event]]:
    """Return the records of a map in two invocations: the second runs it again, by an invalidation of the map."""
    events: list[ev.Event] = []
    for number in (1, 2):
        opening: Any = ev.RunStarted if number == 1 else ev.RunResumed
        events.append(opening(at=AT, owner=OWNER, pipeline_sha256="", options=RunOptions(), steps=1))
        if number == 2:
            events.append(ev.StepInvalidated(at=AT, step="m", reason="its definition changed"))
            events.append(ev.StepInvalidated(at=AT, step="m", item="i0", reason="not for the map", reopened=True))
        events.append(ev.StepStarted(at=AT, step="m", attempt=number))
        for item in (f"i{index}" for index in range(items)):
            for step in ("m", "m/x"):
                events.append(ev.StepStarted(at=AT + timedelta(seconds=number), step=step, item=item, attempt=number))
            for step in ("m/x", "m"):
                events.append(ev.StepCompleted(at=AT, step=step, item=item, attempt=number, duration=1))
        events.append(ev.RunInterrupted(at=AT, reason="signal"))
    return list(enumerate(events, 1))


def test_the_history_of_each_unit_is_the_one_from_all_records() -> None:
    every = records(3)
    grouped = RecordsByUnit(every)

    assert grouped.units[:3] == [("m", None), ("m", "i0"), ("m/x", "i0")]
    for unit in (*grouped.units, UnitId("m/x"), UnitId("other")):
        assert grouped.history(unit) == unit_history(every, unit)
    again = grouped.history(UnitId("m/x", "i1")).attempts[-1]
    assert again.why == "m: its definition changed"


def test_the_histories_of_all_units_take_one_pass_over_the_records() -> None:
    every = records(200)
    taken = 0

    def count(frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal taken
        taken += event == "call" and frame.f_code.co_name == "take"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        grouped = RecordsByUnit(every)
        for unit in grouped.units:
            grouped.history(unit)
    finally:
        sys.setprofile(before)

    assert len(every) <= taken < 5 * len(every)  # each event once, and for each unit those of the run
