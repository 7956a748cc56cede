"""Laws of items: marks that survive a snapshot."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.core import events as ev
from rerail.core.checkpoint import Checkpoint, checkpoint_of, state_of
from rerail.core.dead_letters import dead_letters
from rerail.core.item_list import ItemList, records
from rerail.core.items import allowed_failures, ranges, set_ranges
from rerail.core.model import Pipeline
from rerail.core.state import RunState, apply
from rerail.core.unit_id import UnitId
from rerail.errors import IllegalEvent
from rerail.testing import header, started

AT = datetime(2026, 1, 1, tzinfo=UTC)


@given(st.binary(max_size=60).map(lambda data: bytearray(byte % 4 for byte in data)))
def test_marks_are_told_and_read_back(marks: bytearray) -> None:
    again = bytearray(len(marks))
    for mark in (1, 2, 3):
        set_ranges(again, ranges(marks, mark), mark)
    assert again == marks


class Machine:
    """A run with one map, and what a person with a pencil would know of it."""

    def __init__(self, count: int) -> None:
        self.state = RunState()
        self.model: dict[int, str] = dict.fromkeys(range(count), "pending")
        self.attempts = dict.fromkeys(range(count), 0)
        self.cost = 0.0
        self.do(started())
        self.do(ev.StepStarted(at=AT, step="m", attempt=1))
        listing = ItemList(keys=[f"k{index}" for index in range(count)], values=None, digest="d")
        for event in records(UnitId("m"), listing, AT):
            self.do(event)

    def do(self, event: ev.Event) -> None:
        apply(self.state, self.state.seq + 1, event)

    def begin(self, index: int) -> None:
        self.attempts[index] += 1
        self.model[index] = "running"
        self.do(ev.StepStarted(at=AT, step="m", item=f"k{index}", attempt=self.attempts[index], index=index))

    def end(self, index: int, how: str) -> None:
        unit: dict[str, Any] = {"at": AT, "step": "m", "item": f"k{index}", "attempt": self.attempts[index]}
        failure = ev.Failure(type="X", message="x", step="m", item=f"k{index}", at=AT)
        self.cost += 0.25
        match how:
            case "completed":
                self.do(ev.StepCompleted(**unit, duration=1.0, metrics={"cost_usd": 0.25}, outputs={"n": index}))
            case "failed" | "retry" | "skipped":
                again: dict[str, Any] = {"retry_at": AT, "retry_in": 0.0} if how == "retry" else {}
                self.do(
                    ev.StepFailed(
                        **unit, duration=1.0, error=failure, allowed=how == "skipped", metrics={"cost_usd": 0.25}, **again
                    )
                )
            case _:
                self.do(ev.StepInterrupted(**unit, reason="x", metrics={"cost_usd": 0.25}))
        self.model[index] = how

    def check(self) -> None:
        items = self.state.units[UnitId("m")].items
        assert items is not None
        closed = {"completed": 1, "failed": 2, "skipped": 3}
        assert list(items.marks) == [closed.get(status, 0) for status in self.model.values()]
        assert sum(unit.metrics.get("cost_usd", 0) for unit in self.state.units.values()) == pytest.approx(self.cost)
        remembered = {unit.item for unit in self.state.units if unit.item is not None}
        assert remembered == {
            f"k{index}" for index, status in self.model.items() if status not in ("pending", "completed", "skipped")
        }
        assert {unit.item for unit in dead_letters(self.state)} == {
            f"k{index}" for index, status in self.model.items() if status == "failed"
        }
        checkpoint = checkpoint_of(header(), Pipeline(name="p", steps=()), self.state)
        saved = msgspec.json.decode(msgspec.json.encode(checkpoint), type=Checkpoint)
        assert state_of(saved) == self.state


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["completed", "failed", "retry", "skipped", "cut off"]))))
def test_the_state_knows_what_became_of_every_item(moves: list[tuple[int, str]]) -> None:
    machine = Machine(5)
    for index, how in moves:
        if machine.model[index] in ("completed", "skipped"):
            with pytest.raises(IllegalEvent):
                machine.begin(index)
            machine.model[index] = {1: "completed", 3: "skipped"}[machine.state.units[UnitId("m")].items.marks[index]]  # type: ignore[union-attr]
            machine.attempts[index] -= 1
            continue
        machine.begin(index)
        machine.end(index, how)
        machine.check()


def test_an_item_that_was_never_listed_cannot_start() -> None:
    machine = Machine(2)
    for index in (2, -1):
        with pytest.raises(IllegalEvent, match="never listed"):
            machine.do(ev.StepStarted(at=AT, step="m", item="other", attempt=1, index=index))
    with pytest.raises(IllegalEvent, match="never listed"):
        machine.do(ev.StepStarted(at=AT, step="no-map", item="k", attempt=1, index=0))
    assert ("m", "other") not in machine.state.units


def test_giving_a_map_up_forgets_its_items_and_keeps_the_money() -> None:
    machine = Machine(3)
    for index, how in ((0, "completed"), (1, "failed")):
        machine.begin(index)
        machine.end(index, how)
    machine.do(ev.StepInterrupted(at=AT, step="m", attempt=1, reason="x"))
    machine.do(ev.StepInvalidated(at=AT, step="m", reason="definition changed"))

    assert list(machine.state.units) == [("m", None)]
    unit = machine.state.units[UnitId("m")]
    assert (unit.items, unit.generation, unit.metrics) == (None, 1, {"cost_usd": 0.5})


@pytest.mark.parametrize(("total", "percent", "allowed"), [(375, 36.8, 138), (1000, 0.1, 1), (3, 50.0, 1), (7, 100.0, 7)])
def test_a_share_of_failures_is_counted_exactly(total: int, percent: float, allowed: int) -> None:
    assert allowed_failures(total, 0, percent) == allowed
