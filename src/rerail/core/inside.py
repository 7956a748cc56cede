"""What becomes of the units inside a map, loop or inner pipeline: asked, restored, run again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from rerail.core.audit import Audit, Flaw
from rerail.core.items import depth_of
from rerail.core.model import Pipeline, Step, every_step
from rerail.core.plan import Decision, Wishes
from rerail.core.state import RunState, Unit, UnitState, name

StepIndex = Mapping[tuple[str, int], Step]  # path and depth → step: a map's only step has the map's path, one deeper


def step_index(pipeline: Pipeline) -> StepIndex:
    """Every step of a pipeline by where it stands."""
    return {(step.id, depth): step for depth, step in every_step(pipeline)}


def step_at(index: StepIndex, unit: Unit) -> Step | None:
    """The step a unit is an instance of; None for an item of several steps, and for what is no longer declared."""
    return index.get((unit[0], depth_of(unit[1])))


def units_inside(state: RunState, ids: Collection[str], item: str | None) -> dict[str, list[Unit]]:
    """The units inside each of these steps of one instance."""
    found: dict[str, list[Unit]] = {}
    if not ids:
        return found
    level = next(iter(ids)).count("/") + 1
    prefix = "" if item is None else item + "::"
    for unit in state.units:
        path, instance = unit
        parts = path.split("/", level)
        top = path if len(parts) <= level else "/".join(parts[:level])
        if top not in ids or (len(parts) <= level and instance == item):
            continue
        if instance == item or (instance is not None and instance.startswith(prefix)):
            found.setdefault(top, []).append(unit)
    return found


def decisions_inside(
    units: Iterable[Unit], index: StepIndex, state: RunState, audit: Audit, wishes: Wishes
) -> tuple[Decision, ...]:
    """What a person has to judge, and what does not stand any more, inside a controller that goes on or is kept."""
    made: list[Decision] = []
    for unit in units:
        known, step = state.units[unit], step_at(index, unit)
        if step is None:
            continue
        if known.status in ("running", "interrupted") and not step.idempotent and not step.is_controller:
            made.append(
                _ask(unit, f"attempt {known.attempts} of {name(unit)} was cut off", "nobody knows how far it got")
            )
        flaws = tuple(flaw for flaw in audit.flaws.get(unit, ()) if not (flaw.temporary or flaw.later))
        if flaws:
            made.append(_flawed(unit, step, flaws, wishes))
    return tuple(made)


def _ask(unit: Unit, what: str, why: str) -> Decision:
    return Decision(step=unit[0], item=unit[1], decision="ask", reason=f"{what} and it is not idempotent: {why}")


def _flawed(unit: Unit, step: Step, flaws: tuple[Flaw, ...], wishes: Wishes) -> Decision:
    lost = [flaw for flaw in flaws if not (flaw.restorable and wishes.restore)]
    if not lost:
        words = ", ".join(flaw.words for flaw in flaws[:3])
        return Decision(step=unit[0], item=unit[1], decision="restore", reason=words, flaws=flaws)
    if not step.idempotent:
        return _ask(unit, lost[0].words, "it is not repeated blindly")
    return Decision(step=unit[0], item=unit[1], decision="rerun", reason=lost[0].words, flaws=flaws)


def progress_words(unit: UnitState) -> str:
    """How far a controller is."""
    items = unit.items
    if items is None or (items.total == 0 and not items.carries):
        return "it was begun"
    if items.carries:
        return f"{items.completed} iteration{'' if items.completed == 1 else 's'} done"
    failed = f", {items.failed} in the dead letter queue" if items.failed else ""
    return f"{items.closed} of {items.total} items done{failed}"
