"""What a step has used up with all that is inside it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from rerail.core.events import Metrics
from rerail.core.money import COST, added
from rerail.core.run_state import RunState


class Within(NamedTuple):
    """The sums of all attempts of a step, and of whatever a map, a loop or a pipeline has had run."""

    metrics: Metrics = {}  # noqa: RUF012 - of a tuple, which nobody changes
    worked: float = 0.0  # seconds

    @property
    def cost_usd(self) -> float:
        return self.metrics.get(COST, 0)


NOTHING = Within()


def spent_within(state: RunState, *, lasting: bool = False) -> dict[str, Within]:
    """By the id of a step of the pipeline itself; only what need not be done again, if that is asked for."""
    found: dict[str, Within] = {}
    for (step, _), unit in state.units.items():
        if lasting and unit.items is None and unit.status not in ("completed", "skipped"):
            continue
        outermost = step.split("/", 1)[0]
        before = found.get(outermost, NOTHING)
        metrics = added(before.metrics, unit.metrics) if unit.metrics else before.metrics
        found[outermost] = Within(metrics, before.worked + unit.worked)
    return found
