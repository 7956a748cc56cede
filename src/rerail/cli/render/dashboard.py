"""The dashboard: a run at one moment, as lines of styled spans that fit a terminal. Pure; it is drawn elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from rerail.cli.render.table import columns, fitted
from rerail.cli.render.terminal import STYLES, Terminal
from rerail.cli.render.units import dollars, seconds
from rerail.core.graph import topological
from rerail.core.items import Items
from rerail.core.model import Approve, Pipeline, Step
from rerail.core.money import COST, total
from rerail.core.state import RunState, UnitState
from rerail.core.unit_id import UnitId, is_step_within, step_within, top_step
from rerail.core.values import Progress
from rerail.text import one_line

Span = tuple[str, str]  # text, style
Line = list[Span]

SPINNER = ("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\")
BAR = 10
WIDEST_WORKER = 32


class AttemptGlance(msgspec.Struct, frozen=True, kw_only=True):
    """View of a running attempt from outside: its last line, progress and cost."""

    last_line: str = ""
    progress: Progress | None = None
    cost: float = 0  # by now


class DashboardFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Input of one frame of the dashboard."""

    run_id: str
    state: RunState
    now: datetime
    glimpses: Mapping[UnitId, AttemptGlance] = {}
    tick: int = 0  # number of the frame, for the spinner
    live: bool = True  # the run still goes on


class Dashboard:
    """Dashboard for the runs of one pipeline."""

    def __init__(self, pipeline: Pipeline, look: Terminal) -> None:
        order = topological({step.id: step.needs for step in pipeline.steps})
        steps = {step.id: step for step in pipeline.steps}
        self._pipeline = pipeline
        self._steps = [steps[name] for name in order]
        self._look = look
        self._hooks = {hook.id for step in pipeline.steps for hook in step.on_failure}
        names = [step.id for step in self._steps] + [hook.id for hook in pipeline.finally_]
        self._name_width = max((*map(columns, names), *(columns(hook) + 2 for hook in self._hooks)), default=0)
        self._first_seen: dict[str, tuple[int, datetime]] = {}  # closed items of maps when they were first drawn

    def lines(self, frame: DashboardFrame, width: int, height: int) -> list[Line]:
        """Return the lines of a frame, within the given width and height."""
        shown = self._rows(frame)
        header = self._header(frame)
        room = max(height - 2, 1)
        fitting = self._fitting(shown, frame, room)
        left_out = len(shown) - len(fitting)
        room -= len(fitting)
        lines: list[Line] = []
        for step in fitting:
            lines.append(self._row(step, frame, width))
            inside = self._workers(step, frame, width) if step.is_controller and frame.live else []
            lines += inside[: max(room, 0)]
            room -= len(inside)
        result = [self._cut(header, width), *lines]
        if left_out > 0:
            result.append(self._cut([(f"   {left_out} more steps", "dim")], width))
        return result[:height]

    def _rows(self, frame: DashboardFrame) -> list[Step]:
        """Return every step, and the hooks that have begun, after the steps they follow."""
        rows: list[Step] = []
        for step in self._steps:
            rows.append(step)
            rows += [hook for hook in step.on_failure if frame.state.unit(UnitId(hook.id)).status != "pending"]
        return rows + [hook for hook in self._pipeline.finally_ if frame.state.unit(UnitId(hook.id)).status != "pending"]

    def _fitting(self, rows: Sequence[Step], frame: DashboardFrame, room: int) -> list[Step]:
        """Return the steps to show where not all fit: running, failed, next, then the latest of the rest."""
        if len(rows) <= room:
            return list(rows)
        rank = {"running": 0, "failed": 1, "interrupted": 1, "pending": 2}
        position = {step.id: at for at, step in enumerate(rows)}
        begun = max((at for at, step in enumerate(rows) if frame.state.unit(UnitId(step.id)).attempts), default=0)

        def importance(step: Step) -> tuple[int, int]:
            return (
                rank.get(frame.state.unit(UnitId(step.id)).status, 3),
                abs(position[step.id] - begun),
            )

        chosen = {step.id for step in sorted(rows, key=importance)[: max(room - 1, 1)]}
        return [step for step in rows if step.id in chosen]

    def _header(self, frame: DashboardFrame) -> Line:
        state, look = frame.state, self._look
        done = sum(state.unit(UnitId(step.id)).settled for step in self._steps)
        status = state.status if state.status != "pending" else "running"
        mark = self._spinner(frame) if frame.live else look.symbol(status)
        parts: Line = [(f"{mark} ", STYLES.get(status, "")), (self._pipeline.name, "bold")]
        parts.append((f"  {frame.run_id}", "dim"))
        parts.append((f"  {done}/{len(self._steps)} steps", ""))
        if state.started_at:
            until = frame.now if frame.live else (state.updated_at or frame.now)
            parts.append((f"  {seconds(max((until - state.started_at).total_seconds(), 0.0))}", ""))
        cost = total((state.spent.get(COST, 0), *(seen.cost for seen in frame.glimpses.values())))
        if cost:
            parts.append((f"  {dollars(cost)}{self._of_budget(state)}", ""))
        if state.saved_usd:
            parts.append((f"  {dollars(state.saved_usd)} saved", "green"))
        if not frame.live:
            parts.append((f"  {status}", STYLES.get(status, "")))
        return parts

    def _of_budget(self, state: RunState) -> str:
        declared = self._pipeline.budget.cost_usd if self._pipeline.budget else None
        limit = declared if state.options.budget_usd is None else state.options.budget_usd
        return f" of {dollars(limit)}" if limit else ""

    def _spinner(self, frame: DashboardFrame) -> str:
        frames = SPINNER[0] if self._look.unicode else SPINNER[1]
        return frames[frame.tick % len(frames)]

    def _row(self, step: Step, frame: DashboardFrame, width: int) -> Line:
        unit = frame.state.unit(UnitId(step.id))
        status = self._status(unit)
        mark = self._spinner(frame) if status == "running" and frame.live else self._look.symbol(status)
        room = min(self._name_width, max(width // 2, 8))
        name = fitted(self._name(step), room, self._look)
        line: Line = [
            (f" {mark} ", STYLES.get(status, "")),
            (name + " " * (room - columns(name)), "dim" if status in ("pending", "skipped") else ""),
            (f"  {self._elapsed(unit, frame):>8}", "dim"),
        ]
        line += [(f"  {text}", style) for text, style in self._details(step, unit, status, frame) if text]
        return self._cut(line, width)

    def _workers(self, step: Step, frame: DashboardFrame, width: int) -> list[Line]:
        """Return a line for every unit that runs inside a step."""
        lines: list[Line] = []
        for unit, known in frame.state.units.items():
            inside = unit.is_within(UnitId(step.id)) and unit != (step.id, None)
            if not inside or known.status != "running" or unit not in frame.glimpses:
                continue
            doing = step_within(unit.step, step.id)
            text = one_line(f"{unit.item or ''}  {doing}".strip(), 200)
            seen = frame.glimpses[unit]
            line: Line = [
                ("     ", ""),
                (fitted(text, min(max(self._name_width, WIDEST_WORKER), max(width // 2, 8)), self._look), ""),
            ]
            line.append((f"  {self._elapsed(known, frame)}", "dim"))
            if seen.progress is not None:
                line.append((f"  {self._bar(seen.progress)}", "cyan"))
            line.append((f"  {dollars(seen.cost)}" if seen.cost else "", "dim"))
            lines.append(self._cut([*line, (f"  {seen.last_line}", "dim")], width))
        return lines

    def _of_items(self, step: Step, unit: UnitState, items: Items, frame: DashboardFrame) -> list[Span]:
        """Return the progress, the rate and the remaining time of a map or loop."""
        if items.is_loop:
            if unit.status != "running":
                return [(f"{items.completed} iteration{'' if items.completed == 1 else 's'}", "dim")]
            return [(f"iteration {items.completed + 1} of up to {items.total}", "cyan")]
        if not items.total:
            return []
        spans: list[Span] = [(self._bar(Progress(done=items.closed, total=items.total)), "cyan")]
        seen, since = self._first_seen.setdefault(step.id, (items.closed, frame.now))
        passed = (frame.now - since).total_seconds()
        if unit.status == "running" and items.closed > seen and passed > 0:
            rate = (items.closed - seen) / passed
            spans.append((f"{rate:.1f}/s", "dim"))
            spans.append((f"ETA {seconds((items.total - items.closed) / rate)}", "dim"))
        if items.failed:
            spans.append((f"{items.failed} failed", "red"))
        if items.skipped:
            spans.append((f"{items.skipped} skipped", "dim"))
        return spans

    def _name(self, step: Step) -> str:
        return f"{'└' if self._look.unicode else '-'} {step.id}" if step.id in self._hooks else step.id

    @staticmethod
    def _status(unit: UnitState) -> str:
        if unit.status == "failed" and unit.retry_at is not None:
            return "waiting"
        return "allowed" if unit.status == "failed" and unit.allowed else unit.status

    @staticmethod
    def _elapsed(unit: UnitState, frame: DashboardFrame) -> str:
        if unit.status == "running" and unit.started_at:
            return seconds(max((frame.now - unit.started_at).total_seconds(), 0.0))
        return seconds(unit.duration) if unit.status in ("completed", "failed") else ""

    def _details(self, step: Step, unit: UnitState, status: str, frame: DashboardFrame) -> list[Span]:
        spans: list[Span] = []
        if step.retry.attempts > 1 and unit.failures and not isinstance(step.action, Approve):
            # Interruptions and refusals are not attempts of the policy.
            counted = min(unit.failures + (status in ("running", "completed")), step.retry.attempts)
            spans.append((f"attempt {counted} of {step.retry.attempts}", "yellow"))
        elif unit.attempts > 1:
            spans.append((f"attempt {unit.attempts}", "yellow"))
        if unit.items is not None:
            spans += self._of_items(step, unit, unit.items, frame)
        match status:
            case "running":
                spans += self._glimpse(step, unit, frame) if unit.items is None else []
                spans.append((dollars(self._inside(step, unit, frame)) if step.is_controller else "", "dim"))
            case "waiting":
                left = max((unit.retry_at - frame.now).total_seconds(), 0.0) if unit.retry_at else 0.0
                why = f"{unit.reason}: {_message(unit)}" if unit.refusals else _message(unit)
                spans.append((f"retrying in {seconds(left)}: {why}", "yellow"))
            case "failed" | "allowed":
                spans.append((_message(unit) + (" (allowed to fail)" if status == "allowed" else ""), STYLES[status]))
            case "skipped" | "interrupted":
                spans.append((unit.reason, "dim"))
            case "pending":
                spans.append((self._waiting_for(step, frame), "dim"))
            case _:
                spans.append((dollars(self._inside(step, unit, frame)), "dim"))
        return spans

    @staticmethod
    def _inside(step: Step, unit: UnitState, frame: DashboardFrame) -> float:
        """Return the cost of a step so far: closed items, open ones and steps inside it, attempts in flight."""
        if not step.is_controller:
            return unit.metrics.get(COST, 0)
        inside = [
            known.metrics.get(COST, 0)
            for inner, known in frame.state.units.items()
            if inner != (step.id, None) and is_step_within(inner.step, step.id)
        ]
        running = [seen.cost for inner, seen in frame.glimpses.items() if top_step(inner.step) == step.id]
        return total((unit.metrics.get(COST, 0), *inside, *running))

    def _waiting_for(self, step: Step, frame: DashboardFrame) -> str:
        if isinstance(step.action, Approve) and all(frame.state.unit(UnitId(need)).settled for need in step.needs):
            return f"waiting for approval: rerail approve {frame.run_id} {step.id}"
        unsettled = [need for need in step.needs if not frame.state.unit(UnitId(need)).settled]
        if not frame.live:
            failed = [need for need in unsettled if frame.state.unit(UnitId(need)).status == "failed"]
            return f"not run: {failed[0]} failed" if failed else "not run"
        if not unsettled:
            return "queued" if frame.state.status == "running" else ""
        more = f" and {len(unsettled) - 3} more" if len(unsettled) > 3 else ""
        return f"waiting for {', '.join(unsettled[:3])}{more}"

    def _glimpse(self, step: Step, unit: UnitState, frame: DashboardFrame) -> list[Span]:
        seen = frame.glimpses.get(UnitId(step.id), AttemptGlance())
        spans: list[Span] = []
        if seen.progress is not None:
            spans.append((self._bar(seen.progress), "cyan"))
            left = remaining(seen.progress, unit, frame.now)
            spans.append((f"ETA {seconds(left)}" if left is not None else "", "dim"))
        spans.append((dollars(seen.cost), "dim"))
        spans.append((seen.last_line, "dim"))
        return spans

    def _bar(self, progress: Progress) -> str:
        share = progress.share
        if share is None:
            return f"{progress.done:g}"
        full, empty = ("█", "░") if self._look.unicode else ("#", ".")
        filled = round(share * BAR)
        return f"{full * filled}{empty * (BAR - filled)} {progress.done:g}/{progress.total:g}"

    def _cut(self, line: Line, width: int) -> Line:
        """Cut a line to a width."""
        result: Line = []
        room = width
        for text, style in line:
            if room <= 0:
                break
            shown = fitted(text, room, self._look)
            result.append((shown, style))
            room -= columns(shown)
        return result


def remaining(progress: Progress, unit: UnitState, now: datetime) -> float | None:
    """Return the seconds left at the present rate; None if it is not known yet."""
    share = progress.share
    if not share or unit.started_at is None:
        return None
    return max((now - unit.started_at).total_seconds(), 0.0) * (1 - share) / share


def _message(unit: UnitState) -> str:
    return unit.error.message.splitlines()[0] if unit.error and unit.error.message else "failed"
