"""Specification of one invocation of a run, the tools it is executed with, and its result."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any, Literal

import msgspec

from rerail.core.events import ApprovalGiven, BudgetKind, Event, PauseCause
from rerail.core.expressions.language import Scope
from rerail.core.inflight import AttemptTrace
from rerail.core.masking import Mask
from rerail.core.model import Pipeline, RunHeader, RunOptions, Source, Step
from rerail.core.plan import ExecuteOptions, Plan
from rerail.core.staleness import fingerprint
from rerail.core.unit_id import UnitId
from rerail.core.values import Progress, Usage
from rerail.engine.signals import Signals
from rerail.errors import StateUnwritable
from rerail.ports import ArtifactWorker, Clock, Executor, Kind

STOP_GRACE = 5.0  # seconds between asking a process to end and ending it

# Patterns and a text → the patterns found in it, and those that took too long to search for.
Find = Callable[[Sequence[str], str], tuple[frozenset[str], tuple[str, ...]]]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of a person to a question; `approved` is None if there was none."""

    approved: bool | None
    by: str = ""
    reason: str = ""


# The name of a step, its question, and whether something is more urgent than an answer → the answer.
Ask = Callable[[str, str, Callable[[], bool]], Answer]


def unit_name(unit: UnitId) -> str:
    """Return the file name of a unit, for items with any characters."""
    step, item = unit
    path = step.replace("/", "~")
    return path if item is None else f"{path}.{hashlib.sha256(item.encode()).hexdigest()[:16]}"


def attempt_name(unit: UnitId, number: int) -> str:
    """Return the file name of an attempt."""
    return f"{unit_name(unit)}.{number}"


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Run to execute: pipeline, plan and options."""

    header: RunHeader
    pipeline: Pipeline
    plan: Plan
    options: RunOptions
    work_dir: str
    mask: Mask
    environment: dict[str, str]  # variables of every attempt, in addition to rerail's own
    base_env: Mapping[str, str]  # rerail's own variables
    channel: Callable[[str], tuple[str, dict[str, str]]]  # attempt name → channel prefix and its variables
    left_by: Callable[[str], AttemptTrace]  # attempt name → traces of an attempt that an earlier invocation left
    seen: Callable[[str], tuple[Usage, Progress | None]]  # attempt name → its usage and progress by now
    execute: ExecuteOptions = ExecuteOptions()
    restored: tuple[Event, ...] = ()  # restored and quarantined files, before anything runs
    superseded: frozenset[str] = frozenset()  # paths of completed steps that a later step has taken over

    def definition(self, step: Step) -> str:
        """Return the fingerprint of a step."""
        return fingerprint(step, self.pipeline.env)


class Toolbox(msgspec.Struct, frozen=True, kw_only=True):
    """Tools that an invocation works with."""

    executor: Executor
    worker: ArtifactWorker
    kinds: Mapping[type, Kind]
    clock: Clock
    zone: tzinfo  # of the times of day in messages of services
    random: Callable[[], float]  # uniform in [0, 1)
    signals: Signals
    head: Callable[[str], str]  # directory → its commit
    work_tree: Callable[[str], str]  # directory → its work tree
    uncommitted: Callable[[str], list[str]]
    find: Find
    source: Callable[[Source, Scope], Any]  # the items of a map; raises ItemListError, ItemListStopped
    ask: Ask | None = None  # the person at the terminal, if there is one
    take_messages: Callable[[], Sequence[ApprovalGiven]] = tuple  # new answers of people elsewhere


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one invocation."""

    status: Literal["completed", "failed", "interrupted", "paused"]
    reason: str = ""
    signal: signal.Signals | None = None
    lost: StateUnwritable | None = None  # the journal could not be written
    cause: PauseCause = ""  # of a pause
    until: datetime | None = None  # when the pause ends by itself
    waiting_for: tuple[str, ...] = ()  # units without an answer, or in doubt
    budget_kind: BudgetKind = ""  # the part of the run's budget that is spent
    reached: bool = False  # the step of `--until` is done
    unrecorded: tuple[str, ...] = ()  # steps whose end could not be recorded

    @property
    def interruption(self) -> str:
        """Why maps, loops and pipelines are interrupted that go on in the next invocation."""
        return f"a pause ({self.cause})" if self.cause else self.reason or "the end of this invocation"
