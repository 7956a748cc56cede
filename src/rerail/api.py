"""The composition root: joins pipeline, store, kinds, executor and engine. The command line is its first client.

A new run and a resumed one go through the same `_drive`; they differ only in the state they start from.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from rerail import processes
from rerail.core.checkpoint import Checkpoint, checkpoint_of
from rerail.core.events import FORMAT, RunResumed, RunStarted, StepMarked
from rerail.core.model import Pipeline, RunHeader, RunOptions
from rerail.core.params import resolve
from rerail.core.plan import Changes, Plan, plan
from rerail.core.state import RunState
from rerail.errors import PipelineChanged, PipelineInvalid, UsageError
from rerail.ports import Recording, Reporter, RunLog, Store
from rerail.version import VERSION

Functions = Mapping[str, Callable[[], dict[str, Any] | None]]


class StartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a new run is to be."""

    pipeline_path: str
    params: dict[str, Any] = {}
    labels: dict[str, str] = {}
    run_id: str | None = None
    options: RunOptions = RunOptions()


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A run that exists, with the plan for going on. Nothing was changed to make it."""

    run_id: str
    recording: Recording
    pipeline: Pipeline
    text: bytes
    plan: Plan
    notices: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """Whether there is nothing to do."""
        return self.recording.state.status == "completed" and all(
            decision.decision == "reuse" for decision in self.plan.decisions
        )


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How a life of a run ended; `end` is the engine's word for it."""

    run_id: str
    end: Any
    state: RunState


def load(path: str) -> tuple[Pipeline, bytes]:
    """A pipeline and its text; raises PipelineInvalid."""
    from rerail.loaders.yaml import load_pipeline, read_pipeline_file

    text = read_pipeline_file(path)
    return load_pipeline(text, path), text


def new_run_id(now: datetime) -> str:
    """Sortable by time to the millisecond, readable; the random end keeps simultaneous starts apart."""
    import secrets

    alphabet = "abcdefghjkmnpqrstvwxyz"
    tail = "".join(secrets.choice(alphabet) for _ in range(5))
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03d}{tail}"


def params_of(pipeline: Pipeline, given: Mapping[str, Any]) -> dict[str, Any]:
    """The params of a run; raises PipelineInvalid with all that is wrong with those given."""
    values, problems = resolve(pipeline.params, given)
    if problems:
        raise PipelineInvalid(problems, hint="rerail run PIPELINE -p NAME=VALUE")
    return values


def start(
    store: Store,
    request: StartRequest,
    reporters: Sequence[Reporter] = (),
    *,
    base_dir: str = "",
    functions: Functions | None = None,
) -> Result:
    """Start a new run and drive it to the end of this life."""
    pipeline, text = load(request.pipeline_path)
    return start_pipeline(store, pipeline, text, request, reporters, base_dir=base_dir, functions=functions)


def start_pipeline(  # noqa: PLR0913 - the composition root takes the parts
    store: Store,
    pipeline: Pipeline,
    text: bytes,
    request: StartRequest,
    reporters: Sequence[Reporter] = (),
    *,
    base_dir: str = "",
    functions: Functions | None = None,
) -> Result:
    """Start a run of a pipeline that is already loaded."""
    now = datetime.now(UTC)
    path = os.path.abspath(request.pipeline_path)
    header = RunHeader(
        format=FORMAT,
        run_id=request.run_id or new_run_id(now),
        pipeline=pipeline.name,
        pipeline_path=_portable(path, base_dir),
        work_dir=_portable(os.path.dirname(path), base_dir),
        created_at=now.isoformat().replace("+00:00", "Z"),
        rerail=VERSION,
        params=params_of(pipeline, request.params),
        labels={**pipeline.labels, **request.labels},
    )
    log = store.create(header, text)
    try:
        opening = RunStarted(
            at=now,
            owner=processes.identity(now),
            pipeline_sha256=_sha256(text),
            options=request.options,
            steps=len(pipeline.steps),
        )
        decisions = plan(pipeline, RunState())
        return _drive(log, pipeline, decisions, opening, reporters, _Place(base_dir, functions))
    finally:
        log.close()


def prepare(store: Store, run_id: str, *, base_dir: str = "", changes: Changes = "rerun") -> Prepared:
    """Read a run and plan how it would go on. Changes nothing. Raises PipelineChanged under `refuse`."""
    recording = store.read(run_id)
    return _prepare(store, recording, base_dir, changes)


def _prepare(store: Store, recording: Recording, base_dir: str, changes: Changes) -> Prepared:
    header = recording.header
    notices = list(recording.notices)
    path = _actual(header.pipeline_path, base_dir)
    if os.path.lexists(path):
        pipeline, text = load(path)
    else:
        from rerail.loaders.yaml import load_pipeline

        text = store.pipeline(header.run_id, recording.state.pipeline_sha256)
        pipeline = load_pipeline(text, path)
        notices.append(f"{path} is gone; the copy the run was last driven with is used")
    decisions = plan(pipeline, recording.state, changes)
    if changes == "refuse" and (decisions.changed or decisions.removed):
        edited = ", ".join((*decisions.changed, *decisions.removed))
        raise PipelineChanged(
            f"{path} was edited since run {header.run_id} started: {edited}",
            hint=f"rerail resume {header.run_id} --changes rerun|keep",
        )
    return Prepared(
        run_id=header.run_id,
        recording=recording,
        pipeline=pipeline,
        text=text,
        plan=decisions,
        notices=tuple(notices),
    )


def resume(  # noqa: PLR0913 - the composition root takes the parts
    store: Store,
    run_id: str,
    reporters: Sequence[Reporter] = (),
    *,
    options: RunOptions | None = None,
    base_dir: str = "",
    changes: Changes = "rerun",
    functions: Functions | None = None,
    pipeline: Pipeline | None = None,
) -> Result:
    """Take a run over and drive it on. `pipeline` is for pipelines that no file declares."""
    log = store.own(run_id)
    try:
        recording = log.recording
        if pipeline is None:
            ready = _prepare(store, recording, base_dir, changes)
        else:
            text = store.pipeline(run_id, recording.state.pipeline_sha256)
            ready = _of_program(recording, pipeline, text, changes)
        _end_leftovers(recording.header, reporters)
        now = datetime.now(UTC)
        if recording.state.status == "pending":
            opening: RunStarted | RunResumed = RunStarted(
                at=now,
                owner=processes.identity(now),
                pipeline_sha256=_sha256(ready.text),
                options=options or recording.state.options,
                steps=len(ready.pipeline.steps),
            )
        else:
            opening = RunResumed(
                at=now,
                owner=processes.identity(now),
                pipeline_sha256=_sha256(ready.text),
                options=options or recording.state.options,
                steps=len(ready.pipeline.steps),
                notices=ready.notices,
            )
        if opening.pipeline_sha256 != (recording.state.pipeline_sha256 or _sha256(store.pipeline(run_id, ""))):
            log.freeze_pipeline(ready.text)
        return _drive(log, ready.pipeline, ready.plan, opening, reporters, _Place(base_dir, functions))
    finally:
        log.close()


def _of_program(recording: Recording, pipeline: Pipeline, text: bytes, changes: Changes) -> Prepared:
    return Prepared(
        run_id=recording.header.run_id,
        recording=recording,
        pipeline=pipeline,
        text=text,
        plan=plan(pipeline, recording.state, changes),
        notices=recording.notices,
    )


def mark(store: Store, run_id: str, step: str, status: Any, by: str) -> None:
    """Record what a person says about a step of a run that nobody drives."""
    log = store.own(run_id)
    try:
        if log.recording.state.unit((step, None)).status == "running":
            # Recorded as running by a life that is over: say so first, then what the person says.
            raise UsageError(f"{step} is still recorded as running", hint=f"rerail resume {run_id}")
        log.append([StepMarked(at=datetime.now(UTC), step=step, status=status, by=by)])
    finally:
        log.close()


class _Place(msgspec.Struct, frozen=True):
    base_dir: str
    functions: Functions | None


def _drive(
    log: RunLog,
    pipeline: Pipeline,
    decisions: Plan,
    opening: RunStarted | RunResumed,
    reporters: Sequence[Reporter],
    place: _Place,
) -> Result:
    import random

    from rerail.engine.attempts import Job
    from rerail.engine.clock import SystemClock
    from rerail.engine.recorder import Recorder
    from rerail.engine.runner import Runner, Tools
    from rerail.engine.signals import Signals
    from rerail.executors.channels import Channels
    from rerail.executors.local import LocalExecutor
    from rerail.kinds.builtin import builtin_kinds

    header = log.recording.header
    name, value = _mark(header)
    environment = {name: value, "RERAIL_RUN_ID": header.run_id, "RERAIL_RUN_DIR": getattr(log, "path", "")}
    clock, channels = SystemClock(), Channels(value)
    executor = LocalExecutor(log.open_log, parallel=opening.options.parallel, environ=os.environ)
    recorder = Recorder(log, header, pipeline, reporters, clock)
    job = Job(
        header=header,
        pipeline=pipeline,
        plan=decisions,
        options=opening.options,
        work_dir=_actual(header.work_dir, place.base_dir),
        environment=environment,
        base_env=os.environ,
        channel=channels.of,
    )
    kinds = builtin_kinds(place.functions or {})
    with Signals(executor.wake) as signals:
        tools = Tools(executor=executor, kinds=kinds, clock=clock, dice=random.random, signals=signals)
        try:
            end = Runner(job, tools, recorder).drive(opening)
        finally:
            executor.close()
            channels.close()
    return Result(run_id=header.run_id, end=end, state=recorder.state)


def _mark(header: RunHeader) -> tuple[str, str]:
    """What every process of this run bears in its environment, wherever the run directory is moved."""
    return "RERAIL_MARK", f"{header.run_id}@{header.created_at}"


def _end_leftovers(header: RunHeader, reporters: Sequence[Reporter]) -> None:
    """End what the previous life left running: it is never adopted, and never runs beside its successor."""
    ended = processes.end_marked("=".join(_mark(header)))
    for reporter in reporters if ended else ():
        reporter.warn(f"ended {ended} process{'es' if ended > 1 else ''} left over from the previous life")


def checkpoint(store: Store, recording: Recording) -> Checkpoint:
    """The state of a run as checkpoint.json tells it."""
    from rerail.loaders.yaml import load_pipeline

    header = recording.header
    try:
        pipeline = load_pipeline(store.pipeline(header.run_id, recording.state.pipeline_sha256), header.pipeline_path)
    except PipelineInvalid:
        pipeline = Pipeline(name=header.pipeline, steps=())  # not from a file, or from another version's
    return checkpoint_of(header, pipeline, recording.state)


def _portable(path: str, base_dir: str) -> str:
    """Relative to the directory that holds the state where it is inside, so that both can move together."""
    if base_dir and os.path.commonpath([os.path.abspath(base_dir), path]) == os.path.abspath(base_dir):
        return os.path.relpath(path, base_dir)
    return path


def _actual(path: str, base_dir: str) -> str:
    return os.path.normpath(os.path.join(base_dir, path)) if base_dir else path


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
