"""Every error rerail raises on purpose, each with its exit code and the command to type next.

RerailError
├── UsageError                2   the call or the pipeline file is wrong
│   ├── PipelineInvalid
│   ├── BadRunId
│   ├── RunExists
│   └── PipelineChanged
├── RunNotFound               3
├── RunBusy                   4   a live process owns the run
├── WaitStopped             130   a signal ended the wait for a concurrency group; 143 and 129 for other signals
├── RunPausedError            5   resume later
├── StateError                6   state cannot be written or is damaged
│   ├── StateUnwritable
│   ├── StateUnreadable
│   ├── FormatTooNew
│   ├── ArtifactUnreadable
│   └── StateDamaged
│       └── JournalDamaged
└── IllegalEvent             70   a bug in rerail: an event that cannot follow the state

A step that fails is not an exception: it is an event and, at the end, exit code 1.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from typing import NamedTuple

EXIT_STEP_FAILED = 1
SIGNAL_EXIT_BASE = 128


class Diagnostic(NamedTuple):
    """One problem of a pipeline file or of its params, with its place, the line it is in, and the help."""

    message: str
    file: str = ""  # '': of no file
    line: int = 0  # from 1; 0: of the file as a whole
    column: int = 0  # from 1, in characters; 0: of the line as a whole
    end: int = 0  # the column after its last character; 0: unknown
    severity: str = "error"  # or warning
    code: str = "invalid"
    help: str = ""
    source: str = ""  # the line of the file

    @property
    def place(self) -> str:
        """File, line and column, as far as they are known."""
        known = [str(number) for number in (self.line, self.column) if number]
        return ":".join([self.file, *known]) if self.file else ""

    def __str__(self) -> str:
        place = f"{self.place}: " if self.file else ""
        return f"{place}{self.message}{'; ' if self.help else ''}{self.help}"

    def masked(self, mask: Callable[[str], str]) -> Diagnostic:
        """Return it with secrets masked; the columns follow the text that became shorter or longer."""
        source = mask(self.source)
        column, end = self.column, self.end
        if source != self.source:
            column, end = (min(len(mask(self.source[: at - 1])), len(source)) + 1 if at else 0 for at in (column, end))
        return self._replace(message=mask(self.message), help=mask(self.help), source=source, column=column, end=end)


class RerailError(Exception):
    """Error with a message for people; `hint` is the next command."""

    exit_code = 1
    severity = "error"  # shown before the message

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(RerailError):
    """The call is wrong; nothing was created or changed."""

    exit_code = 2


class PipelineInvalid(UsageError):
    """All that is wrong with a pipeline file, or with the params given to it."""

    def __init__(self, diagnostics: Iterable[Diagnostic], *, hint: str = "", secrets: Iterable[str] = ()) -> None:
        self.diagnostics = tuple(diagnostics)
        self.secrets = tuple(secrets)  # names that the file declares: their values are masked before it is shown
        super().__init__("\n".join(self.problems), hint=hint)

    @property
    def problems(self) -> tuple[str, ...]:
        """One line for each problem."""
        return tuple(map(str, self.diagnostics))


class BadRunId(UsageError):
    """A run id that is not on the allow-list."""

    def __init__(self, run_id: str, why: str) -> None:
        super().__init__(
            f"invalid run id {run_id[:70]!r}: {why}",
            hint="rerail run PIPELINE --id ID",
        )


class RunExists(UsageError):
    """A run id that is taken."""

    def __init__(self, run_id: str, *, live: bool = False) -> None:
        state, command = ("is running already", "watch") if live else ("exists already", "resume")
        super().__init__(f"run {run_id!r} {state}", hint=f"rerail {command} {run_id}")
        self.run_id = run_id


class PipelineChanged(UsageError):
    """`--changes refuse` met a pipeline that was edited since the run started."""


class RunNotFound(RerailError):
    """No run of that name in this store."""

    exit_code = 3


class RunBusy(RerailError):
    """The run is owned by a live process."""

    exit_code = 4


class WaitStopped(RerailError):
    """A signal ended the wait for a concurrency group; nothing was executed."""

    exit_code = SIGNAL_EXIT_BASE + signal.SIGINT

    def __init__(self, run_id: str, number: signal.Signals, told: str, *, hint: str = "") -> None:
        super().__init__(f"run {run_id} stopped by {number.name} while {told}; nothing was started", hint=hint)
        self.exit_code = SIGNAL_EXIT_BASE + number


class RunPausedError(RerailError):
    """The run waits for something: a person, money, time."""

    exit_code = 5
    severity = ""  # nothing is wrong


class StateError(RerailError):
    """State on disk that cannot be relied on."""

    exit_code = 6


class StateUnwritable(StateError):
    """The journal could not be written: later events are not recorded."""


class StateUnreadable(StateError):
    """State exists but the operating system would not let us read it."""


class FormatTooNew(StateError):
    """State written by a newer rerail."""


class ArtifactUnreadable(StateError):
    """An artifact or input exists but the operating system would not let us read it: nothing is decided about it."""


class StateDamaged(StateError):
    """State that fails its own proof."""


class JournalDamaged(StateDamaged):
    """A journal that fails its checksum chain before its end."""

    def __init__(self, where: str, offset: int, why: str, *, hint: str = "") -> None:
        super().__init__(f"{where}: damaged at byte {offset}: {why}", hint=hint)
        self.where = where
        self.offset = offset
        self.why = why


class IllegalEvent(RerailError):
    """An event that cannot follow the present state; raised before anything changed."""

    exit_code = 70
