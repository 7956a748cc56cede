"""Text of one run: an overview, its steps, its invocations, its error, the next command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from rerail.cli.render.table import Cell, fitted, table
from rerail.cli.render.terminal import STYLES, Terminal
from rerail.cli.render.units import age, counted, dollars, moment, plain, seconds, until, worked, zoned
from rerail.core import events as ev
from rerail.core.checkpoint import Checkpoint, StepRecord
from rerail.core.events import ArtifactRecord
from rerail.core.inflight import how_far
from rerail.core.items import ItemsRecord
from rerail.core.money import COST, NOTHING, StepTotals, amount, total
from rerail.core.unit_id import top_step
from rerail.text import one_line, size_text, without_escapes

SHOWN_LINES = 12
MAX_ARTIFACTS = 200
FEW_ARTIFACTS = 8  # that get a row each; more are summed up by step
MAX_ITEMS = 20
_WORTH_A_ROW = ("running", "failed", "interrupted")  # of items: the others are counted


class RunView:
    """Text for the state of a run."""

    def __init__(self, checkpoint: Checkpoint, status: str, look: Terminal, within: Mapping[str, StepTotals]) -> None:
        self._checkpoint = checkpoint
        self._status = status
        self._look = look
        self._within = within

    def overview(self, logs: str, notices: Iterable[str], following: str) -> list[str]:
        """Return the lines about the run as a whole; `following` is the next command."""
        known = self._checkpoint
        paused = f" ({known.paused_for})" if known.paused_for else ""
        why = paused + until(known.paused_until) + (f": {known.status_reason}" if known.status_reason else "")
        rows: list[tuple[str, str, str]] = [
            ("run", known.run_id, "bold"),
            ("fork of", known.parent, ""),
            ("pipeline", f"{known.pipeline}  ({known.pipeline_path})", ""),
            ("status", self._status + why, STYLES.get(self._status, "")),
            ("next", following, "bold"),
            ("group", known.concurrency, ""),
            ("params", " ".join(f"{name}={plain(value)}" for name, value in known.params.items()), ""),
            ("labels", " ".join(f"{name}={value}" for name, value in known.labels.items()), ""),
            (
                "created",
                f"{_created(known.created_at)}, {age(known.created_at, datetime.now(UTC))} ago",
                "",
            ),
            ("ran", self._ran(), ""),
            ("cost", self._cost(), ""),
            ("dlq", self._dead(), "yellow"),
            ("logs", logs, ""),
            *(("notice", notice, "yellow") for notice in notices),
        ]
        cells: list[tuple[Cell, Cell]] = [((name, "dim"), (text, style)) for name, text, style in rows if text]
        return table(cells, self._look)

    def _ran(self) -> str:
        known = self._checkpoint
        return worked(known.active_seconds, known.duration_seconds, self._status != "running") if known.started_at else ""

    def _dead(self) -> str:
        dead = self._checkpoint.dead_letters
        items = counted(dead, "item")
        return f"{items} failed permanently: rerail dlq list {self._checkpoint.run_id}" if dead else ""

    def _cost(self) -> str:
        known = self._checkpoint
        running = [
            step.progress.metrics for step in known.steps if step.status == "running" and step.progress is not None
        ]
        more = total(metrics.get(COST, 0) for metrics in running)
        if not (known.total_cost_usd or known.total_tokens or more):
            return ""
        in_flight = f", plus {dollars(more)} by attempts in flight" if more else ""
        saved = f"; the last resume saved {dollars(known.saved_usd)}" if known.saved_usd else ""
        tokens = f", {amount('tokens', known.total_tokens)}" if known.total_tokens else ""
        return f"{amount('cost_usd', known.total_cost_usd)}{tokens}{in_flight}{saved}"

    def steps(self) -> list[str]:
        """Return a table with a row for every step."""
        plain = [step for step in self._checkpoint.steps if step.item is None]
        items = [step for step in self._checkpoint.steps if step.item is not None and step.status in _WORTH_A_ROW]
        rows = [self._step(step) for step in (*plain, *items[:MAX_ITEMS])]
        if len(items) > MAX_ITEMS:
            more = f"and {len(items) - MAX_ITEMS} more items: rerail show {self._checkpoint.run_id} STEP"
            rows.append(((more, "dim"), *[("", "")] * 5))
        heads = ("STEP", "STATUS", "TOOK", "ATTEMPTS", "COST", "")
        used = [at for at in range(len(heads)) if any(row[at][0] for row in rows)]
        cells = [[(heads[at], "dim") for at in used], *([row[at] for at in used] for row in rows)]
        return table(cells, self._look, indent="  ")

    def _step(self, step: StepRecord) -> tuple[Cell, ...]:
        status: str = "interrupted" if self._status == "crashed" and step.status == "running" else step.status
        shown = "allowed" if step.allowed_failure else status
        if top_step(step.id) in self._checkpoint.removed_steps:
            return self._removed(step)
        if status == "failed" and step.retry_at is not None:
            shown = status = "waiting"
        style = STYLES.get(shown, "")
        return (
            (step.id if step.item is None else f"{step.id}[{step.item}]", ""),
            (f"{self._look.symbol(shown)} {status}", style),
            (seconds(step.duration_seconds), ""),
            (str(step.attempts) if step.attempts > 1 else "", ""),
            (dollars(self._cost_of(step)), ""),
            (self._remark(step), "dim"),
        )

    def _removed(self, step: StepRecord) -> tuple[Cell, ...]:
        took, cost = seconds(step.duration_seconds), dollars(self._cost_of(step))
        told = f"{step.status}; not in the pipeline any more"
        return ((step.id, "dim"), ("- removed", "dim"), (took, "dim"), ("", ""), (cost, "dim"), (told, "dim"))

    def _cost_of(self, step: StepRecord) -> float:
        """Return the cost of a step; of a top-level step, with everything inside it."""
        if step.item is not None or "/" in step.id:
            return step.metrics.get(COST, 0)
        return self._within.get(step.id, NOTHING).cost_usd

    def artifacts(self) -> list[str]:
        """Return a line for the artifacts of each step, and a row for each one that is not intact or of a few."""
        by_step = [(step, step.artifacts) for step in self._checkpoint.steps if step.artifacts]
        if sum(len(records) for _, records in by_step) <= FEW_ARTIFACTS:
            return artifact_rows([(step.id, record) for step, records in by_step for record in records], self._look)
        folded: dict[str, list[ArtifactRecord]] = {}
        for step, records in by_step:
            folded.setdefault(step.id, []).extend(records)
        lines = [self._look.paint("  ARTIFACTS", "dim")]
        broken: list[tuple[str | None, ArtifactRecord]] = []
        for name, files in folded.items():
            bad = [(name, record) for record in files if record.state != "intact"]
            state = f"{len(bad)} not intact" if bad else "all intact"
            lines.append(
                f"  {one_line(name)}: {counted(len(files), 'file')}, {size_text(sum(one.size for one in files))}, {state}"
            )
            broken += bad
        return [*lines, *artifact_rows(broken, self._look)]

    @staticmethod
    def _remark(step: StepRecord) -> str:
        if step.allowed_failure:
            return f"{step.error.message if step.error else 'failed'} (allowed to fail)"
        if step.status == "failed" and step.error is not None:
            again = (
                f"; {step.reason}, not before {moment(step.retry_at)}" if step.internal.refusals and step.retry_at else ""
            )
            return step.error.message + again
        if step.status in ("running", "interrupted") and step.items is None:
            return ", ".join(filter(None, (step.reason if step.status == "interrupted" else "", how_far(step.progress))))
        if step.status == "skipped" and step.items is None:
            return step.reason
        if step.approval is not None:
            return step.reason
        if step.status == "pending" and step.kind == "approve":
            question = step.command.removeprefix("approve: ")
            return f"waiting for approval{': ' * bool(question)}{question}"
        if step.items is not None and (step.items.total or step.items.is_loop):
            return progress_of(step.items)
        return msgspec.json.encode(step.outputs).decode() if step.outputs else ""

    def invocations(self, records: Iterable[tuple[int, ev.Event]], *, alive: bool) -> list[str]:
        """Return a table of the invocations: when each began and how it ended."""
        rows: list[list[str]] = []
        for _, event in records:
            match event:
                case ev.RunStarted(at=at, owner=owner) | ev.RunResumed(at=at, owner=owner):
                    if rows and not rows[-1][3]:
                        rows[-1][3] = "crashed"
                    when = at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
                    rows.append([str(len(rows) + 1), when, f"process {owner.pid} on {owner.host}", ""])
                case ev.RunFinished(status=status) if rows:
                    rows[-1][3] = status
                case ev.RunInterrupted(reason=reason) | ev.RunPaused(reason=reason) if rows and not rows[-1][3]:
                    rows[-1][3] = reason
                case _:
                    pass
        if rows and not rows[-1][3]:
            rows[-1][3] = "running" if alive else "crashed"
        heads: list[list[Cell]] = [[("INVOCATION", "dim"), ("STARTED", "dim"), ("OWNER", "dim"), ("ENDED", "dim")]]
        return table([*heads, *([(text, "") for text in row] for row in rows)], self._look, indent="  ")

    def error(self) -> list[str]:
        """Return why the run failed, with the last lines of output."""
        error = self._checkpoint.error
        if error is None:
            return []
        head = f"error  {error.step}: {error.message}"
        lines = without_escapes(error.traceback or error.stderr_tail).splitlines()[-SHOWN_LINES:]
        shown = [fitted(one_line(line, 2000), self._look.room(4), self._look) for line in lines]
        return [self._look.paint(one_line(head, 1000), "red"), *(f"  | {line}" for line in shown)]


def artifact_rows(rows: Sequence[tuple[str | None, ArtifactRecord]], look: Terminal) -> list[str]:
    """Return a table of artifacts, each with its step unless that is None, and the result of a quick check."""
    if not rows:
        return []
    cells: list[list[Cell]] = [[(head, "dim") for head in ("ARTIFACT", "STEP", "SIZE", "SHA256", "STATE")]]
    for step, record in rows[:MAX_ARTIFACTS]:
        many = f", {counted(record.files, 'file')}" if record.kind == "tree" else ""
        style = "" if record.state == "intact" else "yellow"
        cells.append(
            [
                (record.path, ""),
                (step or "", "dim"),
                (size_text(record.size) + many, ""),
                (record.sha256[:12], "dim"),
                (record.state + ("" if record.internal.kept else ", no copy kept"), style),
            ]
        )
    if len(rows) > MAX_ARTIFACTS:
        cells.append([(f"and {len(rows) - MAX_ARTIFACTS} more", "dim"), *[("", "")] * 4])
    if all(step is None for step, _ in rows):
        cells = [[line[0], *line[2:]] for line in cells]
    return table(cells, look, indent="  ")


def waited(since: datetime) -> str:
    """Return the time since a moment, of an attempt that runs."""
    return seconds(max((datetime.now(UTC) - since).total_seconds(), 0.0))


def _created(created_at: str) -> str:
    try:
        return zoned(datetime.fromisoformat(created_at.replace("Z", "+00:00")))
    except ValueError:
        return created_at


def progress_of(items: ItemsRecord) -> str:
    """Describe the progress of a map or loop."""
    if items.is_loop:
        return counted(items.completed, "iteration")
    told = [f"{items.completed + items.failed + items.skipped} of {counted(items.total, 'item')}"]
    told += [f"{count} {what}" for count, what in ((items.failed, "failed"), (items.skipped, "skipped")) if count]
    return ", ".join(told)
