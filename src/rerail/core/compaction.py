"""Closing items: what the state forgets of an item once its controller has its mark, and what it must keep.

Kept is what a resume has to prove (artifacts and inputs), what a person may retry (failures), and in a loop what the
last iteration handed out. Metrics of what is forgotten go to the controller: money is counted for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from rerail.core import events as ev
from rerail.core.items import COMPLETED, FAILED, PENDING, SKIPPED, STATUS, Items, around, joined, parent_of, set_ranges
from rerail.core.money import added
from rerail.core.run_state import RunState, Unit, UnitState, UnitStatus
from rerail.errors import IllegalEvent


def status_by_mark(state: RunState, event: ev.StepStarted | ev.StepSkipped | ev.StepInvalidated) -> str:
    """How an item stands that the state has no record of; raises IllegalEvent if there is no such item."""
    assert event.item is not None
    assert event.index is not None
    controller = state.units.get((event.step, parent_of(event.item)))
    if controller is None or controller.items is None or not 0 <= event.index < controller.items.total:
        raise IllegalEvent(f"{type(event).__name__} cannot happen to {event.step}[{event.item}], which was never listed")
    return STATUS[controller.items.marks[event.index]]


def begin_item(state: RunState, event: ev.StepStarted, unit: UnitState) -> None:
    """An item starts for the first time: its work is that of the round its controller is in."""
    assert event.item is not None
    unit.generation = max(unit.generation, state.units[event.step, parent_of(event.item)].generation)


def new_round(state: RunState, key: Unit, unit: UnitState) -> None:
    """What an item does from here on is not what it did before."""
    assert key[1] is not None
    controller = state.units[key[0], parent_of(key[1])]
    controller.generation += 1
    unit.generation = controller.generation


def account(state: RunState, key: Unit, unit: UnitState) -> None:
    """Mark an item by what has just happened to it, and forget it if that closed it."""
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
    step, item = key
    assert item is not None
    assert controller.items is not None
    mine = _names(state, item, step)
    if controller.items.is_loop:
        _drop(state, key, controller)
        # A dead letter in this iteration may be retried: what it may read of the iteration before it stays that long.
        previous, oldest = (joined(parent_of(item), str(number)) for number in (index, index - 1))
        if _has_dead_letters(state, previous, step):
            _drop_all(state, oldest, step, controller)
        if not _has_dead_letters(state, item, step):
            _drop_all(state, previous, step, controller)
    elif any(_is_needed(state.units[name, item]) for name in mine):
        controller.items.kept += 1  # what stands on each other is kept or forgotten together
    else:
        _drop_all(state, item, step, controller)


def _names(state: RunState, item: str, step: str) -> list[str]:
    """The steps of an instance that belong to a controller: others may have an item of the same name."""
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
    """A loop has completed: its last iteration is forgotten, unless it may be opened again.

    That is for a dead letter that is retried, or an artifact that is lost: what completed beside it must not run again.
    """
    assert unit.items is not None
    last = joined(key[1], str(unit.items.marks.rfind(COMPLETED) + 1))
    if any(_is_needed(state.units[name, last]) for name in _names(state, last, key[0])):
        unit.items.kept += 1  # what stands on each other is kept or forgotten together
    else:
        _drop_all(state, last, key[0], unit)


def _has_dead_letters(state: RunState, item: str, step: str) -> bool:
    """Whether items failed permanently in an iteration that completed all the same."""
    units = (state.units[name, item] for name in _names(state, item, step))
    return any(unit.items is not None and unit.items.failed for unit in units)


def _is_needed(unit: UnitState) -> bool:
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
    """Whether a unit has the steps of another pipeline run: it has no items."""
    return unit.items is not None and unit.items.total == 0 and not unit.items.is_loop


def has_inside(state: RunState, key: Unit, unit: UnitState) -> bool:
    """Whether a unit is only the sum of others: a controller, or an item of several steps."""
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


def reopen_around(state: RunState, key: Unit, reason: str, status: UnitStatus = "pending") -> None:
    """What was complete around a unit is no longer: it goes on when the run does."""
    outers = [outer for outer in dict.fromkeys(around(key)) if outer != key]
    if any(is_past_iteration(state, outer, key) for outer in outers):
        return  # nobody opens an iteration again that is over
    for outer in outers:
        index = closed_iteration(state, outer)
        if index is not None:
            state.units[outer] = UnitState(index=index, reason=reason)
            state.inner.setdefault(str(outer[1]), set()).add(outer[0])
            account(state, outer, state.units[outer])
        unit = state.unit(outer)
        if unit.status in ("completed", "failed"):
            # A controller that failed stays so: a resume then tries again all that failed in it, not only this.
            unit.status = unit.status if unit.status == "failed" and unit.items is not None else status
            unit.allowed = False
            unit.reason = reason
            if unit.index is not None:
                account(state, outer, unit)


def iteration_of(state: RunState, loop: Unit, inner: Unit) -> int:
    """The iteration of a loop that a unit is in, from 1; 0 if that is no loop, or the unit is in none."""
    controller = state.units.get(loop)
    if controller is None or controller.items is None or not controller.items.is_loop or inner[1] is None:
        return 0
    below = inner[1] if loop[1] is None else inner[1][len(loop[1]) + 2 :]
    iteration = below.split("::")[0]
    return int(iteration) if iteration.isdecimal() else 0


def closed_iteration(state: RunState, unit: Unit) -> int | None:
    """The position of a completed iteration that the state keeps no record of; None for any other unit."""
    step, item = unit
    if item is None or unit in state.units:
        return None
    index = iteration_of(state, (step, parent_of(item)), unit) - 1
    items = state.unit((step, parent_of(item))).items
    return index if items is not None and 0 <= index < items.total and items.marks[index] == COMPLETED else None


def past_loop(state: RunState, inner: Unit) -> Unit | None:
    """The outermost loop around a unit that is past the iteration the unit is in: it can only begin anew."""
    loops = (outer for outer in around(inner) if outer != inner and is_past_iteration(state, outer, inner))
    return next(iter(reversed(list(loops))), None)


def is_past_iteration(state: RunState, loop: Unit, inner: Unit) -> bool:
    """Whether a unit is in an iteration of a loop that is over for good: a later one has begun, or it is forgotten."""
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
    """Forget what the steps inside a unit did: it begins anew, or is another item now."""
    if unit.items is not None:
        give_up(state, key, unit)
    else:
        _forget(state, key, unit, lambda _: True)


def give_up(state: RunState, key: Unit, controller: UnitState) -> None:
    """Forget everything inside a controller: it begins anew."""
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
    """A list, or the next part of one, was recorded."""
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
        known = state.units.get((event.step, prefix + item))
        if known is not None:
            known.index = position
    kept = unit.items.kept if unit.items is not None else 0
    if unit.items is not None and not event.is_loop:
        unit.generation += 1  # what is new in the list is new work, whatever it is called
    unit.items = Items(marks=marks, known=len(event.keys), digest=event.digest, is_loop=event.is_loop, kept=kept)
