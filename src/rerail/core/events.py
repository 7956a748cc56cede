"""What happened: the facts a journal is made of. Past tense, frozen, never reinterpreted.

A step, an item of a fan-out and an iteration of a loop are one kind of thing, a *unit*: the path of
the declared step, and the path of the instance (`item`), which is None for a plain step. They share
one set of events. New fields get defaults; a tag is never reused.
"""

from datetime import datetime
from typing import Any, Literal

import msgspec

from rerail.core.model import RunOptions

FORMAT = 1  # of journal, run.json and checkpoint.json; old ones are read for ever, newer ones refused

Metrics = dict[str, int | float]


class Owner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who drives a run: enough to tell a live process from a namesake."""

    pid: int
    started: str  # start time of the process, in the words of its operating system
    boot: str
    namespace: str
    host: str
    since: datetime


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known about why an attempt failed."""

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
    """How far an attempt was when it was last looked at."""

    at: datetime
    elapsed: float  # seconds since it started
    metrics: Metrics = {}
    models: dict[str, Metrics] = {}
    done: float | None = None
    total: float | None = None


class Approval(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person answered to an `approve` step."""

    approved: bool
    by: str
    at: datetime
    reason: str = ""
    seq: int = 0  # where in the journal: what was asked about may have changed since


class ArtifactInternals(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The part of an artifact's record that only rerail reads."""

    mode: int = 0
    manifest: str = ""  # of a tree: the digest of the list of all that is in it, which is in the content store
    stamp: str = ""  # times and inode, for `--verify fast`
    kept: bool = False  # in the content store, as far as it was to be
    position: int = 0  # among the artifacts its step declares


class ArtifactRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An artifact as it was when its step completed: a file, or a tree, whose digest is over names and contents."""

    path: str  # relative to the pipeline's directory unless it is external
    size: int
    sha256: str
    state: str  # as found when this was written: intact
    kind: Literal["file", "tree"] = "file"
    files: int = 1
    internal: ArtifactInternals = ArtifactInternals()

    @property
    def product(self) -> tuple[str, str, str]:
        """What makes it the same thing again."""
        return (self.path, self.kind, self.sha256)

    def with_internal(self, **changes: Any) -> "ArtifactRecord":
        """Return the record with some of its internals replaced."""
        return msgspec.structs.replace(self, internal=msgspec.structs.replace(self.internal, **changes))


class InputRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step was going to read, as it was when the step started. Without a digest: it was not there."""

    path: str
    sha256: str = ""
    stamp: str = ""


class _Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", gc=False):
    at: datetime


class _UnitEvent(_Event, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    step: str
    item: str | None = None

    @property
    def unit(self) -> tuple[str, str | None]:
        return (self.step, self.item)


class RunStarted(_Event, frozen=True, kw_only=True, tag="run-started", omit_defaults=True):
    """The first record of a run."""

    owner: Owner
    pipeline_sha256: str  # the frozen copy is proved by the journal
    options: RunOptions
    steps: int  # how many the pipeline has
    hooks: tuple[str, ...] = ()  # the steps that clean up or come last; they do not count


class RunResumed(_Event, frozen=True, kw_only=True, tag="run-resumed", omit_defaults=True):
    """The first record of every later life of the run."""

    owner: Owner
    pipeline_sha256: str
    options: RunOptions
    steps: int
    hooks: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    saved_seconds: float = 0.0  # what earlier lives did that need not be done again
    saved_usd: float = 0.0
    died_at: datetime | None = None  # when the life before was seen to end, if it could not say so itself
    died_after: float | None = None  # how many seconds that had lasted by then, whatever became of the wall clock


class RunRepaired(_Event, frozen=True, kw_only=True, tag="run-repaired", omit_defaults=True):
    """`rerail repair` gave up what could not be proved."""

    owner: Owner
    reason: str
    evidence: str  # where the damaged files are kept, relative to the run
    suspects: tuple[str, ...] = ()  # steps that the given-up records speak of: nobody knows how far they got


class RunInterrupted(_Event, frozen=True, kw_only=True, tag="run-interrupted", omit_defaults=True):
    """The run stopped before its end and can go on: a signal, or state that could not be written."""

    reason: str
    signal: str | None = None
    active_seconds: float | None = None  # seconds since it was started or resumed, whatever became of the wall clock


PauseCause = Literal["", "budget", "quota", "approval", "max-runtime", "unknown outcome", "until"]


class RunPaused(_Event, frozen=True, kw_only=True, tag="run-paused", omit_defaults=True):
    """The run waits for something outside it."""

    reason: str
    cause: PauseCause = ""
    until: datetime | None = None  # when what it waits for comes by itself
    active_seconds: float | None = None  # as of RunInterrupted


class RunFinished(_Event, frozen=True, kw_only=True, tag="run-finished", omit_defaults=True):
    """Nothing is left to run."""

    status: Literal["completed", "failed"]
    dead_letters: int = 0  # items that failed for good
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
    metrics: Metrics = {}
    models: dict[str, Metrics] = {}  # what of them is a certain model's
    artifacts: tuple[ArtifactRecord, ...] = ()
    output: str = ""  # last lines of stdout


class StepFailed(_UnitEvent, frozen=True, kw_only=True, tag="step-failed", omit_defaults=True):
    """An attempt failed. With `retry_at` another follows; without, the unit has failed."""

    attempt: int
    duration: float
    error: Failure
    retry_at: datetime | None = None
    retry_in: float | None = None
    allowed: bool = False
    metrics: Metrics = {}
    models: dict[str, Metrics] = {}
    output: str = ""
    why: str = ""  # why another attempt follows, and when
    refused: str = ""  # by what a service asked to be left alone: that is no failure a policy counts
    refusals: int = 0  # how often in a row nothing of the step got through, this time included


class StepProgressed(_UnitEvent, frozen=True, kw_only=True, tag="step-progressed", omit_defaults=True):
    """A long attempt was looked at: how far it is and what it has cost by now."""

    attempt: int
    elapsed: float
    metrics: Metrics = {}
    models: dict[str, Metrics] = {}
    done: float | None = None
    total: float | None = None


class StepInterrupted(_UnitEvent, frozen=True, kw_only=True, tag="step-interrupted", omit_defaults=True):
    """An attempt was cut off: by a signal to rerail, or found cut off by the next life."""

    attempt: int
    reason: str
    metrics: Metrics = {}
    models: dict[str, Metrics] = {}
    elapsed: float = 0.0  # seconds, as far as is known


class StepSkipped(_UnitEvent, frozen=True, kw_only=True, tag="step-skipped", omit_defaults=True):
    reason: str
    index: int | None = None
    fingerprint: str = ""


class StepInvalidated(_UnitEvent, frozen=True, kw_only=True, tag="step-invalidated", omit_defaults=True):
    """What is recorded of this unit no longer counts: it runs again.

    Of a map, loop or inner pipeline everything inside is given up, unless it is only reopened.
    """

    reason: str
    index: int | None = None  # of an item that was closed
    reopened: bool = False
    quarantined: dict[str, str] = {}  # what stood at its broken paths, and where in the run directory that is now


class ArtifactsRestored(_UnitEvent, frozen=True, kw_only=True, tag="artifacts-restored", omit_defaults=True):
    """What this unit produced stands where it should again."""

    found: dict[str, str]  # path → what was wrong there
    artifacts: tuple[ArtifactRecord, ...]  # all of the unit's, with new stamps
    quarantined: dict[str, str] = {}


class StepMarked(_UnitEvent, frozen=True, kw_only=True, tag="step-marked", omit_defaults=True):
    """A person said what is true of this unit."""

    status: Literal["completed", "failed", "pending"]
    by: str
    artifacts: tuple[ArtifactRecord, ...] = ()  # as they stood when it was marked completed
    inputs: tuple[InputRecord, ...] = ()


class ApprovalGiven(_UnitEvent, frozen=True, kw_only=True, tag="approval-given", omit_defaults=True):
    """A person answered an `approve` step."""

    approved: bool
    by: str
    reason: str = ""
    seen: int = 0  # the newest record whoever answered could know: clocks do not say what an answer is about


class StepInherited(_UnitEvent, frozen=True, kw_only=True, tag="step-inherited", omit_defaults=True):
    """A forked run shares what this unit produced in the run it was forked from. What that cost was paid there."""

    run: str
    fingerprint: str
    duration: float | None = None
    outputs: dict[str, Any] = {}
    artifacts: tuple[ArtifactRecord, ...] = ()
    inputs: tuple[InputRecord, ...] = ()
    skipped: str = ""  # why it was skipped there, if it was
    failed: Failure | None = None  # how it failed there, if that was allowed
    controls: bool = False  # it has other steps run
    rank: int = 0  # the how manieth of the adopted to complete there: the last producer of a path owns it


class ItemsListed(_UnitEvent, frozen=True, kw_only=True, tag="items-listed", omit_defaults=True):
    """What a map fans out over, durable before any item starts; a long list takes several records.

    If it replaces an earlier list, `completed`, `failed` and `skipped` say which positions of the new one are kept.
    """

    total: int
    first: int = 0  # position of the first item in this record
    keys: tuple[str, ...] = ()
    values: tuple[Any, ...] | None = None  # None: every item is its own key
    digest: str = ""  # of the whole list
    source: str = ""  # fingerprint of the command that made it
    is_loop: bool = False  # the iterations of a loop, which nobody lists
    completed: str = ""
    failed: str = ""
    skipped: str = ""
    gone: tuple[str, ...] = ()  # keys that are no longer in the list
    moved: dict[str, int] = {}  # new positions of units the state remembers
    edited: dict[str, Any] = {}  # what people had changed of what is kept, by key


class ItemDropped(_UnitEvent, frozen=True, kw_only=True, tag="item-dropped", omit_defaults=True):
    """A person gave an item of the dead letter queue up."""

    by: str


class ItemEdited(_UnitEvent, frozen=True, kw_only=True, tag="item-edited", omit_defaults=True):
    """A person changed an item of the dead letter queue; it is to be tried again."""

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
    | ItemsListed
    | ItemDropped
    | ItemEdited
)
RunEvent = RunStarted | RunResumed | RunRepaired | RunInterrupted | RunPaused | RunFinished
Event = RunEvent | UnitEvent
