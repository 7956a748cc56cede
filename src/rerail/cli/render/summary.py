"""Summary at the end of an invocation: how it ended, and the next command."""

from __future__ import annotations

import contextlib
import os

import msgspec

from rerail import api
from rerail.cli.options import store_flag
from rerail.cli.render.failure import say_failure
from rerail.cli.render.next_command import next_command
from rerail.cli.render.plan import say_dead_letters, say_other_failures, say_sum
from rerail.cli.render.streams import STDERR, say
from rerail.cli.render.terminal import terminal_of
from rerail.cli.render.units import until
from rerail.core.events import StepFailed
from rerail.core.failures import RootCause, root_cause, whole
from rerail.core.unit_id import UnitId
from rerail.errors import EXIT_STEP_FAILED, SIGNAL_EXIT_BASE, RerailError, RunPausedError
from rerail.ports import Store


def conclude(result: api.RunOutcome, store: Store, *, quiet: bool) -> int:
    """Print how the run ended and the next command; return the exit code."""
    end, run_id = result.end, result.run_id
    report_to_job(store, run_id)
    where = store_flag(store)
    resume_hint = f"rerail resume {run_id}{where}"
    if end.lost is not None:
        if end.unrecorded:
            say(f"rerail: not recorded, so they will run again: {', '.join(end.unrecorded)}")
        raise end.lost
    if end.signal is not None:
        say(f"rerail: run {run_id} {end.reason}; progress is saved\n  next: {resume_hint}")
        return SIGNAL_EXIT_BASE + int(end.signal)
    if end.reached:
        say(f"rerail: run {run_id} {end.reason}\n  next: {resume_hint}")
        return 0
    if end.status == "paused":
        say_sum(run_id, "paused", result.state)
        cause = f" ({end.cause})" if end.cause in ("budget", "quota", "approval") else ""
        hint = next_command(run_id, result.state, where)
        raise RunPausedError(f"run {run_id} is paused{cause}{until(end.until)}: {end.reason}", hint=hint)
    if end.status == "failed":
        _conclude_failure(result, store, where)
        return EXIT_STEP_FAILED
    if end.reason:  # completed, and over its budget
        say(f"rerail: {end.reason}")
    if not quiet:
        say_sum(run_id, "completed", result.state)
    say_dead_letters(run_id, result.state)
    return 0


def report_to_job(store: Store, run_id: str) -> None:
    """Write the outputs and the summary of the job, on GitHub Actions; a run inside a step of another has no job."""
    if os.environ.get("GITHUB_ACTIONS") == "true" and "RERAIL_RUN_ID" not in os.environ:
        from rerail.cli.render.job_report import report  # only there

        report(store, run_id, lambda unit: _last_failure(store, run_id, unit), os.environ)


def _conclude_failure(result: api.RunOutcome, store: Store, where: str) -> None:
    end, run_id, error = result.end, result.run_id, result.state.error
    hint = f"rerail resume {run_id}{where}"
    say_dead_letters(run_id, result.state, besides=None if error is None else error.step)
    if end.reason:
        say(f"rerail: also: {end.reason}")
        spent = msgspec.structs.replace(result.state, cause=end.cause, budget_kind=end.budget_kind)
        hint = next_command(run_id, spent, where)
    if error is None:
        say(f"  next: {hint}")
        return
    say_other_failures(result.state, error.step)
    say_sum(run_id, "failed", result.state)
    step = UnitId(error.step)
    cause = root_cause(result.state, step) or RootCause(unit=step, error=error)
    if cause.unit != step:
        cause = whole(cause, _last_failure(store, run_id, cause.unit))
    say_failure(run_id, error, cause, hint, where, terminal_of(STDERR))


def _last_failure(store: Store, run_id: str, unit: UnitId) -> StepFailed | None:
    """Return the last recorded failure of a unit; None if it cannot be read."""
    found = None
    with contextlib.suppress(RerailError, OSError):
        for event in store.find(run_id, ("step-failed",), unit.step):
            if isinstance(event, StepFailed) and event.unit == unit:
                found = event
    return found
