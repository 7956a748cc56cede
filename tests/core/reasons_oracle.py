"""Which step or file is responsible for a decision, worked out from docs/reference/reasons.md and a ledger.

The ledger holds what the steps did: when each started, with which definition, and what came of it. Nothing of rerail is
imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Step:
    """A step as the pipeline has it now."""

    id: str
    needs: list[str]
    definition: str


@dataclass
class Deeds:
    """What a step did so far."""

    last: str = ""  # completed failed interrupted invalidated
    definition: str = ""
    started: int = 0
    results: list[tuple[int, str]] = field(default_factory=list)  # when, and what
    verdict: Verdict | None = None  # why it was invalidated, as found then

    @property
    def first(self) -> int:
        return self.results[0][0] if self.results else 0

    @property
    def changed(self) -> int:
        """When its result last became another one; 0 if it has none."""
        when, before = 0, ""
        for at, result in self.results:
            if result != before:
                when, before = at, result
        return when


@dataclass
class Verdict:
    """The kind of reason that is due, and whom it may name."""

    kind: str
    steps: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()


KEPT = "completed"


def above(pipeline: dict[str, Step], step: str) -> set[str]:
    """All that a step depends on, directly or not."""
    found: set[str] = set()
    todo = list(pipeline[step].needs)
    while todo:
        need = todo.pop()
        if need not in found:
            found.add(need)
            todo += pipeline[need].needs
    return found


def verdicts(steps: list[Step], ledger: dict[str, Deeds], lost: dict[str, str]) -> dict[str, Verdict]:
    """The reason that is due for every step. `lost` are artifacts that are broken and cannot be restored."""
    pipeline = {step.id: step for step in steps}
    found: dict[str, Verdict] = {}
    while len(found) < len(steps):
        for step in steps:
            if step.id not in found and all(need in found for need in step.needs):
                found[step.id] = _verdict(step, pipeline, ledger, lost, found)
    return found


def _verdict(
    step: Step, pipeline: dict[str, Step], ledger: dict[str, Deeds], lost: dict[str, str], found: dict[str, Verdict]
) -> Verdict:
    deeds = ledger.get(step.id)
    if deeds is None:
        return Verdict("not-started")
    if deeds.last == "invalidated":
        assert deeds.verdict is not None
        return deeds.verdict
    if deeds.last in {"interrupted", "failed"}:
        return Verdict(deeds.last)
    if deeds.definition != step.definition:
        return Verdict("definition-changed")
    everything = above(pipeline, step.id)
    results = {one: ledger[one] for one in everything if one in ledger and ledger[one].results}
    since = {one for one, theirs in results.items() if theirs.changed > deeds.started}
    if since:
        new = frozenset(one for one in since if results[one].first > deeds.started)
        close = frozenset(nearest(pipeline, step.id, since))
        return Verdict("new-dependency" if close <= new else "either" if close & new else "result-changed", close)
    if step.id in lost:
        return Verdict("artifact", paths=frozenset([lost[step.id]]))
    without = {one for one in everything if one not in results}
    if without:
        return Verdict("new-dependency", frozenset(nearest(pipeline, step.id, without)))
    again = frozenset(need for need in step.needs if found[need].kind != KEPT)
    return Verdict("depends", again) if again else Verdict(KEPT)


def nearest(pipeline: dict[str, Step], step: str, wanted: set[str]) -> set[str]:
    """Those of the wanted ones that are fewest edges away."""
    level = set(pipeline[step].needs)
    while level:
        if level & wanted:
            return level & wanted
        level = {need for one in level for need in pipeline[one].needs}
    raise AssertionError("none of them is above it")
