"""Events: the facts that a journal consists of. Past tense, frozen, never reinterpreted.

A step, an item of a map and an iteration of a loop are one kind of thing, a *unit*: the path of
the declared step, and the path of the instance (`item`), which is None for a plain step. They share
one set of events. New fields get defaults; a tag is never reused.
"""

from datetime import datetime
from typing import Any, Literal

import msgspec

from rerail.core.model import RunOptions
from rerail.core.unit_id import UnitId

Metrics = dict[str, int | float]


class Owner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Process that executes a run: enough to tell a live process from a namesake."""

    pid: int
    started: str  # start time of the process, as its operating system gives it
    boot: str
    namespace: str
    host: str
    since: datetime


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Cause of a failed attempt, with everything that is known about it."""

    type: str
    message: str
    step: str
    at: datetime
    item: str | None = None
    command: str = ""
    exit_code: int | None = None
    signal: str | None = None
    retryable: bool = True
    stderr_tail: str = ""
    traceback: str = ""
    variables: dict[str, Any] = {}


class AttemptProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress of an attempt when it was last seen."""

    at: datetime
    elapsed: float  # seconds since it started
    metrics: Metrics = {}
    models: dict[str, Metrics] = {}
    done: float | None = None
    total: float | None = None


class Approval(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer of a person to an `approve` step."""

    approved: bool
    by: str
    at: datetime
    reason: str = ""
    seq: int = 0  # journal position: the subject may have changed since


class ArtifactInternals(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The part of an artifact's record that only rerail reads."""

    mode: int = 0
    manifest: str = ""  # of a tree: the digest of the list of its entries, which is in the content store
    stamp: str = ""  # times and inode, for `--verify fast`
    kept: bool = False  # in the content store, as far as `keep` says
    position: int = 0  # among the artifacts its step declares


class ArtifactRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Artifact at the completion of its step: a file, or a tree, whose digest is over names and contents."""

    path: str  # relative to the pipeline's directory unless it is external
    size: int
    sha256: str
    state: str  # as found when this was written: intact
    kind: Literal["file", "tree"] = "file"
    files: int = 1
    internal: ArtifactInternals = ArtifactInternals()

    @property
    def product(self) -> tuple[str, str, str]:
        """Identity of the product: two equal ones are the same thing."""
        return (self.path, self.kind, self.sha256)

    def with_internal(self, **changes: Any) -> "ArtifactRecord":
        """Return the record with some of its internals replaced."""
        return msgspec.structs.replace(self, internal=msgspec.structs.replace(self.internal, **changes))


class InputRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Input of a step when the step started. Without a digest: it did not exist."""

    path: str
    sha256: str = ""
    stamp: str = ""


CauseKind = Literal[
    "completed",
    "skipped",
    "allowed-failure",
    "restored",
    "accepted",
    "not-started",
    "approval",
    "interrupted",
    "record-lost",
    "failed",
    "retry-pending",
    "refused",
    "marked",
    "not-allowed",
    "definition-changed",
    "list-changed",
    "result-changed",
    "new-dependency",
    "depends",
    "input-changed",
    "artifact",
    "overwrites",
    "in-progress",
    "dead-letter",
    "params-changed",
    "from",
    "skip",
    "until",
    "hook",
    "invalidated",
]


class Cause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reason of a decision as data: its kind, and the step or file responsible."""

    kind: CauseKind
    step: str = ""  # other than the step itself
    item: str | None = None
    path: str = ""  # of an artifact or an input


class Reason(msgspec.Struct, frozen=True):
    """Reason of a decision: for people, and as data."""

    text: str
    cause: Cause


class _Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", gc=False):
    at: datetime


class _UnitEvent(_Event, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    step: str
    item: str | None = None

    @property
    def unit(self) -> UnitId:
        return tuple.__new__(UnitId, (self.step, self.item))  # several times for every event: the short way


class RunStarted(_Event, frozen=True, kw_only=True, tag="run-started", omit_defaults=True):
    """First record of a run."""

    owner: Owner
    pipeline_sha256: str  # the frozen copy is proved by the journal
    options: RunOptions
    steps: int  # number of steps of the pipeline
    hooks: tuple[str, ...] = ()  # ids of `on_failure` and `finally` steps; they do not count


class RunResumed(_Event, frozen=True, kw_only=True, tag="run-resumed", omit_defaults=True):
    """First record of every later invocation of the run."""

    owner: Owner
    pipeline_sha256: str
    options: RunOptions
    steps: int
    hooks: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    saved_seconds: float = 0.0  # duration of the work of earlier invocations that is reused
    saved_usd: float = 0.0
    removed: tuple[str, ...] = ()  # recorded steps that the pipeline no longer has; they do not count
    died_at: datetime | None = None  # when the invocation before was last seen, if it recorded no end
    died_after: float | None = None  # its duration in seconds by then, independent of the wall clock


class RunRepaired(_Event, frozen=True, kw_only=True, tag="run-repaired", omit_defaults=True):
    """Repair of the run: `rerail repair` discarded the records that could not be proved."""

    owner: Owner
    reason: str
    evidence: str  # where the damaged files are kept, relative to the run
    suspects: tuple[str, ...] = ()  # steps named in the discarded records: their outcome is unknown


class RunInterrupted(_Event, frozen=True, kw_only=True, tag="run-interrupted", omit_defaults=True):
    """Interruption of the run before its end, by a signal or by state that could not be written.

    The run can be resumed.
    """

    reason: str
    signal: str | None = None
    active_seconds: float | None = None  # seconds since it was started or resumed, independent of the wall clock


PauseCause = Literal["", "budget", "quota", "approval", "max-runtime", "in-doubt", "until", "crashes"]
BudgetKind = Literal["", "cost_usd", "tokens", "time"]


class RunPaused(_Event, frozen=True, kw_only=True, tag="run-paused", omit_defaults=True):
    """Pause of the run: it waits for something outside it."""

    reason: str
    cause: PauseCause = ""
    until: datetime | None = None  # when the wait ends by itself
    waiting_for: tuple[str, ...] = ()  # units without an answer, or in doubt
    budget_kind: BudgetKind = ""  # the part of the run's budget that is spent; '' if it is the budget of a step
    active_seconds: float | None = None  # as of RunInterrupted


class RunFinished(_Event, frozen=True, kw_only=True, tag="run-finished", omit_defaults=True):
    """End of the run: nothing is left to run."""

    status: Literal["completed", "failed"]
    dead_letters: int = 0  # items that failed permanently
    active_seconds: float | None = None  # as of RunInterrupted


class StepStarted(_UnitEvent, frozen=True, kw_only=True, tag="step-started", omit_defaults=True):
    attempt: int
    index: int | None = None  # of an item or iteration: its position, counted from 0
    fingerprint: str = ""  # of the definition it was started with
    head: str = ""  # the commit HEAD was at, for `commit_required`
    inputs: tuple[InputRecord, ...] = ()


class StepCompleted(_UnitEvent, frozen=True, kw_only=True, tag="step-completed", omit_defaults=True):
    attempt: int
    duration: float
    outputs: dict[str, Any] = {}
    left: tuple[str, ...] = ()  # commands of processes that the attempt left running, which were ended
    metrics: Metrics = {}
    models: dict[str, Metrics] = {}  # the share of each model
    artifacts: tuple[ArtifactRecord, ...] = ()
    output: str = ""  # last lines of stdout


class StepFailed(_UnitEvent, frozen=True, kw_only=True, tag="step-failed", omit_defaults=True):
    """Failure of an attempt. With `retry_at` another follows; without, the unit has failed."""

    attempt: int
    duration: float
    error: Failure
    retry_at: datetime | None = None
    retry_in: float | None = None
    allowed: bool = False
    left: tuple[str, ...] = ()  # commands of processes that the attempt left running, which were ended
    metrics: Metrics = {}
    models: dict[str, Metrics] = {}
    outputs: dict[str, Any] = {}  # of a rejected `approve` step: the answer
    output: str = ""
    why: str = ""  # why another attempt follows, and when
    refused: str = ""  # kind of refusal by a service: a retry policy does not count it as a failure
    refusals: int = 0  # in a row without an attempt of the step that got through, this one included


class StepProgressed(_UnitEvent, frozen=True, kw_only=True, tag="step-progressed", omit_defaults=True):
    """Progress of a long attempt: how far it is, and its usage so far."""

    attempt: int
    elapsed: float
    metrics: Metrics = {}
    models: dict[str, Metrics] = {}
    done: float | None = None
    total: float | None = None


class StepInterrupted(_UnitEvent, frozen=True, kw_only=True, tag="step-interrupted", omit_defaults=True):
    """Interruption of an attempt: by a signal to rerail, or found by the next invocation."""

    attempt: int
    reason: str
    metrics: Metrics = {}
    models: dict[str, Metrics] = {}
    elapsed: float = 0.0  # seconds, as far as is known
    crash: bool = False  # its invocation ended without a word: it was killed, or the machine stopped


class StepSkipped(_UnitEvent, frozen=True, kw_only=True, tag="step-skipped", omit_defaults=True):
    reason: str
    index: int | None = None
    fingerprint: str = ""


class StepInvalidated(_UnitEvent, frozen=True, kw_only=True, tag="step-invalidated", omit_defaults=True):
    """Invalidation of a unit: its record no longer counts, and it runs again.

    Units inside a map, loop or subpipeline are discarded, unless it is only reopened.
    """

    reason: str
    index: int | None = None  # of a closed item
    reopened: bool = False
    quarantined: dict[str, str] = {}  # broken path → quarantined file in the run directory
    because: Cause | None = None


class ArtifactsRestored(_UnitEvent, frozen=True, kw_only=True, tag="artifacts-restored", omit_defaults=True):
    """Restore of the broken artifacts of a unit."""

    found: dict[str, str]  # path → its flaw
    artifacts: tuple[ArtifactRecord, ...]  # all of the unit's, with new stamps
    quarantined: dict[str, str] = {}


class ArtifactsAccepted(_UnitEvent, frozen=True, kw_only=True, tag="artifacts-accepted", omit_defaults=True):
    """Acceptance of edited artifacts of a unit by a person: from here on they are its product."""

    by: str
    was: dict[str, str]  # path of each accepted artifact → its digest before
    artifacts: tuple[ArtifactRecord, ...]  # all of the unit's


class StepMarked(_UnitEvent, frozen=True, kw_only=True, tag="step-marked", omit_defaults=True):
    """Status of a unit as set by a person."""

    status: Literal["completed", "failed", "pending", "skipped"]
    by: str
    artifacts: tuple[ArtifactRecord, ...] = ()  # as they were when it was marked completed
    inputs: tuple[InputRecord, ...] = ()


class ApprovalGiven(_UnitEvent, frozen=True, kw_only=True, tag="approval-given", omit_defaults=True):
    """Answer of a person to an `approve` step, as an event."""

    approved: bool
    by: str
    reason: str = ""
    seen: int = 0  # the newest record that the person could know: clocks do not say which question an answer is about


class StepInherited(_UnitEvent, frozen=True, kw_only=True, tag="step-inherited", omit_defaults=True):
    """Inheritance of a unit by a forked run: it shares the product of its parent run, which paid for it."""

    run: str
    fingerprint: str
    duration: float | None = None
    outputs: dict[str, Any] = {}
    artifacts: tuple[ArtifactRecord, ...] = ()
    inputs: tuple[InputRecord, ...] = ()
    skipped: str = ""  # why it was skipped there, if it was
    failed: Failure | None = None  # how it failed there, if that was allowed
    controls: bool = False  # it is a map, loop or subpipeline
    rank: int = 0  # order of completion there: the last producer of a path owns it


class ItemsListed(_UnitEvent, frozen=True, kw_only=True, tag="items-listed", omit_defaults=True):
    """List of the items of a map, durable before any item starts; a long list takes several records.

    If it replaces an earlier list, `completed`, `failed` and `skipped` say which positions of the new one are kept.
    """

    total: int
    first: int = 0  # position of the first item in this record
    keys: tuple[str, ...] = ()
    values: tuple[Any, ...] | None = None  # None: every item is its own key
    digest: str = ""  # of the whole list
    source: str = ""  # fingerprint of the command that made it
    is_loop: bool = False  # the iterations of a loop, which have no list
    completed: str = ""
    failed: str = ""
    skipped: str = ""
    gone: tuple[str, ...] = ()  # keys that are no longer in the list
    moved: dict[str, int] = {}  # new positions of units in the state
    edited: dict[str, Any] = {}  # earlier edits of kept items, by key


class ItemDropped(_UnitEvent, frozen=True, kw_only=True, tag="item-dropped", omit_defaults=True):
    """Removal of an item from the dead letter queue by a person."""

    by: str


class ItemEdited(_UnitEvent, frozen=True, kw_only=True, tag="item-edited", omit_defaults=True):
    """Change of an item of the dead letter queue by a person; the item is to be retried."""

    value: Any
    by: str


UnitEvent = (
    StepStarted
    | StepCompleted
    | StepFailed
    | StepProgressed
    | StepInterrupted
    | StepSkipped
    | StepInvalidated
    | StepMarked
    | ApprovalGiven
    | StepInherited
    | ArtifactsRestored
    | ArtifactsAccepted
    | ItemsListed
    | ItemDropped
    | ItemEdited
)
RunEvent = RunStarted | RunResumed | RunRepaired | RunInterrupted | RunPaused | RunFinished
Event = RunEvent | UnitEvent
