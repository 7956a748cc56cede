"""Root causes: the attempt at which the failure of a map, loop or pipeline began."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rerail.core.dead_letters import is_dead_letter
from rerail.core.events import Event, Failure, StepFailed
from rerail.core.run_state import RunState
from rerail.core.unit_id import UnitId


class RootCause(msgspec.Struct, frozen=True, kw_only=True):
    """First failure inside a step that failed; that of the step itself if there is none inside."""

    unit: UnitId
    error: Failure
    output: str = ""  # last lines of stdout
    item: UnitId | None = None  # the item in the dead letter queue that it belongs to
    more_items: int = 0  # other items of the same step in the dead letter queue

    @property
    def tail(self) -> str:
        """The last lines that say why."""
        return self.error.traceback or self.error.stderr_tail or self.output


def whole(cause: RootCause, event: StepFailed | None) -> RootCause:
    """Return a root cause with the failure as it was recorded; the state has it only in part."""
    if event is None or event.unit != cause.unit:
        return cause
    return msgspec.structs.replace(cause, error=event.error, output=event.output or cause.output)


def root_cause(state: RunState, unit: UnitId, among: Iterable[UnitId] | None = None) -> RootCause | None:
    """Return the root cause of the failure of a unit; None if the unit has not failed with an error.

    `among` are the units that may have failed, where they are known: else all of the state are looked at.
    """
    units = state.units if among is None else {one: state.units[one] for one in among if one in state.units}
    failed = {
        one: known
        for one, known in units.items()
        if known.status == "failed" and known.retry_at is None and known.error is not None and one.is_within(unit)
        if one == unit or not known.allowed
    }
    if unit not in failed:
        return None
    enclosing = {outer for one in failed for outer in one.ancestors()}
    # The one that failed first; of those of one moment, the first to begin.
    first = min((one for one in failed if one not in enclosing), key=lambda one: failed[one].error.at, default=unit)  # type: ignore[union-attr]
    dead = {one for one in units if one.is_within(unit) and is_dead_letter(state, one)}
    item = next((outer for outer in (first, *first.ancestors()) if outer in dead), None)
    error = failed[first].error
    assert error is not None
    return RootCause(
        unit=first, error=error, output=failed[first].output, item=item, more_items=len(dead - {item}) if item else 0
    )


MAX_FAILURES = 1000  # that are remembered in full


class FailureLog:
    """Memory of the failures of one invocation in full, for root causes: the state keeps them in part.

    It also knows which failed units are inside which: looking through the whole state for each of many failures of items
    would take a time that grows with the square of their number.
    """

    def __init__(self) -> None:
        self._failed: dict[UnitId, StepFailed] = {}
        self._inside: dict[UnitId, dict[UnitId, None]] | None = None  # failed units by each unit around them

    def note(self, event: Event) -> None:
        """Remember an event if it is a failure for good."""
        if not isinstance(event, StepFailed) or event.retry_at is not None:
            return
        if len(self._failed) < MAX_FAILURES:
            self._failed[event.unit] = event
        if self._inside is not None:
            _put_inside(self._inside, event.unit)

    def cause(self, state: RunState, event: StepFailed) -> RootCause:
        """Return the root cause of a failure."""
        if self._inside is None:  # failures of earlier invocations, too
            self._inside = {}
            for unit, known in state.units.items():
                if known.status == "failed":
                    _put_inside(self._inside, unit)
        among = (event.unit, *self._inside.get(event.unit, ()))
        cause = root_cause(state, event.unit, among) or RootCause(unit=event.unit, error=event.error, output=event.output)
        return whole(cause, self._failed.get(cause.unit))


def _put_inside(inside: dict[UnitId, dict[UnitId, None]], unit: UnitId) -> None:
    for outer in unit.ancestors():
        inside.setdefault(outer, {})[unit] = None
