"""State types: `RunState` and `UnitState`, the values that events change."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from rerail.core.events import (
    Approval,
    ArtifactRecord,
    AttemptProgress,
    BudgetKind,
    Cause,
    Failure,
    InputRecord,
    Metrics,
    PauseCause,
)
from rerail.core.items import Items
from rerail.core.model import RunOptions
from rerail.core.unit_id import UnitId

UnitStatus = Literal["pending", "running", "completed", "failed", "interrupted", "skipped"]
RunStatus = Literal["pending", "running", "completed", "failed", "interrupted", "paused"]


class UnitState(msgspec.Struct, kw_only=True, gc=False):
    """State of one unit. Outputs and artifacts are those of its last completion."""

    status: UnitStatus = "pending"
    attempts: int = 0  # started so far; never reset
    completions: int = 0
    failures: int = 0  # failed attempts since the unit was last pending: the count of a retry policy
    refusals: int = 0  # refusals by a service in a row
    crashes: int = 0  # crashes in a row that interrupted it; an end of its own or a person resets them
    started_seq: int = 0  # journal position of the attempt that completed, or of the latest one
    changed_seq: int = 0  # journal position at which its product last changed
    completed_seq: int = 0  # journal position of its last completion: the last producer of a path owns it
    settled_seq: int = 0  # journal position at which it was first settled; 0 also if that is unknown
    started_at: datetime | None = None
    finished_at: datetime | None = None
    duration: float | None = None
    fingerprint: str = ""
    outputs: dict[str, Any] = {}
    metrics: Metrics = {}
    artifacts: tuple[ArtifactRecord, ...] = ()
    inputs: tuple[InputRecord, ...] = ()
    output: str = ""
    error: Failure | None = None
    retry_at: datetime | None = None
    retry_in: float | None = None
    allowed: bool = False
    head: str = ""  # the commit at HEAD before its first attempt
    reason: str = ""  # why it was skipped, invalidated, interrupted or marked
    index: int | None = None  # of an item or iteration: its position
    items: Items | None = None  # of a map or loop: the statuses of its items
    generation: int = 0  # generation: how often its items were discarded
    worked: float = 0.0  # seconds that its attempts took, and those of discarded units inside it
    void: float = 0.0  # of these, the seconds of work that no longer counts
    because: Cause | None = None  # the reason as data, if it was invalidated or marked
    progress: AttemptProgress | None = None  # of the attempt in flight, or of the last one if it was interrupted
    approval: Approval | None = None  # given, and not acted on yet

    @property
    def settled(self) -> bool:
        """Whether dependants may run: completed, skipped, or failed with the failure allowed."""
        return self.status in ("completed", "skipped") or (self.status == "failed" and self.allowed)


_UNTOUCHED: Final = UnitState()


class RunState(msgspec.Struct, kw_only=True):
    """State of a run at journal position `seq`."""

    status: RunStatus = "pending"
    seq: int = 0
    invocations: int = 0
    reason: str = ""
    cause: PauseCause = ""  # of a paused run
    until: datetime | None = None
    waiting_for: tuple[str, ...] = ()  # of a paused run: units without an answer, or in doubt
    budget_kind: BudgetKind = ""  # of a paused run: the part of its budget that is spent
    pipeline_sha256: str = ""  # of the definition in use
    options: RunOptions = RunOptions()
    steps: int = 0  # number of steps of the pipeline
    hooks: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # recorded steps that the pipeline of the last invocation did not have
    started_at: datetime | None = None
    updated_at: datetime | None = None
    finished_at: datetime | None = None
    finished_seq: int = 0  # journal position of the latest recorded end
    error: Failure | None = None
    last_event: str = ""  # tag and unit of the last unit event: `state` in checkpoint.json
    last_unit: UnitId | None = None
    last_completed: UnitId | None = None
    units: dict[UnitId, UnitState] = {}
    spent: Metrics = {}  # by all attempts, ever
    active_seconds: float = 0.0  # seconds, in all invocations before this one
    saved_usd: float = 0  # cost of reused work, not spent again in this invocation
    invoked_at: datetime | None = None  # when this invocation began
    inner: dict[str, set[str]] = {}  # instance → steps with a unit in it; derived from `units`

    @property
    def counted(self) -> list[UnitState]:
        """The units of the pipeline's own steps: no hooks, no removed steps, nothing inside a controller."""
        left_out = {*self.hooks, *self.removed}
        return [unit for unit_id, unit in self.units.items() if unit_id.is_top_level and unit_id.step not in left_out]

    def unit(self, unit: UnitId) -> UnitState:
        """Return the state of a unit, to read; a unit without events is pending."""
        return self.units.get(unit, _UNTOUCHED)
