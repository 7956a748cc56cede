"""Compaction: closing items. The state forgets a closed item, but for its status byte and the records it must keep.

Kept are the artifacts and inputs that a resume has to prove, the failures that a person may retry, and in a loop the
outputs of the last iteration. Metrics of forgotten units go to the controller: money is counted for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from rerail.core import events as ev
from rerail.core.items import COMPLETED, FAILED, PENDING, SKIPPED, STATUS, Items, around, joined, parent_of, set_ranges
from rerail.core.money import added
from rerail.core.run_state import RunState, Unit, UnitState, UnitStatus
from rerail.errors import IllegalEvent


def item_status(state: RunState, event: ev.StepStarted | ev.StepSkipped | ev.StepInvalidated) -> str:
    """Return the status of an item that the state has no unit of; raise IllegalEvent if there is no such item."""
    assert event.item is not None
    assert event.index is not None
    controller = state.units.get((event.step, parent_of(event.item)))
    if controller is None or controller.items is None or not 0 <= event.index < controller.items.total:
        raise IllegalEvent(f"{type(event).__name__} cannot happen to {event.step}[{event.item}], which was never listed")
    return STATUS[controller.items.marks[event.index]]


def begin_item(state: RunState, event: ev.StepStarted, unit: UnitState) -> None:
    """Start an item for the first time: its work belongs to the current generation of its controller."""
    assert event.item is not None
    unit.generation = max(unit.generation, state.units[event.step, parent_of(event.item)].generation)


def new_generation(state: RunState, key: Unit, unit: UnitState) -> None:
    """Begin a new generation for an item: its work from here on is not its earlier work."""
    assert key[1] is not None
    controller = state.units[key[0], parent_of(key[1])]
    controller.generation += 1
    unit.generation = controller.generation


def update_item(state: RunState, key: Unit, unit: UnitState) -> None:
    """Set the status byte of an item by its unit's new status, and forget the item if that closed it."""
    step, item = key
    assert item is not None
    controller = state.units[step, parent_of(item)]
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


def _close(state: RunState, key: Unit, index: int, controller: UnitState) -> None:
    """Forget a closed item, and in a loop the iteration before it, as far as a resume does not need them."""
    step, item = key
    assert item is not None
    assert controller.items is not None
    mine = _names(state, item, step)
    if controller.items.is_loop:
        _drop(state, key, controller)
        # A dead letter in this iteration may be retried: until then the results of the iteration before stay readable.
        previous, oldest = (joined(parent_of(item), str(number)) for number in (index, index - 1))
        if _has_dead_letters(state, previous, step):
            _drop_all(state, oldest, step, controller)
        if not _has_dead_letters(state, item, step):
            _drop_all(state, previous, step, controller)
    elif any(_is_needed(state.units[name, item]) for name in mine):
        controller.items.kept += 1  # units that depend on each other are kept or forgotten together
    else:
        _drop_all(state, item, step, controller)


def _names(state: RunState, item: str, step: str) -> list[str]:
    """Return the steps of an instance that belong to a controller: others may have an item of the same name."""
    names = state.inner.get(item, ())
    if len(names) == 1 and step in names:  # most items are one step and no more
        return [step]
    below = step + "/"
    return sorted(name for name in names if name == step or name.startswith(below))


def _drop_all(state: RunState, item: str, step: str, controller: UnitState) -> None:
    assert controller.items is not None
    for name in _names(state, item, step):
        _drop(state, (name, item), controller)
    if _names(state, item, step):
        controller.items.kept += 1


def end_loop(state: RunState, key: Unit, unit: UnitState) -> None:
    """Forget the last iteration of a completed loop, unless it may be reopened.

    That is for a dead letter that is retried, or an artifact that is lost: units completed beside it must not run again.
    """
    assert unit.items is not None
    last = joined(key[1], str(unit.items.marks.rfind(COMPLETED) + 1))
    if any(_is_needed(state.units[name, last]) for name in _names(state, last, key[0])):
        unit.items.kept += 1  # units that depend on each other are kept or forgotten together
    else:
        _drop_all(state, last, key[0], unit)


def _has_dead_letters(state: RunState, item: str, step: str) -> bool:
    """Return whether items failed permanently in an iteration that completed all the same."""
    units = (state.units[name, item] for name in _names(state, item, step))
    return any(unit.items is not None and unit.items.failed for unit in units)


def _is_needed(unit: UnitState) -> bool:
    """Return whether a resume may need a unit: for its artifacts, its inputs, or its dead letters."""
    return bool(unit.artifacts or unit.inputs or (unit.items is not None and (unit.items.kept or unit.items.failed)))


def _drop(state: RunState, key: Unit, controller: UnitState) -> None:
    """Forget a unit, unless a resume has to prove something of it."""
    if not _is_needed(state.units[key]):
        _remove(state, key, controller)


def _remove(state: RunState, key: Unit, controller: UnitState) -> None:
    _add(controller, state.units.pop(key))
    name, item = key
    if item is not None:
        names = state.inner[item]
        names.discard(name)
        if not names:
            del state.inner[item]


def is_pipeline(unit: UnitState) -> bool:
    """Return whether a unit is a subpipeline, which is a controller without items."""
    return unit.items is not None and unit.items.total == 0 and not unit.items.is_loop


def is_aggregate(state: RunState, key: Unit, unit: UnitState) -> bool:
    """Return whether a unit is only the sum of others: a controller, or an item of several steps."""
    step, item = key
    if unit.items is not None:
        return True
    return (
        unit.index is not None
        and item is not None
        and len(state.inner.get(item, ())) > 1
        and _names(state, item, step) != [step]
    )


def _add(controller: UnitState, unit: UnitState) -> None:
    controller.worked += unit.worked
    if unit.metrics:
        controller.metrics = added(controller.metrics, unit.metrics)


def reopen_ancestors(state: RunState, key: Unit, reason: str, status: UnitStatus = "pending") -> None:
    """Reopen the completed units around a unit: they continue when the run does."""
    outers = [outer for outer in dict.fromkeys(around(key)) if outer != key]
    if any(is_past_iteration(state, outer, key) for outer in outers):
        return  # an iteration that is over is never reopened
    for outer in outers:
        index = closed_iteration(state, outer)
        if index is not None:
            state.units[outer] = UnitState(index=index, reason=reason)
            state.inner.setdefault(str(outer[1]), set()).add(outer[0])
            update_item(state, outer, state.units[outer])
        unit = state.unit(outer)
        if unit.status in ("completed", "failed"):
            # A failed controller stays failed: a resume then retries every failure in it, not only this one.
            unit.status = unit.status if unit.status == "failed" and unit.items is not None else status
            unit.allowed = False
            unit.reason = reason
            if unit.index is not None:
                update_item(state, outer, unit)


def iteration_of(state: RunState, loop: Unit, inner: Unit) -> int:
    """Return the iteration of a loop that a unit is in, from 1; 0 if `loop` is no loop, or the unit is in none."""
    controller = state.units.get(loop)
    if controller is None or controller.items is None or not controller.items.is_loop or inner[1] is None:
        return 0
    below = inner[1] if loop[1] is None else inner[1][len(loop[1]) + 2 :]
    iteration = below.split("::")[0]
    return int(iteration) if iteration.isdecimal() else 0


def closed_iteration(state: RunState, unit: Unit) -> int | None:
    """Return the position of a completed iteration without a unit in the state; None for any other unit."""
    step, item = unit
    if item is None or unit in state.units:
        return None
    index = iteration_of(state, (step, parent_of(item)), unit) - 1
    items = state.unit((step, parent_of(item))).items
    return index if items is not None and 0 <= index < items.total and items.marks[index] == COMPLETED else None


def past_loop(state: RunState, inner: Unit) -> Unit | None:
    """Return the outermost loop around a unit that is past the unit's iteration: it can only begin anew."""
    loops = (outer for outer in around(inner) if outer != inner and is_past_iteration(state, outer, inner))
    return next(iter(reversed(list(loops))), None)


def is_past_iteration(state: RunState, loop: Unit, inner: Unit) -> bool:
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
    following = joined(loop[1], str(iteration + 1))
    return (loop[0], following) in state.units or not _names(state, joined(loop[1], str(iteration)), loop[0])


def discard_inside(state: RunState, key: Unit, unit: UnitState) -> None:
    """Forget the units inside a unit: it begins anew, or is another item now."""
    if unit.items is not None:
        discard(state, key, unit)
    else:
        _forget(state, key, unit, lambda _: True)


def discard(state: RunState, key: Unit, controller: UnitState) -> None:
    """Forget everything inside a controller, its items included: it begins anew."""
    _forget(state, key, controller, lambda _: True)
    controller.items = None
    controller.generation += 1


def _forget(state: RunState, key: Unit, controller: UnitState, wanted: Callable[[str | None], bool]) -> None:
    step, item = key
    below, prefix = step + "/", "" if item is None else item + "::"
    for name, instance in list(state.units):
        inside = name.startswith(below) and (instance == item or (instance or "").startswith(prefix))
        own = name == step and instance is not None and instance != item and instance.startswith(prefix)
        if (inside or own) and wanted(instance):
            _remove(state, (name, instance), controller)


def listed(state: RunState, key: Unit, unit: UnitState, event: ev.ItemsListed) -> None:
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
    prefix = "" if event.item is None else event.item + "::"
    if event.gone:
        gone = set(event.gone)
        _forget(state, key, unit, lambda item: item is not None and item[len(prefix) :].split("::")[0] in gone)
    for item, position in event.moved.items():
        item_unit = state.units.get((event.step, prefix + item))
        if item_unit is not None:
            item_unit.index = position
    kept = unit.items.kept if unit.items is not None else 0
    if unit.items is not None and not event.is_loop:
        unit.generation += 1  # new items are new work, whatever their keys
    unit.items = Items(marks=marks, known=len(event.keys), digest=event.digest, is_loop=event.is_loop, kept=kept)
