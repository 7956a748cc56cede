"""The next command for a run that is not completed."""

from __future__ import annotations

import math
import shlex

from rerail.core.money import COST
from rerail.core.state import RunState


def next_command(run_id: str, state: RunState, where: str) -> str:
    """Return the next command for a run, by the cause of its pause; `where` is the flag that names its store."""
    resume = f"rerail resume {run_id}{where}"
    match state.cause:
        case "quota":
            return f"{resume} --wait"
        case "budget" if state.budget_kind == "cost_usd":  # twice the amount spent is suggested
            return f"{resume} --budget-usd {max(math.ceil(state.spent.get(COST, 0) * 2), 1)}"
        case "budget":
            return f"raise that budget in the pipeline file, then {resume}"
        case "max-runtime" if not _has_progressed(state):
            return f"{resume} --max-runtime {2 * (state.options.max_runtime or 1):g}s"
        case "approval" if open_questions := _open_questions(state):
            return f"rerail approve {run_id} {shlex.quote(open_questions[0])}{where}  # or reject"
        case "crashes" if state.waiting_for:
            step = shlex.quote(state.waiting_for[0])
            return f"rerail mark {run_id} {step} pending{where}  # to try again; its output: rerail logs {run_id} {step}"
        case "in-doubt" if state.waiting_for:
            return f"rerail mark {run_id} {shlex.quote(state.waiting_for[0])} completed|failed|pending{where}"
        case _:
            return resume


def _has_progressed(state: RunState) -> bool:
    """Return whether any unit completed in the last invocation: if not, the same time limit would end the same."""
    began = state.invoked_at
    ends = (unit.finished_at for unit in state.units.values() if unit.status == "completed")
    return began is not None and any(at is not None and at >= began for at in ends)


def _open_questions(state: RunState) -> list[str]:
    answered = {str(unit) for unit, record in state.units.items() if record.approval is not None}
    return [question for question in state.waiting_for if question not in answered]
