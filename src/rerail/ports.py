"""The ports: stores, executors, kinds and the other seams of the engine. Their docstrings are the contracts.

`rerail.testing` has the suites that prove that an implementation keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from rerail.core.checkpoint import Checkpoint
from rerail.core.events import ApprovalGiven, ArtifactRecord, Event, InputRecord, Metrics, Owner
from rerail.core.model import Action, Artifact, RunHeader, Step
from rerail.core.state import RunState
from rerail.core.unit_id import UnitId

if TYPE_CHECKING:
    from rerail.core.claims import ClaimRecord
    from rerail.core.masking import Mask
    from rerail.core.summary import Summary


class LoadedRun(msgspec.Struct, kw_only=True):
    """A run as a store has proved it: the state at the end of the journal, and notices about its files."""

    header: RunHeader
    state: RunState
    notices: tuple[str, ...] = ()
    is_cached: bool = True  # there is a whole snapshot of this very state


class Ownership(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a run, as far as a reader can tell without locking."""

    owner: Owner | None
    alive: bool


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `verify`; `notices` are about caches, and about records that were never acknowledged."""

    records: int
    segments: int
    bytes: int
    notices: tuple[str, ...]


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `repair`. An empty `reason`: the run is not damaged."""

    reason: str
    source: str = ""  # what proved the state that the run goes on from
    seq: int = 0  # the last record of that state
    evidence: str = ""  # where the damaged files are kept


class LogFile(msgspec.Struct, frozen=True, kw_only=True):
    """A log as far as it has been written."""

    name: str
    size: int
    modified: int  # nanoseconds since 1970


class RunLogs(Protocol):
    """The logs of a run, read while they may be written. A log that cannot be read is like one that is empty."""

    @property
    def directory(self) -> str:
        """The local directory that people find them in; '' if there is none."""

    def files(self) -> list[LogFile]:
        """List all logs, the one that was written to longest ago first."""

    def stat(self, name: str) -> LogFile | None:
        """Look at one log; None if there is none with that name."""

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return at most `size` bytes of a log from an offset on; b'' at its end."""


class Inbox(Protocol):
    """Messages to a run, as the process that owns it sees them."""

    def take(self) -> list[ApprovalGiven]:
        """Return the messages that have arrived since the last call. They are kept until `clear`."""

    def clear(self) -> None:
        """Remove the messages that were taken: their events are durable."""


class SummaryIndex(Protocol):
    """Summaries of runs at rest, loaded at once: for lists of thousands."""

    def get(self, run_id: str) -> Summary | None:
        """Return the summary of a run; None if it has none that is true now: the run itself has to be read."""


class ClaimTable(Protocol):
    """The claims of the runs of a store, one record for each run that has any."""

    def locked(self) -> AbstractContextManager[None]:
        """Lock the table against every other process while this lasts. Raises StateUnwritable."""

    def records(self) -> list[ClaimRecord]:
        """List the records that can be read, by the ids of their runs."""

    def write(self, record: ClaimRecord) -> None:
        """Add or replace the record of a run. Raises StateUnwritable."""

    def remove(self, run_id: str) -> None:
        """Remove the record of a run if there is one."""


class ContentStore(Protocol):
    """Copies of files by SHA-256, shared by all runs of a store. Threads may use it at the same time.

    A copy may rot where it lies: it counts only once its digest has been compared.
    """

    def has(self, sha256: str) -> bool:
        """Say whether there is a copy, without proving it."""

    def defect(self, sha256: str) -> str:
        """Prove a copy. Return why it cannot be used (missing, unreadable, damaged), or '' if it can."""

    def has_room(self, size: int) -> bool:
        """Say whether so many bytes more may be kept; if so, they count as kept from now on."""

    def publish(self, staged: Iterable[tuple[str, str]]) -> None:
        """Take finished files in, as pairs of path and digest; durable on return. Raises OSError.

        The files are in the staging directory of a run; they are gone from there afterwards. A copy that is there
        already is replaced.
        """

    def open(self, sha256: str) -> int:
        """Open a copy for reading; return a descriptor of a regular file at its beginning. Raises OSError.

        Nothing is proved: who reads it takes the digest. The caller closes it.
        """

    def read(self, sha256: str) -> bytes | None:
        """Return a small copy whole; None if it is missing, unreadable or damaged."""

    def digests(self) -> Iterator[str]:
        """Yield the digest of every copy, in order."""

    def pinned(self) -> AbstractContextManager[None]:
        """Protect every copy from `collect` of all processes while this lasts."""

    def collect(self, find_live: Callable[[], Container[str]], *, dry_run: bool) -> tuple[int, int]:
        """Remove the copies that are not live; return how many, and how many bytes. Raises BlockingIOError while pinned.

        `find_live` is called while nothing can be published: a run that begins, seals and completes meanwhile has to
        wait before it seals, so none can refer to a copy that the answer does not name.
        """


class RunFiles(Protocol):
    """The files of a run owned by this process, as far as steps and artifacts have to do with them."""

    @property
    def directory(self) -> str:
        """The directory that steps are told about (RERAIL_RUN_DIR); '' if the run has none."""

    def staging(self) -> AbstractContextManager[str]:
        """Make an empty local directory for copies that are not finished, from which they are published.

        While this lasts the content store is pinned. Left-overs of earlier invocations are gone.
        """

    def quarantine(self, path: str, name: str) -> str:
        """Move the file or directory at a real path into quarantine, under this name. Raises OSError.

        Return its new place, as people find it: relative to the run's directory if it has one. Durable on return, and
        at every moment in one place or the other. Threads may call it at the same time.
        """

    def save_results(self, name: str, lines: Iterable[bytes]) -> str:
        """Keep the results of a map, whole or not at all; return where steps find them as a file. Raises OSError."""

    def open_log(self, name: str) -> int:
        """Open the log with that name to append to it; return a descriptor, which the caller closes. Raises OSError."""


class RunJournal(Protocol):
    """The journal of a run owned by this process, and the snapshots of it."""

    @property
    def degraded(self) -> str:
        """Why no new work should start although the last append succeeded (the reserve was used up), or ''."""

    def append(self, events: Sequence[Event]) -> None:
        """Append events, numbered on from the last; all of them are durable on return.

        Raises StateUnwritable if that failed. Then none of them may be acknowledged, but they stay pending:
        the next append (of nothing, even) tries to write them again.
        """

    def save_snapshot(self, checkpoint: Checkpoint, *, keep: int, milestone: bool = True) -> None:
        """Save a cache of the state at the last synced record, keeping so many older ones. Raises OSError.

        One that is no milestone says no more than how far steps are: it is not worth keeping once it is replaced.
        """

    def freeze_pipeline(self, text: bytes) -> None:
        """Keep a copy of the pipeline text in use, durable on return."""

    @property
    def position(self) -> tuple[int, int]:
        """Where the durable part of the journal ends, for `find`."""

    def find(self, tags: Collection[str], step: str, since: tuple[int, int] = (0, 0)) -> Iterator[Event]:
        """Yield the durable records of these kinds about a step, from a position on, oldest first."""


class RunWriter(RunJournal, RunFiles, Protocol):
    """A run owned by this process: the only handle that can change it."""

    @property
    def recording(self) -> LoadedRun:
        """The run as it was proved when ownership was taken. The opening events of this invocation follow it."""

    @property
    def identity(self) -> str:
        """The name of this very copy of the run: the same after a move, another for a copy."""

    @property
    def former_identity(self) -> str:
        """The identity until this process took the run over, if a copy had the same one (hard links); else ''."""

    @property
    def identity_file(self) -> str:
        """The local file whose device and inode are the identity; '' if it is not made of these.

        It is noted with the traces of attempts, to tell later whether the run is still where it was.
        """

    @property
    def inbox(self) -> Inbox:
        """Messages from people and other processes."""

    def close(self) -> None:
        """Give up ownership. Idempotent."""


class RunReader(Protocol):
    """Reading of the runs of a store: takes no lock, changes nothing, works beside a live owner.

    Every method that takes the id of a run raises RunNotFound if there is none, but for `header`, `identity` and `logs`.
    """

    def runs(self) -> list[str]:
        """Return the ids of all runs, in no particular order."""

    def index(self) -> SummaryIndex:
        """Load the summaries of runs at rest."""

    def header(self, run_id: str) -> RunHeader | None:
        """Return the header of a run, without reading its journal if possible; None if it cannot be read."""

    def read(self, run_id: str) -> LoadedRun:
        """Read and prove a run. Raises StateDamaged, StateUnreadable, FormatTooNew."""

    def history(self, run_id: str) -> Iterable[tuple[int, Event]]:
        """Return all records from the first, in order."""

    def find(self, run_id: str, tags: Collection[str], step: str) -> Iterator[Event]:
        """Yield the records of these kinds about a step, oldest first."""

    def pipeline(self, run_id: str, sha256: str) -> bytes:
        """Return the frozen pipeline text with that digest; the newest one if the digest is ''."""

    def stamp(self, run_id: str) -> str:
        """Return a text that differs once the journal has changed: cheap enough to be asked ten times a second."""

    def logs(self, run_id: str) -> RunLogs:
        """Return the logs of a run; they are empty if there is no such run."""

    def results(self, run_id: str, name: str) -> bytes:
        """Return the results of a map that a writer has saved. Raises OSError."""

    def ownership(self, run_id: str) -> Ownership:
        """Return the present or last owner, as the store has it on record."""

    def is_owned(self, run_id: str) -> bool:
        """Prove whether a process owns the run now, which `ownership` only concludes. May lock for an instant."""

    def identity(self, run_id: str) -> str:
        """Return the identity of a run, as its writer has it; '' if there is no such run."""


class Upkeep(Protocol):
    """Maintenance of a store."""

    def size(self, run_id: str = "") -> int:
        """Return the bytes that a run takes, or the whole store, as far as they can be counted."""

    def verify(self, run_id: str) -> Proof:
        """Prove a run from its first record, and that its caches say the same. Changes nothing.

        Raises StateDamaged, StateUnreadable, FormatTooNew, RunNotFound.
        """

    def repair(self, run_id: str) -> Repair:
        """Make a damaged run resumable from the newest state that can be proved; keep the damaged files.

        Raises StateDamaged if nothing can be proved, RunBusy while its owner is alive, FormatTooNew, RunNotFound.
        """


class Store(RunReader, Upkeep, Protocol):
    """The place of runs: all of their state is here, and none of it anywhere else."""

    @property
    def url(self) -> str:
        """The name of the store in messages and for `--store`; without a password."""

    @property
    def root(self) -> str:
        """The local directory that holds all state, in which no artifact may be; '' if there is none."""

    @property
    def base_dir(self) -> str:
        """The directory that relative paths in run headers start from; '' if all paths are absolute."""

    @property
    def content(self) -> ContentStore:
        """Copies of artifacts, shared by all runs."""

    @property
    def claims(self) -> ClaimTable:
        """The paths that live runs may write."""

    def directory(self, run_id: str) -> str:
        """Return the local directory of a run, whether it exists or not, to tell people and steps; '' if it has none."""

    def results_path(self, run_id: str, name: str) -> str:
        """Where steps find the results of a map as a file, whether they are there or not; '' if nowhere."""

    def create(self, header: RunHeader, pipeline: bytes) -> RunWriter:
        """Create a run and own it from the start; durable on return. Raises RunExists, BadRunId, StateUnwritable."""

    def own(self, run_id: str) -> RunWriter:
        """Take a run over. Raises RunBusy while its owner is alive, RunNotFound, StateDamaged, FormatTooNew."""

    def send(self, run_id: str, message: ApprovalGiven) -> None:
        """Leave a message for the process that owns a run; durable on return. Raises StateUnwritable, RunNotFound."""

    def delete(self, run_id: str, check: Callable[[], None] = lambda: None) -> None:
        """Remove a run. Raises RunBusy while its owner is alive, RunNotFound.

        `check` is called once no other process can change the run; if it raises, nothing is removed.
        """


class ProcessWork(msgspec.Struct, frozen=True, kw_only=True):
    """A child process to run."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}  # in addition to the attempt's
    files: dict[str, bytes] = {}  # by path, to be there before it starts and gone afterwards
    label: str = ""  # what people call it


class Attempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One try at a unit: everything a kind and an executor need."""

    unit: UnitId
    number: int
    action: Action
    timeout: float | None
    cwd: str = ""
    env: dict[str, str] = {}  # what is added to rerail's own environment
    values: dict[str, str] = {}  # what the script of a `run` step refers to; any size
    log_name: str = ""  # of its logs, without the ending
    checks: tuple[ProcessWork, ...] = ()  # that must pass after it
    capture: dict[str, str] = {}  # outputs taken from stdout, and in which form
    channel: str = ""  # path prefix of the files through which it hands values out
    item: Any = msgspec.UNSET  # what a function of this process is called with, in a map
    most_captured: int = 0  # bytes of stdout that may be captured; 0: as much as an output may have


class FunctionWork(msgspec.Struct, frozen=True, kw_only=True):
    """A function to call in this process; it returns the outputs."""

    function: Callable[[], dict[str, Any] | None]


Work = ProcessWork | FunctionWork


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How an attempt ended. Not an event yet: whether it is repeated is the engine's decision."""

    unit: UnitId
    status: Literal["ok", "failed", "stopped"]
    duration: float
    type: str = ""
    message: str = ""
    exit_code: int | None = None
    signal: str | None = None
    retryable: bool = True
    output: str = ""
    stderr_tail: str = ""
    traceback: str = ""
    left: tuple[str, ...] = ()  # commands of processes that the attempt left running, which were ended
    outputs: dict[str, Any] = {}
    metrics: Metrics = {}
    models: dict[str, Metrics] = {}  # what of them is a certain model's
    warnings: tuple[str, ...] = ()  # what was wrong and did not fail it


class Kind(Protocol):
    """The meaning of an action: the work of its attempts."""

    def work(self, attempt: Attempt) -> Work:
        """Return the work of an attempt. Raises ValueError if it can never be done."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Abilities of an executor beyond running attempts. A caller that needs one asks for it first."""

    shares_files: bool = False  # attempts see the work directory, the run directory and their channels at our paths
    measures: bool = False  # what an attempt uses is known while it runs, from its channel
    suspends: bool = False  # attempts can be stopped and continued, as by Ctrl-Z
    guards: bool = False  # attempts end by themselves if this process dies, however that happens


class OutputListener(Protocol):
    """Listener to the output of attempts while they run; called by the thread that waits for them."""

    def take(self, unit: UnitId, attempt: int, stream: str, data: bytes) -> None:
        """Take a piece of the masked output of an attempt, empty at the end of the stream. Never blocks, never raises."""


class ExecutorSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of an executor, for one invocation of a run."""

    url: str  # as it was named: `local`, or a scheme and whatever follows it
    open_log: Callable[[str], int]  # as that of `RunFiles`
    concurrent: bool  # whether several attempts may run at once
    environ: Mapping[str, str]  # what every attempt inherits
    mask: Mask  # hides secrets in what attempts print
    tag: str  # what every process of this invocation has in its environment
    listener: OutputListener | None = None  # is told all that goes into the logs


class Executor(Protocol):
    """The place where attempts run. It calls functions (`FunctionWork`) in this process, wherever it runs the others."""

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of this executor, the same from its start to its end."""

    @property
    def signal_pipes(self) -> tuple[int, int]:
        """Two descriptors: guards count the signals whose numbers are written to the first, and write the number with
        which this process must leave to the second. -1 each without the capability `guards`.
        """

    def guard(self) -> None:
        """Start the guards if they do not run yet, before the first attempt. Raises OSError. Nothing without `guards`."""

    def start(self, attempt: Attempt, work: Work) -> None:
        """Start an attempt. Never raises: a failure to start is an outcome."""

    def wait(self, patience: Callable[[], float]) -> list[Outcome]:
        """Return the outcomes that have arrived; if there are none, wait for one so many seconds, or until woken."""

    def wake(self) -> None:
        """Make a `wait` return now. Safe in a signal handler."""

    def stop(self, grace: float, spare: Container[str] = ()) -> None:
        """Stop all attempts but those of the steps to be spared: ask, then after `grace` seconds kill.

        Their outcomes arrive through `wait`.
        """

    def suspend(self, number: int) -> None:
        """Send SIGSTOP or SIGCONT to all attempts. Only with the capability `suspends`."""

    def shift_deadlines(self, seconds: float) -> None:
        """Prolong all time limits: so long no attempt could run."""

    def close(self) -> None:
        """Release everything. No process that it started is alive afterwards."""


class FileCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a background file check: inputs before a unit starts, artifacts after its success."""

    unit: UnitId
    purpose: Literal["inputs", "artifacts", "confirm", "clear"]
    artifacts: tuple[ArtifactRecord, ...] = ()
    found: dict[str, str] = {}  # what was restored, and what was wrong there
    quarantined: dict[str, str] = {}
    inputs: tuple[InputRecord, ...] = ()
    problem: str = ""  # what is not as declared
    unkept: bool = False  # the problem is not the step's: the place for copies of artifacts cannot be used
    warnings: tuple[str, ...] = ()
    given_up: bool = False


class ArtifactWorker(Protocol):
    """Background worker that checks the files of steps while others run."""

    def examine(self, unit: UnitId, declared: Sequence[Artifact]) -> None:
        """Take the digests of the inputs of a unit."""

    def seal(self, unit: UnitId, declared: Sequence[Artifact], since: datetime | None = None) -> None:
        """Make the artifacts of a unit durable, take their digests, check and keep them."""

    def reverify(self, unit: UnitId, step: Step, records: Sequence[ArtifactRecord], superseded: Container[str]) -> None:
        """Check the artifacts of a reused step again, now that other steps have run; restore them if possible.

        Files at superseded paths belong to a later step by now.
        """

    def quarantine(self, unit: UnitId, step: Step, records: Sequence[ArtifactRecord], superseded: Container[str]) -> None:
        """Quarantine the broken artifacts of a step that is going to run again."""

    def finished(self) -> list[FileCheck]:
        """Return the checks finished since the last call. The worker wakes the executor for each."""

    def slow(self, now: float) -> list[str]:
        """Return a line for each check that takes long, now and then."""

    def give_up(self) -> None:
        """Cancel all checks; those in progress come back as given up."""

    def close(self) -> None:
        """Release everything."""


class Clock(Protocol):
    """Source of time, which tests can hold."""

    def now(self) -> datetime:
        """Return wall-clock time with its zone: for people, never for durations."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""


class Reporter(Protocol):
    """Display of events for people or programs. Called only once an event is durable."""

    def show(self, seq: int, event: Event, state: RunState) -> None:
        """Show one event; `state` includes it and may include later ones of the same batch."""

    def warn(self, message: str) -> None:
        """Say something that is not an event."""
