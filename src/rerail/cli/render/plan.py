"""Text before and after an execution: the plan, the findings, the totals."""

from __future__ import annotations

from collections.abc import Sequence

from rerail.cli.render.streams import say, say_raw
from rerail.cli.render.table import Cell, table
from rerail.cli.render.terminal import Terminal
from rerail.cli.render.units import counted, dollars, moment, seconds, worked
from rerail.core.dead_letters import dead_letters
from rerail.core.durations import active_seconds, span_seconds
from rerail.core.money import NOTHING, totals_by_step
from rerail.core.outline import Outline, OutlineStep
from rerail.core.plan import Decision, Plan
from rerail.core.state import RunState
from rerail.core.unit_id import UnitId, is_step_within, local_step
from rerail.text import one_line

_DECISIONS = {
    "reuse": "green",
    "restore": "green",
    "keep": "green",
    "run": "cyan",
    "rerun": "yellow",
    "continue": "cyan",
    "in-doubt": "red",
    "skip": "dim",
    "later": "dim",
}
MONEY_AND_TIME = 3  # the first column of numbers
MAX_INTACT_LINES = 20  # lines about intact artifacts


def say_plan(plan: Plan, state: RunState, notices: tuple[str, ...], look: Terminal) -> None:
    """Print the plan before anything runs: for every step the decision, the reason, and the saving."""
    for notice in notices:
        say(f"rerail: {notice}")
    rows: list[tuple[Cell, ...]] = []
    within = totals_by_step(state, lasting=True)
    asked = [made for made in plan.everything if made.item is not None and made.decision == "in-doubt"]
    for made in (*plan.decisions, *asked, *plan.hooks):
        reason = made.reason
        known = state.unit(UnitId(made.step))
        if known.refusals and known.retry_at is not None and made.decision == "rerun":
            reason += f", not before {moment(known.retry_at)}"
        reused = made.kept
        done = reused or made.decision == "continue"
        cost = within.get(made.step, NOTHING).cost_usd if done and made.item is None else 0
        saved = _worth_showing(made.saved_seconds)
        style = _DECISIONS[made.decision]
        rows.append(
            (
                (made.decision, style),
                (str(made.unit), ""),
                (reason, "dim" if reused else ""),
                (saved, "dim"),
                (dollars(cost), "dim"),
            )
        )
    rows += [
        (("removed", "dim"), (step, ""), ("not in the pipeline any more (record kept)", "dim"), ("", ""), ("", ""))
        for step in plan.removed
    ]
    if not rows:
        return
    heads = ("PLAN", "STEP", "REASON", "SAVED", "COST")
    used = [at for at in range(len(heads)) if at < MONEY_AND_TIME or any(row[at][0] for row in rows)]
    cells = [[(heads[at], "dim") for at in used], *([row[at] for at in used] for row in rows)]
    for line in table(cells, look, indent="  ", cut=2, right=range(MONEY_AND_TIME, len(used))):
        say_raw(line)


def say_first_plan(outline: Outline, plan: Plan, parallel: int, look: Terminal) -> None:
    """Print the plan of a run that has not begun: the order of the steps, their conditions and commands."""
    made = {decision.step: decision for decision in plan.decisions}
    rows = [row for step in outline.steps for row in _outline_rows(step, made.get(step.step), "", "")]
    rows += [(("finally", "dim"), *row[1:]) for step in outline.last for row in _outline_rows(step, None, "", "")]
    heads = ("ORDER", "PLAN", "STEP", "AFTER", "WHEN", "COMMAND")
    used = [at for at in range(len(heads)) if heads[at] not in ("AFTER", "WHEN") or any(row[at][0] for row in rows)]
    cells = [[(heads[at], "dim") for at in used], *([row[at] for at in used] for row in rows)]
    for line in table(cells, look, indent="  ", cut=len(used) - 1):
        say_raw(line)
    stages = [step.stage for step in outline.steps]
    if len(set(stages)) < len(stages):
        how = f", up to {parallel} in parallel; those with the same number do not wait for each other"
    else:
        how = ", one after another" if len(stages) > 1 else ""
    say(f"rerail: {counted(len(stages), 'step')}{how}")


def _outline_rows(step: OutlineStep, made: Decision | None, number: str, indent: str) -> list[tuple[Cell, ...]]:
    """Return the rows of a step and of the steps inside it."""
    order = f"{number}{step.stage}"
    starts = made is None or made.decision == "run"
    row = (
        (order, ""),
        (made.decision, _DECISIONS[made.decision]) if made else ("", ""),
        (indent + (local_step(step.step) if indent else step.step), ""),
        (", ".join(map(local_step, step.needs)), "dim"),
        (step.when, ""),
        (step.command, "") if starts or made is None else (made.reason, "dim"),
    )
    inner = [row for one in step.steps for row in _outline_rows(one, None, f"{order}.", indent + "  ")]
    return [row, *inner]


def _worth_showing(saved: float) -> str:
    """Format a saving; '' for less than a second."""
    return seconds(saved) if saved >= 1 else ""


def say_found(
    lines: Sequence[tuple[str, str]], plan: Plan, state: RunState, look: Terminal, *, verbose: bool = False
) -> None:
    """Print the findings of the audit and the restores, a line each, and the saving; intact files only if `verbose`."""
    calm = [line for line in lines if line[0] == "info"]
    for level, text in lines:
        if level == "hint":
            say_raw(f"  {one_line(text, 1000)}")
        elif level != "info" or (verbose and len(calm) <= MAX_INTACT_LINES):
            say_raw(_levelled(level, text, look))
    if verbose and len(calm) > MAX_INTACT_LINES:
        say_raw(_levelled("info", f"{len(calm)} artifacts intact", look))
    say_saved(plan, state)


def _levelled(level: str, text: str, look: Terminal) -> str:
    return look.paint(f"[{level}]", "yellow" if level == "warn" else "dim") + " " + one_line(text, 1000)


def say_saved(plan: Plan, state: RunState) -> None:
    """Print how much of the run is not repeated."""
    kept = [made for made in plan.decisions if made.kept]
    done = [made for made in plan.decisions if made.kept or (made.decision == "continue" and made.saved_seconds)]
    if not done:
        return
    restored = sum(made.decision == "restore" for made in kept)
    rerun = sum(made.decision == "rerun" for made in plan.decisions)
    saved, cost = plan.saved(state)
    saves = " and ".join(filter(None, (_worth_showing(saved), dollars(cost))))
    edited = sum(made.decision == "keep" for made in kept)
    parts = (
        (restored, "restoring"),
        (edited, "keeping edits of"),
        (len(done) - len(kept), "continuing"),
        (rerun, "rerunning"),
    )
    more = "".join(f", {what} {count}" for count, what in parts if count)
    reused = f"{len(kept) - restored - edited} of {len(plan.decisions)} steps"
    say(f"rerail: reusing {reused}{more}{f'; saves {saves}' if saves else ''}")


def say_sum(run_id: str, status: str, state: RunState) -> None:
    """Print the result of the run in one line."""
    units = state.counted
    waiting = sum(unit.status == "failed" and unit.retry_at is not None for unit in units)
    counts = {
        "completed": sum(unit.status == "completed" for unit in units),
        "failed": sum(unit.status == "failed" and not unit.allowed for unit in units) - waiting,
        "waiting": waiting,
        "failed (allowed)": sum(unit.status == "failed" and unit.allowed for unit in units),
        "skipped": sum(unit.status == "skipped" for unit in units),
    }
    counts["not run"] = max(state.steps - sum(counts.values()), 0)
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    cost = sum(unit.metrics.get("cost_usd", 0) for unit in state.units.values())
    after = "in" if status == "completed" else "after"
    plain = status == "completed" and counts["completed"] == state.steps
    rest = "" if plain else f": {told}"
    took = worked(active_seconds(state), span_seconds(state))
    say(f"rerail: run {run_id} {status} {after} {took}{rest}{f', {dollars(cost)}' if cost else ''}")


def say_dead_letters(run_id: str, state: RunState, besides: str | None = None) -> None:
    """Print the items that failed permanently, at every end of a run; without those of a step whose failure tells."""
    dead = [unit for unit in dead_letters(state) if besides is None or not is_step_within(unit.step, besides)]
    if dead:
        named = ", ".join(one_line(str(unit), 100) for unit in dead[:3]) + (
            f" and {len(dead) - 3} more" if len(dead) > 3 else ""
        )
        say(f"rerail: {counted(len(dead), 'item')} failed permanently: {named}\n  next: rerail dlq list {run_id}")


def say_other_failures(state: RunState, shown: str) -> None:
    """Print the failures besides the one that was shown."""
    for (step, item), unit in state.units.items():
        if (
            item is None
            and "/" not in step
            and step != shown
            and unit.status == "failed"
            and not unit.allowed
            and unit.retry_at is None
        ):
            say(f"rerail: also failed: {step}: {unit.error.message if unit.error else ''}")
