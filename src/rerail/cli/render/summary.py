"""Summary at the end of an invocation: how it ended, and the next command."""

from __future__ import annotations

import shlex

from rerail import api
from rerail.cli.options import reach
from rerail.cli.render.output import STDERR, say
from rerail.cli.render.plan import say_dead_letters, say_failure, say_other_failures, say_sum
from rerail.cli.render.run import after_budget, has_got_anywhere
from rerail.cli.render.terminal import terminal_of
from rerail.cli.render.units import until
from rerail.core.money import COST
from rerail.core.state import RunState
from rerail.engine.spec import RunResult
from rerail.errors import EXIT_STEP_FAILED, SIGNAL_EXIT_BASE, RunPausedError
from rerail.ports import Store


def conclude(result: api.RunOutcome, store: Store, *, quiet: bool) -> int:
    """Print how the run ended and the next command; return the exit code."""
    end, run_id = result.end, result.run_id
    where = reach(store)
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
        hint = next_after_pause(end, run_id, result.state, where)
        raise RunPausedError(f"run {run_id} is paused{cause}{until(end.until)}: {end.reason}", hint=hint)
    if end.status == "failed":
        _conclude_failure(result, where)
        return EXIT_STEP_FAILED
    if end.reason:  # completed, and over its budget
        say(f"rerail: {end.reason}")
    if not quiet:
        say_sum(run_id, "completed", result.state)
    say_dead_letters(run_id, result.state)
    return 0


def _conclude_failure(result: api.RunOutcome, where: str) -> None:
    end, run_id, error = result.end, result.run_id, result.state.error
    hint = f"rerail resume {run_id}{where}"
    say_dead_letters(run_id, result.state)
    if end.reason:
        say(f"rerail: also: {end.reason}")
        if end.cause == "budget":
            hint = after_budget(end.reason, hint, result.state.spent.get(COST, 0))
    if error is None:
        say(f"  next: {hint}")
        return
    say_other_failures(result.state, error.step)
    say_sum(run_id, "failed", result.state)
    output = result.state.unit((error.step, None)).output
    say_failure(error, output, f"rerail logs {run_id} {error.step}{where}", hint, terminal_of(STDERR))


def next_after_pause(end: RunResult, run_id: str, state: RunState, where: str) -> str:
    """Return the command that lets a paused run continue."""
    resume = f"rerail resume {run_id}{where}"
    match end.cause:
        case "quota":
            return f"{resume} --wait"
        case "approval":
            step = shlex.quote(end.waiting[0] if end.waiting else "STEP")
            return f"rerail approve {run_id} {step}{where}  # or reject"
        case "budget":
            return after_budget(end.reason, resume, state.spent.get(COST, 0))
        case "max-runtime" if not has_got_anywhere(state.invoked_at, state.units.values()):
            return f"{resume} --max-runtime {2 * (state.options.max_runtime or 1):g}s"
        case "unknown outcome":
            step = shlex.quote(end.asked[0] if end.asked else "STEP")
            return f"rerail mark {run_id} {step} completed|failed|pending{where}"
        case _:
            return resume
