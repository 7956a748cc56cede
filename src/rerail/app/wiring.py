"""Wiring of an invocation: executor, kinds, channels, clock, signals, and the engine that uses them.

Imported when something is about to run: commands that only read start without it.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rerail import processes, registry
from rerail.adapters import git, item_sources, regex
from rerail.adapters.clock import LocalZone, SystemClock
from rerail.app.traces import invocation_of, process_tag
from rerail.artifacts import paths
from rerail.artifacts.worker import Contested, ThreadedArtifactWorker
from rerail.core.events import Event, RunResumed, RunStarted, StepCompleted, StepFailed, StepInterrupted, StepStarted
from rerail.core.inflight import in_flight
from rerail.core.masking import SHORTEST, Mask
from rerail.core.model import Map, Pipeline, every_step
from rerail.core.plan import ExecuteOptions, Plan
from rerail.core.state import RunState, name
from rerail.core.values import Progress, Usage
from rerail.engine.recorder import Recorder
from rerail.engine.runner import Runner
from rerail.engine.signals import Signals
from rerail.engine.spec import Ask, RunResult, RunSpec, Toolbox, attempt_name
from rerail.engine.stall_monitor import StallMonitor
from rerail.errors import UsageError
from rerail.executors.channels import Channels
from rerail.kinds.builtin import ACTIONS, builtin_kinds
from rerail.ports import Capabilities, ContentStore, Executor, ExecutorSetup, Inbox, Kind, Reporter, RunWriter


class ExecuteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request of one invocation: its options, files and functions."""

    work_dir: str
    functions: Mapping[str, Callable[..., dict[str, Any] | None]]
    execute: ExecuteOptions
    mask: Mask
    files: paths.ProjectPaths
    content: ContentStore
    mended: tuple[Event, ...] = ()
    spared: frozenset[str] = frozenset()
    ask: Ask | None = None
    executor: str = "local"
    kinds: Mapping[str, str] = {}  # action → the name of the kind that does it instead of the built-in one
    contested: Contested = lambda _paths, _since: ""


class DropWhenDurable:
    """Reporter that removes metrics files and inbox messages once the events made of them are durable."""

    def __init__(self, channels: Channels, inbox: Inbox) -> None:
        self._channels = channels
        self._inbox = inbox

    def show(self, seq: int, event: Event, state: RunState) -> None:  # noqa: ARG002 - it is a reporter
        if isinstance(event, StepCompleted | StepFailed | StepInterrupted):
            if event.metrics:
                self._channels.recorded(attempt_name(event.unit, event.attempt))
        elif isinstance(event, StepStarted):  # after all traces of earlier invocations have been recorded
            self._channels.taken_up()
        self._inbox.clear()

    def warn(self, message: str) -> None:
        pass


class ExecuteResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an invocation, and the state it left."""

    end: RunResult
    state: RunState


def is_wide(pipeline: Pipeline, parallel: int) -> bool:
    """Return whether several attempts may run at once."""
    if parallel > 1 or not pipeline.has_controllers:
        return parallel > 1
    wide = (step.action.parallel or parallel for _, step in every_step(pipeline) if isinstance(step.action, Map))
    return max(parallel, *wide, 1) > 1


def check_plugins(executor: str, kinds: Mapping[str, str]) -> None:
    """Raise UsageError for an executor or a kind there is not, before a run is created or taken over for it."""
    registry.find_executor(executor)
    chosen_kinds(kinds)


def chosen_kinds(names: Mapping[str, str]) -> dict[type, Kind]:
    """Make the kinds that a program chose, by the type of their action. Raises UsageError for one there is not."""
    for action in names:
        if action not in ACTIONS:
            raise UsageError(f"unknown action `{action}`; known: {', '.join(ACTIONS)}", hint="kinds={}")
    return {ACTIONS[action]: registry.find_kind(kind) for action, kind in names.items()}


def execute(
    log: RunWriter,
    pipeline: Pipeline,
    decisions: Plan,
    opening: RunStarted | RunResumed,
    reporters: Sequence[Reporter],
    place: ExecuteRequest,
) -> ExecuteResult:
    """Execute an owned run to the end of this invocation."""
    mark, invocation = process_tag(log), f"invocation-{os.urandom(8).hex()}"
    header, before = log.recording.header, log.recording.state
    channels = Channels(
        mark,
        invocation_of(header, opening.at),
        invocation_of(header, before.invoked_at),
        log.identity_file,
    )
    for reporter in reporters:
        for variable in place.mask.short:
            reporter.warn(
                f"the secret {variable} has fewer than {SHORTEST} characters:"
                " too short to mask without masking everything"
            )
    if not channels.found:
        _say_accounts_are_gone(before, pipeline, reporters)
    clock = SystemClock()
    setup = ExecutorSetup(
        url=place.executor,
        open_log=log.open_log,
        concurrent=is_wide(pipeline, opening.options.parallel),
        environ={name: value for name, value in os.environ.items() if name != "RERAIL_RUN_DIR"},  # of a run around us
        mask=place.mask,
        tag=invocation,
    )
    executor = registry.find_executor(place.executor)(setup)
    can = executor.capabilities
    try:
        reject_unshared(pipeline, place.executor, can)
    except UsageError:
        executor.close()
        raise
    inbox = log.inbox
    recorder = Recorder(
        log, log.recording.header, pipeline, [*reporters, DropWhenDurable(channels, inbox)], clock, place.mask
    )
    marks = {processes.MARKS: processes.marks(mark, invocation)}
    run_dir = {"RERAIL_RUN_DIR": log.directory} if log.directory else {}
    job = RunSpec(
        header=log.recording.header,
        pipeline=pipeline,
        plan=decisions,
        options=opening.options,
        work_dir=place.work_dir,
        environment=marks | {"RERAIL_RUN_ID": header.run_id} | run_dir,
        base_env=os.environ,
        channel=channels.of,
        left_by=channels.left_by,
        seen=channels.seen if can.measures else _unmeasured,
        mask=place.mask,
        execute=place.execute,
        mended=place.mended,
        spared=place.spared,
    )
    worker = ThreadedArtifactWorker(place.files, place.content, log, place.mask, executor.wake, place.contested)
    heard, leave = -1, -1
    if processes.only_steps and can.guards:  # they are to count signals before the first process, too
        heard, leave = executor.signal_pipes
        with contextlib.suppress(OSError):  # the first process will tell
            executor.guard()
    with Signals(executor, heard) as signals:
        tools = msgspec.structs.replace(_tools(executor, worker, signals, clock, place), letters=inbox.take)
        recorded = False
        try:
            with StallMonitor(recorder, clock, signals, leave):
                end = Runner(job, tools, recorder).run(_knowing(opening, channels))
            recorded = end.lost is None
            if recorded:
                inbox.clear()
        finally:
            worker.close()
            signals.detach()
            executor.close()
            channels.close(recorded=recorded)
    if end.lost is not None:
        end.lost.message = place.mask.text(end.lost.message)
    return ExecuteResult(end=place.mask.struct(end), state=recorder.state)


def reject_unshared(pipeline: Pipeline, executor: str, can: Capabilities) -> None:
    """Raise UsageError if a step has files to be looked at, and the executor runs it where they are not ours to see."""
    if can.shares_files:
        return
    for _, step in every_step(pipeline):
        if step.artifacts or step.inputs:
            raise UsageError(
                f"step {step.id} has artifacts or inputs, and the executor {executor} does not share files with rerail",
                hint="run it with the executor `local`",
            )


def _unmeasured(_name: str) -> tuple[Usage, Progress | None]:
    return Usage(), None


def _say_accounts_are_gone(state: RunState, pipeline: Pipeline, reporters: Sequence[Reporter]) -> None:
    """Warn that costs may be missing: of interrupted attempts only their saved progress is known."""
    interrupted = [unit for unit, known in in_flight(state) if known.items is None]
    counts = state.spent or pipeline.budget or any(known.progress for _, known in in_flight(state))
    if state.status != "running" or not interrupted or not counts:
        return
    for reporter in reporters:
        reporter.warn(
            f"the cost of {name(interrupted[0])} when it was killed is known only up to the last save:"
            " the machine restarted since, or the run comes from another machine"
        )


def _knowing(opening: RunStarted | RunResumed, channels: Channels) -> RunStarted | RunResumed:
    """Return the first record of an invocation, with the time at which the one before it died."""
    if not isinstance(opening, RunResumed) or channels.died_at is None:
        return opening
    return msgspec.structs.replace(opening, died_at=channels.died_at, died_after=channels.died_after)


def _tools(
    executor: Executor, worker: ThreadedArtifactWorker, signals: Signals, clock: SystemClock, place: ExecuteRequest
) -> Toolbox:
    return Toolbox(
        executor=executor,
        worker=worker,
        kinds=builtin_kinds(place.functions) | chosen_kinds(place.kinds),
        clock=clock,
        zone=LocalZone(),
        dice=random.random,
        signals=signals,
        head=git.head,
        work_tree=git.work_tree,
        uncommitted=git.uncommitted,
        find=regex.found,
        source=lambda source, scope: item_sources.read(source, scope, place.work_dir, lambda: bool(signals.received)),
        ask=place.ask,
    )
