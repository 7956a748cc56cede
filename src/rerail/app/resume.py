"""Resume of a run: owned, planned, restored, executed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from rerail.app.claims import RunClaims
from rerail.app.execution import Functions, RunOutcome, teller_of
from rerail.app.leftovers import sweep_channels
from rerail.app.masking import hiding, mask_of
from rerail.app.planning import ResumePlan, ResumeRequest, checkpoint, plan_resume
from rerail.app.restore import restore, restore_events
from rerail.app.start import started
from rerail.app.traces import end_processes, ended_words
from rerail.core.audit import Flaw
from rerail.core.events import RunResumed, RunStarted
from rerail.core.model import RunOptions
from rerail.core.unit_id import UnitId
from rerail.ports import Reporter, RunWriter, Store


class ResumeObserver:
    """Observer of a resume before anything runs; this one does nothing."""

    def on_plan(self, ready: ResumePlan) -> None:
        """Take the plan, before anything is touched; again if another one had to be made."""

    def on_edits(self, ready: ResumePlan, edits: Mapping[UnitId, Sequence[Flaw]]) -> Mapping[UnitId, Sequence[Flaw]]:
        """Return those of the edited artifacts that a person keeps; the others are restored."""
        del ready, edits
        return {}

    def on_restored(self, ready: ResumePlan, done: list[Any]) -> None:
        """Take the findings and restores, before anything runs."""


def resume(
    store: Store,
    run_id: str,
    reporters: Sequence[Reporter] = (),
    request: ResumeRequest | None = None,
    *,
    base_dir: str = "",
    functions: Functions | None = None,
    observer: ResumeObserver | None = None,
) -> RunOutcome | None:
    """Own a run and execute the rest; return None if it is completed and its artifacts are intact."""
    # Loaded to execute: planning and dry runs start without it.
    from rerail.app.wiring import ExecuteRequest, check_plugins, execute

    request, observer = request or ResumeRequest(), observer or ResumeObserver()
    check_plugins(request)
    with contextlib.ExitStack() as owned:
        log = store.own(run_id)
        owned.callback(log.close)
        owned.enter_context(store.content.pinned())
        _end_leftovers(log, reporters)  # before any file is checked: they could still write
        recording = log.recording
        ready = plan_resume(store, recording, request, base_dir)
        if ready.finished:
            _save_last_snapshot(store, log, ready)
            return None
        concurrent = request.execute.allow_concurrent
        claims = RunClaims(store, ready.pipeline, recording.header, ready.place.work_dir, allow_concurrent=concurrent)
        owned.callback(claims.release)
        _, waited = claims.take(f"rerail resume {run_id}", lambda: log, teller_of(reporters))
        if waited:  # files that the plan is about may have changed meanwhile
            ready = plan_resume(store, recording, request, base_dir)
        sweep_channels(store)
        ready = _accepting(ready, request, observer, store, log, base_dir)
        observer.on_plan(ready)
        options = request.options or (recording.state.options if recording.state.seq else recording.header.options)
        mask = mask_of(ready.pipeline, options)
        with hiding(mask):
            ready, done = restore(ready, store.content, log, observer.on_plan)
        observer.on_restored(ready, done)
        if ready.refreeze:
            log.freeze_pipeline(ready.text)
        opening = _opening(ready, options)
        invocation = ExecuteRequest(
            invocation=request,
            functions=functions or {},
            mask=mask,
            files=ready.place,
            content=store.content,
            contested=claims.contested,
            restored=restore_events(ready, done, opening.at),
            superseded=ready.audit.taken_over,
        )
        return execute(log, ready.pipeline, ready.plan, opening, reporters, invocation)


def _accepting(
    ready: ResumePlan, request: ResumeRequest, observer: ResumeObserver, store: Store, log: RunWriter, base_dir: str
) -> ResumePlan:
    """Accept the edited artifacts that a person keeps, and return the plan that follows."""
    if not ready.audit.flaws:
        return ready
    # Only for runs with broken artifacts.
    from rerail.app.acceptance import accept_now, as_kept, edited_flaws
    from rerail.app.interventions import record  # only for runs with broken artifacts

    edits = edited_flaws(ready)
    kept = edits if request.execute.keep_changes or not edits else observer.on_edits(ready, edits)
    if not kept:
        return ready
    wanted = {unit: {flaw.artifact for flaw in flaws} for unit, flaws in kept.items()}
    accept_now(ready, wanted, request.by, store, log, record)
    again = plan_resume(store, log.recording, request, base_dir)
    return msgspec.structs.replace(again, plan=as_kept(again.plan, kept))


def _save_last_snapshot(store: Store, log: RunWriter, ready: ResumePlan) -> None:
    """Save the snapshot of a completed run whose process died before it, or where that one was damaged."""
    if not ready.recording.is_cached:
        with contextlib.suppress(OSError):
            log.save_snapshot(checkpoint(store, ready.recording), keep=ready.pipeline.checkpoint.history)


def _opening(ready: ResumePlan, options: RunOptions) -> RunStarted | RunResumed:
    opening = started(ready.pipeline, ready.text, options, datetime.now(UTC))
    if ready.recording.state.status == "pending":
        return opening
    seconds, dollars = ready.plan.saved(ready.recording.state)
    known = msgspec.structs.asdict(opening)
    return RunResumed(
        **known,
        notices=ready.notices,
        saved_seconds=round(seconds, 3),
        saved_usd=dollars,
        removed=ready.plan.removed,
    )


def _end_leftovers(log: RunWriter, reporters: Sequence[Reporter]) -> None:
    """End the orphans of the previous invocation: they are never adopted, and never run beside its successor."""
    ended = end_processes(log)
    for reporter in reporters if ended else ():
        reporter.warn(ended_words(ended))
