"""What is known of a run and of each of its units: the values that events change."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from rerail.core.events import Approval, ArtifactRecord, AttemptProgress, Failure, InputRecord, Metrics, PauseCause
from rerail.core.items import Items
from rerail.core.model import RunOptions

Unit = tuple[str, str | None]
UnitStatus = Literal["pending", "running", "completed", "failed", "interrupted", "skipped"]
RunStatus = Literal["pending", "running", "completed", "failed", "interrupted", "paused"]


class UnitState(msgspec.Struct, kw_only=True, gc=False):
    """What is known of one unit. Outputs and artifacts are those of its last completion."""

    status: UnitStatus = "pending"
    attempts: int = 0  # started so far, for ever growing
    completions: int = 0
    failures: int = 0  # failed attempts since the unit was last pending: what a retry policy counts
    refusals: int = 0  # times in a row that a service asked to be left alone
    started_seq: int = 0  # journal position of the attempt that completed, or of the latest one
    changed_seq: int = 0  # journal position at which its product last became something different
    completed_seq: int = 0  # journal position of its last completion: the last producer of a path owns it
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
    head: str = ""  # where HEAD was when it was first tried
    reason: str = ""  # why it was skipped, invalidated, interrupted or marked
    index: int | None = None  # of an item or iteration: its position
    items: Items | None = None  # of a map or loop: what became of its items
    generation: int = 0  # how often its items were given up
    worked: float = 0.0  # seconds that its attempts took, and those of what was inside it and is forgotten
    progress: AttemptProgress | None = None  # of the attempt under way, or of the last one if that was cut off
    approval: Approval | None = None  # of a person, not acted on yet

    @property
    def settled(self) -> bool:
        """Done in a way that lets dependants run."""
        return self.status in ("completed", "skipped") or (self.status == "failed" and self.allowed)


_UNTOUCHED: Final = UnitState()


class RunState(msgspec.Struct, kw_only=True):
    """The whole state of a run at journal position `seq`."""

    status: RunStatus = "pending"
    seq: int = 0
    invocations: int = 0
    reason: str = ""
    cause: PauseCause = ""  # of a paused run
    until: datetime | None = None
    pipeline_sha256: str = ""  # of the definition in use
    options: RunOptions = RunOptions()
    steps: int = 0  # how many the pipeline has
    hooks: tuple[str, ...] = ()
    started_at: datetime | None = None
    updated_at: datetime | None = None
    finished_at: datetime | None = None
    finished_seq: int = 0  # journal position of the latest end that was recorded
    error: Failure | None = None
    last_event: str = ""  # tag and unit of the last unit event: what checkpoint.json calls its state
    last_unit: Unit | None = None
    last_completed: Unit | None = None
    units: dict[Unit, UnitState] = {}
    spent: Metrics = {}  # by all attempts there ever were
    active_seconds: float = 0.0  # seconds, in all invocations before this one
    saved_usd: float = 0  # what this life need not spend again
    invoked_at: datetime | None = None  # when this life began
    inner: dict[str, set[str]] = {}  # instance → the steps it has a unit of; follows from `units`

    def unit(self, unit: Unit) -> UnitState:
        """The state of a unit, to read; a unit nothing happened to is pending."""
        return self.units.get(unit, _UNTOUCHED)


def name(unit: Unit) -> str:
    """A unit as people write it: `step` or `step[item]`."""
    step, item = unit
    return step if item is None else f"{step}[{item}]"
