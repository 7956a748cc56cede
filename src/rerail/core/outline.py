"""Outline of a pipeline that has not begun: the order of its steps, their conditions and commands."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rerail.core.graph import topological
from rerail.core.masking import Mask
from rerail.core.model import Pipeline, Step
from rerail.text import one_line

MAX_COMMAND = 120


class OutlineStep(msgspec.Struct, frozen=True, kw_only=True):
    """Step of an outline. Steps of the same stage do not wait for each other; each needs a step of the stage before."""

    step: str
    stage: int
    needs: tuple[str, ...]
    when: str
    kind: str
    command: str  # its first line
    steps: tuple[OutlineStep, ...] = ()  # of a map, loop or pipeline


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """Steps in the order of their stages, and those that run at the end in any case."""

    steps: tuple[OutlineStep, ...]
    last: tuple[OutlineStep, ...] = ()


def outline_of(pipeline: Pipeline, mask: Mask) -> Outline:
    """Return the outline of a pipeline, without the values of secrets."""
    return Outline(steps=_outlined(pipeline.steps, mask), last=_outlined(pipeline.finally_, mask))


def stages_of(steps: Sequence[Step]) -> dict[str, int]:
    """Return the stage of each step: 1 without needs, else one more than the last of its needs."""
    by_id = {step.id: [need for need in step.needs if need != step.id] for step in steps}
    known = {step: [need for need in needs if need in by_id] for step, needs in by_id.items()}
    stages: dict[str, int] = {}
    for step in topological(known):
        stages[step] = 1 + max((stages[need] for need in known[step]), default=0)
    return stages


def _outlined(steps: Sequence[Step], mask: Mask) -> tuple[OutlineStep, ...]:
    stages = stages_of(steps)
    return tuple(
        OutlineStep(
            step=step.id,
            stage=stages[step.id],
            needs=step.needs,
            when=mask.text(step.when),
            kind=str(step.action.__struct_config__.tag),
            command=_first_line(mask.text(step.command)),
            steps=_outlined([inner for inner in step.body if inner.id != step.id], mask),
        )
        for step in sorted(steps, key=lambda step: stages[step.id])
    )


def _first_line(text: str) -> str:
    """Return the first line of a command, with an ellipsis if that is not all of it."""
    first, _, more = text.strip().partition("\n")
    return one_line(first.strip() + (" …" if more.strip() else ""), MAX_COMMAND)
