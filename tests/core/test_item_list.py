"""Laws of the list of items: what is the same is kept, and half a list is none."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from rerail.core.item_list import diff, recorded, records, with_digest
from rerail.core.unit_id import UnitId

AT = datetime(2026, 1, 1, tzinfo=UTC)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2), max_size=6),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2), max_size=6),
    st.data(),
)
def test_a_new_list_keeps_exactly_what_is_the_same(old: dict[str, int], new: dict[str, int], data: st.DataObject) -> None:
    marks = bytearray(data.draw(st.lists(st.integers(0, 3), min_size=len(old), max_size=len(old))))
    before, after = with_digest(list(old), list(old.values())), with_digest(list(new), list(new.values()))
    kept = diff(before, marks, after)

    for index, key in enumerate(new):
        same = key in old and old[key] == new[key]
        assert kept.marks[index] == (marks[list(old).index(key)] if same else 0)
    assert set(kept.gone) == old.keys() - new.keys()
    assert kept.new == len(new.keys() - old.keys())
    told = recorded(list(records(UnitId("m"), after, AT, kept)), UnitId("m"))
    assert told is not None
    assert [(key, told.value(at)) for at, key in enumerate(told.keys)] == list(new.items())
    assert told.digest == after.digest


def test_a_long_list_takes_several_records_and_half_of_it_is_none() -> None:
    listing = with_digest([f"item-{number}" for number in range(2500)], None)
    events = list(records(UnitId("m"), listing, AT))

    assert len(events) == 3
    assert recorded(events, UnitId("m")) == listing
    assert recorded(events[:2], UnitId("m")) is None
