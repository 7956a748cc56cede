"""The dead letter queue: items of maps that failed permanently. It is a view of the state, not a storage of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from rerail.core import events as ev
from rerail.core.run_state import RunState
from rerail.core.unit_id import UnitId, steps_around


def is_dead_letter(state: RunState, unit: UnitId) -> bool:
    """Return whether a unit is in the dead letter queue."""
    known = state.units[unit]
    if known.index is None or known.status != "failed" or known.retry_at is not None or known.allowed:
        return False
    controller = state.units.get(unit.controller)
    return controller is not None and controller.items is not None and not controller.items.is_loop


def dead_letters(state: RunState) -> Iterator[UnitId]:
    """Yield the units in the dead letter queue."""
    return (unit for unit in state.units if is_dead_letter(state, unit))


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """Item in the dead letter queue, with every failure of it."""

    step: str
    item: str
    key: str
    attempts: int
    failed_at: Any
    error: ev.Failure
    value: Any = None
    errors: tuple[ev.Failure, ...] = ()  # one for every attempt that failed, oldest first


def select(
    state: RunState, wanted: Iterable[str] = (), step: str = "", error: str = ""
) -> tuple[list[UnitId], list[str]]:
    """Select dead letters by key, path, pattern, step or error text; return them and the names without a match."""
    dead = [unit for unit in dead_letters(state) if not step or unit.step == step]
    if error:
        dead = [unit for unit in dead if (failure := state.units[unit].error) and error.lower() in _text(failure).lower()]
    names = list(wanted)
    if not names:
        return dead, []
    found = {}
    for name in names:
        exact = [unit for unit in dead if name in _aliases(unit)]
        found[name] = exact or [unit for unit in dead if any(fnmatchcase(alias, name) for alias in _aliases(unit)[:2])]
    units = dict.fromkeys(unit for name in names for unit in found[name])
    return list(units), [name for name in names if not found[name]]


def _text(error: ev.Failure) -> str:
    return f"{error.type} {error.message} {error.stderr_tail}"


def _aliases(unit: UnitId) -> tuple[str, str, str]:
    """Return the names by which an item can be selected: path, key, `step[path]`."""
    assert unit.item is not None
    return (unit.item, unit.key, str(unit))


def history(events: Iterable[tuple[int, ev.Event]], units: Iterable[UnitId]) -> dict[UnitId, list[ev.Failure]]:
    """Return every failure of these items, oldest first; for an item of several steps, the failures of its steps."""
    own: dict[UnitId, list[ev.Failure]] = {unit: [] for unit in units}
    nested: dict[UnitId, list[ev.Failure]] = {unit: [] for unit in own}
    for _, event in events:
        if not isinstance(event, ev.StepFailed) or event.item is None:
            continue
        if event.unit in own:
            own[event.unit].append(event.error)
        for step in steps_around(event.step):
            if (outer := UnitId(step, event.item)) in nested:
                nested[outer].append(event.error)
    return {unit: nested[unit] or own[unit] for unit in own}
