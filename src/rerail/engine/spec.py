"""What is driven, with what, and how that ended."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any, Literal

import msgspec

from rerail.core.events import ApprovalGiven, Event, PauseCause
from rerail.core.expressions.language import Scope
from rerail.core.inflight import AttemptTrace
from rerail.core.masking import Mask
from rerail.core.model import Pipeline, RunHeader, RunOptions, Source
from rerail.core.plan import Changes, Plan
from rerail.core.state import Unit
from rerail.core.values import Progress, Usage
from rerail.engine.signals import Signals
from rerail.errors import StateUnwritable
from rerail.ports import ArtifactWorker, Clock, Executor, Kind

STOP_GRACE = 5.0  # seconds between asking a process to end and ending it

# Patterns and a text: those that are in it, and those that took too long to tell.
Find = Callable[[Sequence[str], str], tuple[frozenset[str], tuple[str, ...]]]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a person said to a question; `approved` is None if he would not say."""

    approved: bool | None
    by: str = ""
    reason: str = ""


# The name of a step, its question, and whether there is something more urgent than an answer.
Ask = Callable[[str, str, Callable[[], bool]], Answer]


def unit_name(unit: Unit) -> str:
    """What the files of a unit are called, whatever its item is."""
    step, item = unit
    path = step.replace("/", "~")
    return path if item is None else f"{path}.{hashlib.sha256(item.encode()).hexdigest()[:16]}"


def attempt_name(unit: Unit, number: int) -> str:
    """What the files of an attempt are called."""
    return f"{unit_name(unit)}.{number}"


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be driven, and how."""

    header: RunHeader
    pipeline: Pipeline
    plan: Plan
    options: RunOptions
    work_dir: str
    mask: Mask
    environment: dict[str, str]  # of every attempt, in addition to rerail's own
    base_env: Mapping[str, str]  # rerail's own
    channel: Callable[[str], tuple[str, dict[str, str]]]  # attempt name → channel prefix and its variables
    left_by: Callable[[str], AttemptTrace]  # attempt name → what it left when its life ended
    seen: Callable[[str], tuple[Usage, Progress | None]]  # attempt name → what it has counted by now, and how far it is
    wait: Literal["", "yes", "no"] = ""  # whether to wait for a service, however long, or not at all
    until: str = ""  # the last step that is wanted in this life
    mended: tuple[Event, ...] = ()  # what was done about files before this life began
    spared: frozenset[str] = frozenset()  # paths that completed steps claim and a later one took over
    retry: frozenset[Unit] = frozenset()  # items of the dead letter queue that are to be tried again; empty: all
    changes: Changes = "rerun"  # what is done about sources that are not what they were


class Toolbox(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is driven with."""

    executor: Executor
    workshop: ArtifactWorker
    kinds: Mapping[type, Kind]
    clock: Clock
    zone: tzinfo  # in which services tell times of day
    dice: Callable[[], float]  # uniform in [0, 1)
    signals: Signals
    head: Callable[[str], str]  # the commit a directory is at
    work_tree: Callable[[str], str]  # the work tree a directory is in
    uncommitted: Callable[[str], list[str]]
    find: Find
    source: Callable[[Source, Scope], Any]  # what a map fans out over; raises ListingError, ListingStopped
    ask: Ask | None = None  # asks a person who is there
    letters: Callable[[], Sequence[ApprovalGiven]] = tuple  # what people elsewhere have said since


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """How this life of the run ended."""

    status: Literal["completed", "failed", "interrupted", "paused"]
    reason: str = ""
    signal: signal.Signals | None = None
    lost: StateUnwritable | None = None  # the journal could not be written
    asked: tuple[str, ...] = ()  # steps a person has to judge
    cause: PauseCause = ""  # what a paused run waits for
    until: datetime | None = None  # when that comes by itself
    waiting: tuple[str, ...] = ()  # `approve` steps that nobody has answered
    reached: bool = False  # all that was asked for with `--until` is done
    unrecorded: tuple[str, ...] = ()  # steps whose end could not be recorded

    @property
    def words(self) -> str:
        """What maps, loops and pipelines that go on in the next life are cut off by."""
        return f"a pause ({self.cause})" if self.cause else self.reason or "the end of this life"
