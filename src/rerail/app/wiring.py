"""Wiring of an invocation: executor, kinds, channels, clock, signals, and the engine that uses them.

Imported when something is about to run: commands that only read start without it.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rerail import processes, registry
from rerail.adapters import git, item_sources, regex
from rerail.adapters.clock import LocalZone, SystemClock
from rerail.app.execution import Functions, InvocationRequest, RunOutcome
from rerail.app.traces import invocation_of, process_tag
from rerail.artifacts import paths
from rerail.artifacts.worker import Contested, ThreadedArtifactWorker
from rerail.core.events import Event, RunResumed, RunStarted, StepCompleted, StepFailed, StepInterrupted, StepStarted
from rerail.core.expressions.language import Scope
from rerail.core.inflight import in_flight
from rerail.core.masking import SHORTEST, Mask
from rerail.core.model import Map, Pipeline, Source, every_step
from rerail.core.plan import Plan
from rerail.core.state import RunState
from rerail.core.values import Progress, Usage
from rerail.engine.recorder import Recorder
from rerail.engine.runner import Runner
from rerail.engine.signals import Signals
from rerail.engine.spec import RunSpec, Toolbox, attempt_name
from rerail.engine.stall_monitor import StallMonitor
from rerail.errors import UsageError
from rerail.executors.channels import Channels
from rerail.kinds.builtin import ACTIONS, builtin_kinds
from rerail.ports import Capabilities, ContentStore, Executor, ExecutorSetup, Inbox, Kind, Reporter, RunWriter

RUN_DIR = "RERAIL_RUN_DIR"  # the directory of the run, in the environment of its steps


class ExecuteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to execute an owned run: that for the invocation, and the findings of its checks."""

    invocation: InvocationRequest
    functions: Functions
    mask: Mask
    files: paths.ProjectPaths
    content: ContentStore
    contested: Contested = lambda _paths, _since: ""
    restored: tuple[Event, ...] = ()
    superseded: frozenset[str] = frozenset()


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


def is_wide(pipeline: Pipeline, parallel: int) -> bool:
    """Return whether several attempts may run at once."""
    if parallel > 1 or not pipeline.has_controllers:
        return parallel > 1
    wide = (step.action.parallel or parallel for _, step in every_step(pipeline) if isinstance(step.action, Map))
    return max(parallel, *wide, 1) > 1


def check_plugins(request: InvocationRequest) -> None:
    """Raise UsageError for an executor or a kind there is not, before a run is created or taken over for it."""
    registry.find_executor(request.executor)
    chosen_kinds(request.kinds)


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
    request: ExecuteRequest,
) -> RunOutcome:
    """Execute an owned run to the end of this invocation."""
    clock, header = SystemClock(), log.recording.header
    tags = (process_tag(log), f"invocation-{os.urandom(8).hex()}")
    channels = _channels(log, opening, tags[0])
    _warn_of_short_secrets(request.mask, reporters)
    if not channels.found:
        _warn_of_lost_costs(log.recording.state, pipeline, reporters)
    executor = _executor(log, pipeline, opening, tags[1], request)
    spec = _spec(log, pipeline, decisions, opening, tags, channels, executor.capabilities, request)
    reporters = [*reporters, DropWhenDurable(channels, log.inbox)]
    recorder = Recorder(log, header, pipeline, reporters, clock, request.mask)
    worker = ThreadedArtifactWorker(request.files, request.content, log, request.mask, executor.wake, request.contested)
    heard, leave = _guarded(executor)
    with Signals(executor, heard) as signals:
        tools = _tools(executor, worker, signals, clock, log.inbox, request)
        recorded = False
        try:
            with StallMonitor(recorder, clock, signals, leave):
                result = Runner(spec, tools, recorder).run(_with_death(opening, channels))
            recorded = result.lost is None
            if recorded:
                log.inbox.clear()
        finally:
            worker.close()
            signals.detach()
            executor.close()
            channels.close(recorded=recorded)
    if result.lost is not None:
        result.lost.message = request.mask.text(result.lost.message)
    return RunOutcome(run_id=header.run_id, end=request.mask.struct(result), state=recorder.state)


def _channels(log: RunWriter, opening: RunStarted | RunResumed, tag: str) -> Channels:
    """Return the channels of this invocation, having found those of the last one."""
    header = log.recording.header
    previous = invocation_of(header, log.recording.state.invoked_at)
    return Channels(tag, invocation_of(header, opening.at), previous, log.identity_file)


def _executor(
    log: RunWriter, pipeline: Pipeline, opening: RunStarted | RunResumed, tag: str, request: ExecuteRequest
) -> Executor:
    """Make the executor; raise UsageError if the pipeline has steps that it cannot run."""
    name = request.invocation.executor
    setup = ExecutorSetup(
        url=name,
        open_log=log.open_log,
        concurrent=is_wide(pipeline, opening.options.parallel),
        environ={name: value for name, value in os.environ.items() if name != RUN_DIR},  # of a run around this one
        mask=request.mask,
        tag=tag,
        listener=request.invocation.listener,
    )
    executor = registry.find_executor(name)(setup)
    try:
        check_shared(pipeline, name, executor.capabilities)
    except UsageError:
        executor.close()
        raise
    return executor


def _spec(
    log: RunWriter,
    pipeline: Pipeline,
    decisions: Plan,
    opening: RunStarted | RunResumed,
    tags: tuple[str, str],
    channels: Channels,
    can: Capabilities,
    request: ExecuteRequest,
) -> RunSpec:
    """Return the specification of the invocation for the engine."""
    header = log.recording.header
    environment = {processes.MARKS: processes.marks(*tags), "RERAIL_RUN_ID": header.run_id}
    if log.directory:
        environment[RUN_DIR] = log.directory
    return RunSpec(
        header=header,
        pipeline=pipeline,
        plan=decisions,
        options=opening.options,
        work_dir=request.files.work_dir,
        environment=environment,
        base_env=os.environ,
        channel=channels.of,
        left_by=channels.left_by,
        seen=channels.seen if can.measures else _unmeasured,
        mask=request.mask,
        execute=request.invocation.execute,
        restored=request.restored,
        superseded=request.superseded,
    )


def _guarded(executor: Executor) -> tuple[int, int]:
    """Start the executor's guard where steps are our only children; return its signal pipes, or -1 for each.

    It is to count signals before the first process, too.
    """
    if not (processes.only_steps and executor.capabilities.guards):
        return -1, -1
    with contextlib.suppress(OSError):  # the first process will tell
        executor.guard()
    return executor.signal_pipes


def check_shared(pipeline: Pipeline, executor: str, can: Capabilities) -> None:
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


def _warn_of_short_secrets(mask: Mask, reporters: Sequence[Reporter]) -> None:
    for reporter in reporters:
        for variable in mask.short:
            reporter.warn(
                f"the secret {variable} has fewer than {SHORTEST} characters:"
                " too short to mask without masking everything"
            )


def _warn_of_lost_costs(state: RunState, pipeline: Pipeline, reporters: Sequence[Reporter]) -> None:
    """Warn that costs may be missing: of interrupted attempts only their saved progress is known."""
    interrupted = [unit for unit, known in in_flight(state) if known.items is None]
    counts = state.spent or pipeline.budget or any(known.progress for _, known in in_flight(state))
    if state.status != "running" or not interrupted or not counts:
        return
    for reporter in reporters:
        reporter.warn(
            f"the cost of {interrupted[0]} when it was killed is known only up to the last save:"
            " the machine restarted since, or the run comes from another machine"
        )


def _with_death(opening: RunStarted | RunResumed, channels: Channels) -> RunStarted | RunResumed:
    """Return the first record of an invocation, with the time at which the one before it died."""
    if not isinstance(opening, RunResumed) or channels.died_at is None:
        return opening
    return msgspec.structs.replace(opening, died_at=channels.died_at, died_after=channels.died_after)


def _tools(
    executor: Executor,
    worker: ThreadedArtifactWorker,
    signals: Signals,
    clock: SystemClock,
    inbox: Inbox,
    request: ExecuteRequest,
) -> Toolbox:
    """Return the tools of the engine: everything that is not a decision."""

    def items(source: Source, scope: Scope) -> Any:
        return item_sources.read(source, scope, request.files.work_dir, lambda: bool(signals.received))

    return Toolbox(
        executor=executor,
        worker=worker,
        kinds=builtin_kinds(request.functions) | chosen_kinds(request.invocation.kinds),
        clock=clock,
        zone=LocalZone(),
        random=random.random,
        signals=signals,
        head=git.head,
        work_tree=git.work_tree,
        uncommitted=git.uncommitted,
        find=regex.found,
        source=items,
        ask=request.invocation.ask,
        take_messages=inbox.take,
    )
