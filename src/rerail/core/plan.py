"""The plan of a run: a decision about every step, and the options it is made with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from rerail.core.audit import Depth, Flaw
from rerail.core.events import AttemptProgress, Cause, Reason
from rerail.core.money import NOTHING, total, totals_by_step
from rerail.core.state import RunState
from rerail.core.unit_id import UnitId

DecisionKind = Literal["reuse", "restore", "keep", "run", "rerun", "continue", "in-doubt", "skip", "later"]
KEPT: tuple[DecisionKind, ...] = ("reuse", "restore", "keep")
Changes = Literal["rerun", "keep", "refuse"]


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Decision about one step. `unless_unchanged` names the steps whose unchanged products would still save it.

    `docs/reference/reasons.md` says what each kind of `because` means.
    """

    step: str
    decision: DecisionKind
    reason: str
    because: Cause | None = None  # the reason as data
    unless_unchanged: tuple[str, ...] = ()
    changed: bool = False  # its definition was edited since it ran
    saved_seconds: float = 0.0  # duration of the work that is not repeated
    flaws: tuple[Flaw, ...] = ()  # of its artifacts: to be restored, or quarantined before it runs
    item: str | None = None  # of a unit inside a controller
    inner: tuple[Decision, ...] = ()  # about units inside it

    @property
    def unit(self) -> UnitId:
        return UnitId(self.step, self.item)

    @property
    def why(self) -> Reason:
        """The reason, for people and as data."""
        return Reason(self.reason, self.because or Cause(kind="invalidated"))

    @property
    def kept(self) -> bool:
        return self.decision in KEPT

    @property
    def is_requested_skip(self) -> bool:
        """Whether a person has the step skipped, once its needs are settled."""
        return self.decision == "skip" and self.because is not None and self.because.kind == "skip"

    @property
    def restores(self) -> bool:
        """Whether its flaws are restored: it is kept, or would be if its needs produce the same again."""
        return bool(self.flaws) and (self.kept or bool(self.unless_unchanged))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions in declaration order, and the recorded steps that the pipeline no longer has."""

    decisions: tuple[Decision, ...]
    removed: tuple[str, ...] = ()
    hooks: tuple[Decision, ...] = ()  # those that an earlier invocation did not finish
    finally_interrupted: bool = False  # an earlier invocation was interrupted in the `finally` hooks

    @property
    def everything(self) -> Iterator[Decision]:
        """Iterator over the decisions, and those about units inside controllers."""
        for decision in self.decisions:
            yield decision
            yield from decision.inner

    @property
    def changed(self) -> tuple[str, ...]:
        return tuple(item.step for item in self.decisions if item.changed)

    def saved(self, state: RunState) -> tuple[float, float]:
        """Return the seconds and the dollars of work that is not repeated: kept steps, and closed items of maps."""
        done = [decision for decision in self.decisions if decision.kept or decision.decision == "continue"]
        totals = totals_by_step(state, lasting=True)
        cost = total(totals.get(decision.step, NOTHING).cost_usd for decision in done)
        return sum(decision.saved_seconds for decision in done), cost


class ExecuteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one invocation. Unlike `RunOptions` they are not recorded.

    `start` is the step to start from: it and its dependants run in any case, and in a run that has not begun all other
    steps are skipped.
    """

    start: str = ""  # `--from`
    until: str = ""  # the last step to run
    skip: tuple[str, ...] = ()  # steps not to run: they are skipped, as by `when`
    changes: Changes = "rerun"  # for edited steps and sources
    verify: Depth | None = "full"  # None: files are not checked
    restore: bool = True  # broken artifacts, instead of running their steps again
    keep_changes: bool = False  # edited artifacts are accepted, not restored
    retry: frozenset[UnitId] = frozenset()  # dead letters to retry; empty: as the plan has it
    wait: Literal["", "yes", "no"] = ""  # for a quota: however long, or not at all
    allow_concurrent: bool = False  # beside a live run that writes the same paths


class PlanOptions(ExecuteOptions, frozen=True, kw_only=True):
    """Options of an invocation, with the facts about sources and attempts that the plan needs."""

    relisted: Mapping[str, str] = {}  # map → how its source has changed
    seen: Mapping[UnitId, AttemptProgress] = {}  # traces of interrupted attempts, where they say more than the journal
