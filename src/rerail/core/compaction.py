"""Compaction: closing items. The state forgets a closed item, but for its status byte and the records it must keep.

Kept are the artifacts and inputs that a resume has to prove, the failures that a person may retry, and in a loop the
outputs of the last iteration. Metrics of forgotten units go to the controller: money is counted for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from rerail.core import events as ev
from rerail.core.items import COMPLETED, FAILED, PENDING, SKIPPED, STATUS, Items, set_ranges
from rerail.core.money import added
from rerail.core.run_state import RunState, UnitState, UnitStatus
from rerail.core.unit_id import UnitId, is_step_within
from rerail.errors import IllegalEvent


def item_status(state: RunState, event: ev.StepStarted | ev.StepSkipped | ev.StepInvalidated) -> str:
    """Return the status of an item that the state has no unit of; raise IllegalEvent if there is no such item."""
    assert event.index is not None
    controller = state.units.get(event.unit.controller)
    if controller is None or controller.items is None or not 0 <= event.index < controller.items.total:
        raise IllegalEvent(f"{type(event).__name__} cannot happen to {event.unit}, which was never listed")
    return STATUS[controller.items.marks[event.index]]


def begin_item(state: RunState, event: ev.StepStarted, unit: UnitState) -> None:
    """Start an item for the first time: its work belongs to the current generation of its controller."""
    unit.generation = max(unit.generation, state.units[event.unit.controller].generation)


def new_generation(state: RunState, key: UnitId, unit: UnitState) -> None:
    """Begin a new generation for an item: its work from here on is not its earlier work."""
    controller = state.units[key.controller]
    controller.generation += 1
    unit.generation = controller.generation


def update_item(state: RunState, key: UnitId, unit: UnitState) -> None:
    """Set the status byte of an item by its unit's new status, and forget the item if that closed it."""
    controller = state.units[key.controller]
    items = controller.items
    assert items is not None
    assert unit.index is not None
    mark = PENDING
    match unit.status:
        case "completed":
            mark = COMPLETED
        case "skipped":
            mark = SKIPPED
        case "failed" if unit.retry_at is None:
            mark = SKIPPED if unit.allowed else FAILED
        case _:
            pass
    items.marks[unit.index] = mark
    if mark in (COMPLETED, SKIPPED):
        _close(state, key, unit.index, controller)


def _close(state: RunState, key: UnitId, index: int, controller: UnitState) -> None:
    """Forget a closed item, and in a loop the iteration before it, as far as a resume does not need them."""
    assert controller.items is not None
    if controller.items.is_loop:
        _drop(state, key, controller)
        # A dead letter in this iteration may be retried: until then the results of the iteration before stay readable.
        previous, oldest = (key.controller.iteration(number) for number in (index, index - 1))
        if _has_dead_letters(state, previous):
            _drop_all(state, oldest, controller)
        if not _has_dead_letters(state, key):
            _drop_all(state, previous, controller)
    elif any(_is_needed(state.units[unit]) for unit in _units_of(state, key)):
        controller.items.kept += 1  # units that depend on each other are kept or forgotten together
    else:
        _drop_all(state, key, controller)


def _units_of(state: RunState, item: UnitId) -> list[UnitId]:
    """Return the units in the instance of an item that belong to it: another controller may have an item of its key."""
    assert item.item is not None
    steps = state.inner.get(item.item, ())
    if len(steps) == 1 and item.step in steps:  # most items are one step and no more
        return [item]
    return sorted(UnitId(step, item.item) for step in steps if is_step_within(step, item.step))


def _drop_all(state: RunState, item: UnitId, controller: UnitState) -> None:
    assert controller.items is not None
    for unit in _units_of(state, item):
        _drop(state, unit, controller)
    if _units_of(state, item):
        controller.items.kept += 1


def end_loop(state: RunState, key: UnitId, unit: UnitState) -> None:
    """Forget the last iteration of a completed loop, unless it may be reopened.

    That is for a dead letter that is retried, or an artifact that is lost: units completed beside it must not run again.
    """
    assert unit.items is not None
    last = key.iteration(unit.items.marks.rfind(COMPLETED) + 1)
    if any(_is_needed(state.units[inner]) for inner in _units_of(state, last)):
        unit.items.kept += 1  # units that depend on each other are kept or forgotten together
    else:
        _drop_all(state, last, unit)


def _has_dead_letters(state: RunState, iteration: UnitId) -> bool:
    """Return whether items failed permanently in an iteration that completed all the same."""
    units = (state.units[unit] for unit in _units_of(state, iteration))
    return any(unit.items is not None and unit.items.failed for unit in units)


def _is_needed(unit: UnitState) -> bool:
    """Return whether a resume may need a unit: for its artifacts, its inputs, or its dead letters."""
    return bool(unit.artifacts or unit.inputs or (unit.items is not None and (unit.items.kept or unit.items.failed)))


def _drop(state: RunState, key: UnitId, controller: UnitState) -> None:
    """Forget a unit, unless a resume has to prove something of it."""
    if not _is_needed(state.units[key]):
        _remove(state, key, controller)


def _remove(state: RunState, key: UnitId, controller: UnitState, *, void: bool = False) -> None:
    """Forget a unit; `void` if its work no longer counts."""
    _add(controller, state.units.pop(key), void=void)
    name, item = key
    if item is not None:
        names = state.inner[item]
        names.discard(name)
        if not names:
            del state.inner[item]


def is_pipeline(unit: UnitState) -> bool:
    """Return whether a unit is a subpipeline, which is a controller without items."""
    return unit.items is not None and unit.items.total == 0 and not unit.items.is_loop


def is_aggregate(state: RunState, key: UnitId, unit: UnitState) -> bool:
    """Return whether a unit is only the sum of others: a controller, or an item of several steps."""
    if unit.items is not None:
        return True
    if unit.index is None or key.item is None or len(state.inner.get(key.item, ())) <= 1:
        return False
    return _units_of(state, key) != [key]


def _add(controller: UnitState, unit: UnitState, *, void: bool) -> None:
    controller.worked += unit.worked
    controller.void += unit.worked if void else unit.void
    if unit.metrics:
        controller.metrics = added(controller.metrics, unit.metrics)


def reopen_ancestors(
    state: RunState, key: UnitId, reason: str, status: UnitStatus = "pending", because: ev.Cause | None = None
) -> None:
    """Reopen the completed units around a unit: they continue when the run does."""
    outers = list(key.ancestors())
    if any(is_past_iteration(state, outer, key) for outer in outers):
        return  # an iteration that is over is never reopened
    for outer in outers:
        index = closed_iteration(state, outer)
        if index is not None:
            state.units[outer] = UnitState(index=index, reason=reason)
            state.inner.setdefault(str(outer.item), set()).add(outer.step)
            update_item(state, outer, state.units[outer])
        unit = state.unit(outer)
        if unit.status in ("completed", "failed"):
            # A failed controller stays failed: a resume then retries every failure in it, not only this one.
            unit.status = unit.status if unit.status == "failed" and unit.items is not None else status
            unit.allowed = False
            unit.reason = reason
            unit.because = because
            if unit.index is not None:
                update_item(state, outer, unit)


def iteration_of(state: RunState, loop: UnitId, inner: UnitId) -> int:
    """Return the iteration of a loop that a unit is in, from 1; 0 if `loop` is no loop, or the unit is in none."""
    controller = state.units.get(loop)
    if controller is None or controller.items is None or not controller.items.is_loop:
        return 0
    iteration = inner.key_within(loop)
    return int(iteration) if iteration.isdecimal() else 0


def closed_iteration(state: RunState, unit: UnitId) -> int | None:
    """Return the position of a completed iteration without a unit in the state; None for any other unit."""
    if unit.item is None or unit in state.units:
        return None
    index = iteration_of(state, unit.controller, unit) - 1
    items = state.unit(unit.controller).items
    return index if items is not None and 0 <= index < items.total and items.marks[index] == COMPLETED else None


def past_loop(state: RunState, inner: UnitId) -> UnitId | None:
    """Return the outermost loop around a unit that is past the unit's iteration: it can only begin anew."""
    loops = (outer for outer in inner.ancestors() if is_past_iteration(state, outer, inner))
    return next(iter(reversed(list(loops))), None)


def is_past_iteration(state: RunState, loop: UnitId, inner: UnitId) -> bool:
    """Return whether a unit is in an iteration of a loop that is over for good.

    That is so once a later iteration has begun, or the state has forgotten it.
    """
    iteration = iteration_of(state, loop, inner)
    if not iteration:
        return False
    items = state.units[loop].items
    assert items is not None
    if iteration != items.completed:
        return iteration < items.completed
    return loop.iteration(iteration + 1) in state.units or not _units_of(state, loop.iteration(iteration))


def discard_inside(state: RunState, key: UnitId, unit: UnitState) -> None:
    """Forget the units inside a unit: it begins anew, or is another item now."""
    if unit.items is not None:
        discard(state, key, unit)
    else:
        _forget(state, key, unit, lambda _: True)


def discard(state: RunState, key: UnitId, controller: UnitState) -> None:
    """Forget everything inside a controller, its items included: it begins anew."""
    _forget(state, key, controller, lambda _: True)
    controller.items = None
    controller.void = controller.worked
    controller.generation += 1


def _forget(state: RunState, key: UnitId, controller: UnitState, wanted: Callable[[UnitId], bool]) -> None:
    for unit in list(state.units):
        if unit.is_within(key) and unit != key and wanted(unit):
            _remove(state, unit, controller, void=True)


def listed(state: RunState, key: UnitId, unit: UnitState, event: ev.ItemsListed) -> None:
    """Apply ItemsListed: a new list, or the next part of one. Raise IllegalEvent if it cannot follow."""
    if event.first:
        if unit.items is None or unit.items.known != event.first or unit.items.total != event.total:
            raise IllegalEvent(f"items {event.first} and on of {event.step} cannot follow what was listed of it")
        unit.items.known += len(event.keys)
        return
    marks = bytearray(event.total)
    try:
        for text, mark in ((event.completed, COMPLETED), (event.failed, FAILED), (event.skipped, SKIPPED)):
            set_ranges(marks, text, mark)
    except ValueError as error:
        raise IllegalEvent(f"the list of {event.step}: {error}") from None
    if event.gone:
        gone = set(event.gone)
        _forget(state, key, unit, lambda inner: inner.key_within(key) in gone)
    for item, position in event.moved.items():
        item_unit = state.units.get(key.child(item))
        if item_unit is not None:
            item_unit.index = position
    kept = unit.items.kept if unit.items is not None else 0
    if unit.items is not None and not event.is_loop:
        unit.generation += 1  # new items are new work, whatever their keys
    unit.items = Items(marks=marks, known=len(event.keys), digest=event.digest, is_loop=event.is_loop, kept=kept)
