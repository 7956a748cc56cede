"""The composition root: joins pipeline, store, kinds, executor and engine. The command line is its first client.

A new run and a resumed one go through the same `execute`; they differ only in the state they start from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from rerail.app.claims import PathClaims
from rerail.app.planning import (
    ResumePlan,
    ResumeRequest,
    StartRequest,
    absolute,
    checkpoint,
    header_of,
    load,
    mask_of,
    new_run_id,
    params_of,
    plan_resume,
    prepare,
    refuse_misplaced,
    refuse_secret_header,
    refuse_secret_pipeline,
    refuse_secrets,
    started,
)
from rerail.app.restore import mend, mending_events
from rerail.app.traces import end_processes, ended_words, hiding, present_secrets, process_tag
from rerail.core.events import RunResumed, RunStarted
from rerail.core.model import Pipeline, RunOptions
from rerail.core.plan import PlanOptions
from rerail.core.planner import plan
from rerail.core.state import RunState
from rerail.ports import Reporter, RunWriter, Store

Functions = Mapping[str, Callable[..., dict[str, Any] | None]]


class ResumeObserver:
    """Observer of a resume before anything runs; this one does nothing."""

    def announce(self, ready: ResumePlan) -> None:
        """Take the plan, before anything is touched; again if another one had to be made."""

    def narrate(self, ready: ResumePlan, done: list[Any]) -> None:
        """Take the findings and restores, before anything runs."""


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of an invocation; `end` is the engine's result."""

    run_id: str
    end: Any
    state: RunState


def start(
    store: Store,
    request: StartRequest,
    reporters: Sequence[Reporter] = (),
    *,
    base_dir: str = "",
    functions: Functions | None = None,
) -> RunOutcome:
    """Start a new run and execute it to the end of this invocation."""
    pipeline, text = load(request.pipeline_path)
    return start_pipeline(store, pipeline, text, request, reporters, base_dir=base_dir, functions=functions)


def start_pipeline(
    store: Store,
    pipeline: Pipeline,
    text: bytes,
    request: StartRequest,
    reporters: Sequence[Reporter] = (),
    *,
    base_dir: str = "",
    functions: Functions | None = None,
) -> RunOutcome:
    """Start a run of a pipeline that is already loaded."""
    now = datetime.now(UTC)
    # Loaded to execute: planning and dry runs start without it.
    from rerail.app.wiring import ExecuteRequest, check_plugins, execute
    from rerail.artifacts.paths import place_of

    check_plugins(request.executor, request.kinds)
    mask = mask_of(pipeline, request.options)
    refuse_secret_pipeline(mask, pipeline, text, request.pipeline_path)
    refuse_secrets(mask, {**request.params, **request.labels, "run id": request.run_id})
    params = params_of(pipeline, request.params)
    header = header_of(pipeline, request, params, now, base_dir)
    refuse_secret_header(mask, header, store.directory(header.run_id), absolute(header.work_dir, base_dir))
    files = place_of(absolute(header.work_dir, base_dir), base_dir, store.root)
    refuse_misplaced(pipeline, files, request.pipeline_path)
    claims = PathClaims(store, pipeline, header, files.work_dir, allow_concurrent=request.execute.allow_concurrent)
    log: RunWriter | None = None
    try:
        with claims.claimed("rerail run"):
            log = store.create(header, text)
    except BaseException:
        if log is not None:
            log.close()  # its paths could not be claimed
        raise
    try:
        opening = started(pipeline, text, request.options, now)
        decisions = plan(pipeline, RunState(), options=PlanOptions(start=request.execute.start))
        place = ExecuteRequest(
            work_dir=absolute(log.recording.header.work_dir, base_dir),
            functions=functions or {},
            execute=request.execute,
            mask=mask,
            files=files,
            content=store.content,
            contested=claims.contested,
            ask=request.ask,
            executor=request.executor,
            kinds=request.kinds,
        )
        driven = execute(log, pipeline, decisions, opening, reporters, place)
        return RunOutcome(run_id=log.recording.header.run_id, end=driven.end, state=driven.state)
    finally:
        claims.release()
        log.close()


def resume(
    store: Store,
    run_id: str,
    reporters: Sequence[Reporter] = (),
    request: ResumeRequest | None = None,
    *,
    base_dir: str = "",
    functions: Functions | None = None,
    teller: ResumeObserver | None = None,
) -> RunOutcome | None:
    """Own a run and execute the rest; return None if it is completed and its artifacts are intact."""
    # Loaded to execute: planning and dry runs start without it.
    from rerail.app.wiring import ExecuteRequest, check_plugins, execute

    request, teller = request or ResumeRequest(), teller or ResumeObserver()
    check_plugins(request.executor, request.kinds)
    log = store.own(run_id)
    relying = contextlib.ExitStack()
    try:
        recording = log.recording
        relying.enter_context(store.content.pinned())
        _end_leftovers(log, reporters)  # before any file is checked: they could still write
        ready = plan_resume(store, recording, request, base_dir)
        if ready.finished:
            # The process that completed it died before the last snapshot, or that was damaged.
            if not recording.is_cached:
                with contextlib.suppress(OSError):
                    log.save_snapshot(checkpoint(store, recording), keep=ready.pipeline.checkpoint.history)
            return None
        header, work_dir = recording.header, ready.place.work_dir
        claims = PathClaims(store, ready.pipeline, header, work_dir, allow_concurrent=request.execute.allow_concurrent)
        relying.callback(claims.release)
        with claims.claimed(f"rerail resume {run_id}"):
            pass
        teller.announce(ready)
        options = request.options or (recording.state.options if recording.state.seq else recording.header.options)
        mask = mask_of(ready.pipeline, options)
        with hiding(mask):
            ready, done = mend(ready, store.content, log, teller.announce)
        teller.narrate(ready, done)
        if ready.refreeze:
            log.freeze_pipeline(ready.text)
        opening = _opening(ready, options)
        place = ExecuteRequest(
            work_dir=absolute(log.recording.header.work_dir, base_dir),
            functions=functions or {},
            execute=request.execute,
            mask=mask,
            files=ready.place,
            content=store.content,
            contested=claims.contested,
            mended=mending_events(ready, done, opening.at),
            spared=ready.audit.taken_over,
            ask=request.ask,
            executor=request.executor,
            kinds=request.kinds,
        )
        driven = execute(log, ready.pipeline, ready.plan, opening, reporters, place)
        return RunOutcome(run_id=log.recording.header.run_id, end=driven.end, state=driven.state)
    finally:
        relying.close()
        log.close()


def _opening(ready: ResumePlan, options: RunOptions) -> RunStarted | RunResumed:
    opening = started(ready.pipeline, ready.text, options, datetime.now(UTC))
    if ready.recording.state.status == "pending":
        return opening
    seconds, dollars = ready.plan.saved(ready.recording.state)
    known = msgspec.structs.asdict(opening)
    return RunResumed(**known, notices=ready.notices, saved_seconds=round(seconds, 3), saved_usd=dollars)


def _end_leftovers(log: RunWriter, reporters: Sequence[Reporter]) -> None:
    """End the orphans of the previous invocation: they are never adopted, and never run beside its successor."""
    ended = end_processes(log)
    for reporter in reporters if ended else ():
        reporter.warn(ended_words(ended))


__all__ = [
    "Functions",
    "ResumeObserver",
    "ResumePlan",
    "ResumeRequest",
    "RunOutcome",
    "StartRequest",
    "checkpoint",
    "load",
    "new_run_id",
    "params_of",
    "prepare",
    "present_secrets",
    "process_tag",
    "refuse_misplaced",
    "refuse_secret_pipeline",
    "refuse_secrets",
    "resume",
    "start",
    "start_pipeline",
]
