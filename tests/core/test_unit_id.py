"""Laws of unit ids: names that never collide and can be read back, an order of what is inside of what."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rerail.core.unit_id import (
    UnitId,
    ancestor_item,
    ancestor_step,
    escape_key,
    is_step_within,
    item_depth,
    item_key,
    items_around,
    join_item,
    local_step,
    outer_item,
    outer_step,
    step_depth,
    step_path,
    step_within,
    steps_around,
    top_step,
)

KEYS = st.lists(st.one_of(st.text(min_size=1, max_size=8), st.text("a:%3A25/[] ü", min_size=1)), min_size=1, max_size=4)
STEPS = st.lists(st.sampled_from("a b ab a-b".split()), min_size=1, max_size=4)


def item_of(keys: list[str]) -> str | None:
    path: str | None = None
    for key in keys:
        path = join_item(path, escape_key(key))
    return path


def step_of(names: list[str]) -> str:
    path = ""
    for name in names:
        path = step_path(path, name)
    return path


UNITS = st.builds(UnitId, STEPS.map(step_of), st.one_of(st.none(), KEYS.map(item_of)))
FEW = st.builds(
    UnitId,
    st.lists(st.sampled_from(("a", "b", "ab")), min_size=1, max_size=3).map(step_of),
    st.lists(st.sampled_from(("1", "2", "12", "::", ":")), max_size=3).map(item_of),
)


@given(KEYS)
def test_an_item_path_can_be_taken_apart_again(keys: list[str]) -> None:
    path: str | None = None
    for depth, key in enumerate(keys, 1):
        outer, path = path, join_item(path, escape_key(key))
        assert outer_item(path) == outer
        assert item_depth(path) == depth
        assert item_key(path) == escape_key(key)
        assert ancestor_item(path, depth - 1) == outer
    assert [*items_around(path)] == [item_of(keys[:depth]) for depth in reversed(range(len(keys)))]


@given(KEYS, KEYS)
def test_two_item_paths_are_the_same_only_if_their_keys_are(first: list[str], second: list[str]) -> None:
    assert (item_of(first) == item_of(second)) == (first == second)


@given(STEPS)
def test_a_step_path_can_be_taken_apart_again(names: list[str]) -> None:
    path = step_of(names)
    assert step_path(outer_step(path), local_step(path)) == path
    assert (top_step(path), local_step(path), step_depth(path)) == (names[0], names[-1], len(names) - 1)
    assert [*steps_around(path)] == [step_of(names[:length]) for length in reversed(range(1, len(names)))]
    for depth, outer in enumerate(reversed([path, *steps_around(path)])):
        assert ancestor_step(path, depth) == outer
        assert is_step_within(path, outer)
        assert step_path(outer, step_within(path, outer)) == path if outer != path else not step_within(path, outer)


@given(UNITS)
def test_a_unit_is_the_tuple_that_it_replaced(unit: UnitId) -> None:
    plain = (unit.step, unit.item)
    assert unit == plain
    assert {plain: "found"}[unit] == "found"
    assert msgspec.json.encode(unit) == msgspec.json.encode(plain)  # checkpoint.json and the index have it
    assert msgspec.json.decode(msgspec.json.encode(unit), type=UnitId) == unit


@given(UNITS)
def test_a_name_can_be_read_back(unit: UnitId) -> None:
    assert UnitId.parse(str(unit)) == unit


def test_names_for_people() -> None:
    assert str(UnitId("polish/edit")) == "polish/edit"
    assert f"{UnitId('write', 'section-11')}" == "write[section-11]"
    assert str(UnitId("polish").iteration(2).child("a")) == "polish[2::a]"
    for odd in ("write[", "write]", "[write]", "write[a]b", ""):
        assert UnitId.parse(odd) == UnitId(odd)
    assert UnitId.parse("write[a[0]]") == UnitId("write", "a[0]")


@given(UNITS, KEYS)
def test_an_item_belongs_to_its_controller(controller: UnitId, keys: list[str]) -> None:
    item = controller.child(escape_key(keys[0]))
    assert item.controller == controller
    assert item.is_item_of(controller)
    assert not controller.is_item_of(item)
    assert item.key == escape_key(keys[0])
    assert item.depth == controller.depth + 1
    inner = item
    for key in keys[1:]:
        inner = UnitId(step_path(inner.step, "inner"), inner.item).child(escape_key(key))
        assert not inner.is_item_of(controller)
    assert inner.key_within(controller) == item.key
    assert controller.key_within(controller) == ""


@given(FEW, FEW, FEW)
def test_to_be_within_is_a_partial_order(one: UnitId, two: UnitId, three: UnitId) -> None:
    assert one.is_within(one)
    if one.is_within(two) and two.is_within(one):
        assert one == two
    if one.is_within(two) and two.is_within(three):
        assert one.is_within(three)


@given(FEW, FEW)
def test_ancestors_are_all_that_a_unit_is_within(one: UnitId, two: UnitId) -> None:
    ancestors = [*one.ancestors()]
    assert len(ancestors) == len(set(ancestors))
    assert (two in ancestors) == (one.is_within(two) and one != two)
    for at, outer in enumerate(ancestors):  # innermost first
        assert not any(later.is_within(outer) for later in ancestors[at + 1 :])


def test_a_map_in_a_pipeline_around_a_loop_is_an_ancestor() -> None:
    assert [*UnitId("release/each/refine", "linux::2").ancestors()] == [
        UnitId("release/each/refine", "linux"),
        UnitId("release/each/refine"),  # does not exist
        UnitId("release/each", "linux::2"),  # does not exist
        UnitId("release/each", "linux"),
        UnitId("release/each"),
        UnitId("release", "linux::2"),  # does not exist
        UnitId("release", "linux"),  # does not exist
        UnitId("release"),
    ]
