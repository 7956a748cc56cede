"""What is known of a unit, in words that plans, lists and views share."""

from __future__ import annotations

from rerail.core.events import SoFar
from rerail.core.money import COST, amount
from rerail.core.run_state import UnitState


def how_far(seen: SoFar | None) -> str:
    """How far an attempt was when it was last looked at: `after 12 min 00 s, 7 of 18, $0.42`; '' if nobody looked."""
    if seen is None:
        return ""
    if seen.elapsed < 1 and seen.done is None and not seen.metrics:
        return ""  # it had hardly begun
    parts = [f"after {amount('time', seen.elapsed)}"]
    if seen.done is not None:
        parts.append(f"{seen.done:g} of {seen.total:g}" if seen.total else f"{seen.done:g} done")
    if COST in seen.metrics:
        parts.append(amount(COST, seen.metrics[COST]))
    return ", ".join(parts)


def cut_off(unit: UnitState, seen: SoFar | None) -> str:
    """That an attempt was, and where it was then."""
    far = how_far(seen)
    return f"attempt {unit.attempts} was cut off{f' {far}' if far else ''}"


def failed(unit: UnitState) -> str:
    """How a unit failed, or why it is to be tried again."""
    if unit.retry_at is not None:
        if unit.refusals:
            return f"attempt {unit.attempts} was refused: {unit.reason}"
        return f"attempt {unit.attempts} failed and was to be repeated"
    if unit.reason.startswith("marked"):
        return unit.reason
    message = unit.error.message.splitlines()[0] if unit.error and unit.error.message else "failed"
    return f"failed: {message}"
