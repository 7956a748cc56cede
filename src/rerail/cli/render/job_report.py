"""Report of a run to a GitHub job: its summary page, and the outputs of its step."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC
from typing import Any

import msgspec

from rerail.app.outputs import outputs_of
from rerail.cli.options import store_flag
from rerail.cli.render.failure import details_command, last_lines, more_items
from rerail.cli.render.next_command import next_command
from rerail.cli.render.streams import say
from rerail.cli.render.units import counted, dollars, seconds
from rerail.core.dead_letters import dead_letters
from rerail.core.events import StepFailed
from rerail.core.expressions.language import ExpressionError
from rerail.core.failures import RootCause, root_cause, whole
from rerail.core.money import COST, NOTHING, totals_by_step
from rerail.core.state import RunState, UnitState
from rerail.core.unit_id import UnitId
from rerail.errors import RerailError
from rerail.ports import LoadedRun, Store
from rerail.text import one_line, without_escapes

MAX_SUMMARY = 1024 * 1024  # bytes of the summary of one step, which GitHub refuses as a whole if it is longer
MAX_OUTPUT = 512 * 1024  # bytes of one output
MAX_ROWS = 500
MAX_FAILURES = 20
RESERVED = ("run-id", "status", "outputs")

_SYMBOLS = {"completed": "✅", "failed": "❌", "skipped": "⏭️", "running": "▶️", "interrupted": "⏸️", "paused": "⏸️"}
_MARKS = re.compile(r"[!-/:-@\[-`{-~]")  # all that could mean something in Markdown or HTML
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def report(
    store: Store, run_id: str, last_failure: Callable[[UnitId], StepFailed | None], environ: Mapping[str, str]
) -> None:
    """Write the outputs and the summary of a run into the files of the job; never raise."""
    try:
        recording = store.read(run_id)
        outputs = _outputs(store, recording)
        _append(environ.get("GITHUB_OUTPUT", ""), output_lines(run_id, recording.state.status, outputs))
        path = environ.get("GITHUB_STEP_SUMMARY", "")
        room = MAX_SUMMARY - (os.path.getsize(path) if os.path.exists(path) else 0)
        _append(path, fitting(summary(recording, store_flag(store), last_failure), room))
    except (RerailError, OSError, ValueError) as error:  # a value that is no text: UnicodeEncodeError
        say(f"rerail: the job was not told of run {run_id}: {error}")


def _outputs(store: Store, recording: LoadedRun) -> dict[str, Any]:
    try:
        return outputs_of(store, recording)
    except ExpressionError as error:
        say(f"rerail: the outputs of run {recording.header.run_id} have no value: {error}")
        return {}


def _append(path: str, text: str) -> None:
    """Add text to a file of the job, on a line of its own: a step may have written to it before."""
    if not path or not text:
        return
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            text = text if file.read(1) == b"\n" else f"\n{text}"
        file.write(text.encode(errors="replace"))


def output_lines(run_id: str, status: str, outputs: Mapping[str, Any]) -> str:
    """Return the lines for `$GITHUB_OUTPUT`: each value up to a line that nothing in it can foresee."""
    encoded = msgspec.json.encode(outputs).decode()
    values = {"run-id": run_id, "status": status, "outputs": encoded}
    for key, value in outputs.items():
        if key not in RESERVED and _NAME.fullmatch(key):
            values[key] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    lines = []
    for key, value in values.items():
        if len(value.encode(errors="replace")) > MAX_OUTPUT:
            say(f"rerail: the output {key} is too large for a job")
            continue
        end = f"rerail_{secrets.token_hex(16)}"
        lines.append(f"{key}<<{end}\n{value}\n{end}\n")
    return "".join(lines)


# The summary


def markdown(text: str, most: int = 300) -> str:
    """Return one line of text in which nothing is Markdown or HTML."""
    return _MARKS.sub(lambda found: f"&#{ord(found[0])};", one_line(without_escapes(text), most))


def fenced(lines: Iterable[str]) -> str:
    """Return lines as a block of code that nothing in them ends."""
    text = "\n".join(one_line(line, 2000) for line in lines)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(longest + 1, 3)
    return f"{fence}text\n{text}\n{fence}\n"


def fitting(pieces: Iterable[str], room: int) -> str:
    """Return the pieces that there is room for, and say so if there are more."""
    cut = "\n\n… the rest is left out: GitHub shows 1 MiB of a summary.\n"
    room -= len(cut.encode())
    made: list[str] = []
    for piece in pieces:
        size = len(piece.encode(errors="replace"))
        if size > room:
            return "".join(made) + (cut if room >= 0 else "")
        made.append(piece)
        room -= size
    return "".join(made)


def summary(recording: LoadedRun, where: str, last_failure: Callable[[UnitId], StepFailed | None]) -> Iterator[str]:
    """Yield the summary of a run in pieces: how it ended, its steps, its failures, the next command."""
    header, state = recording.header, recording.state
    symbol = _SYMBOLS.get(state.status, "")
    why = f": {markdown(state.reason)}" if state.status in ("paused", "interrupted") and state.reason else ""
    yield f"### {symbol} {markdown(header.pipeline)}: run {markdown(header.run_id)} {state.status}{why}\n\n"
    yield from _table(state)
    failures = list(_failures(state, last_failure))
    for cause in failures[:MAX_FAILURES]:
        yield f"\n**{markdown(str(cause.unit), 200)}**: {markdown(cause.error.message)}\n\n"
        lines = [*(f"$ {line}" for line in cause.error.command.splitlines()[:5]), *last_lines(cause)]
        yield fenced(lines) if lines else ""
        yield f"\n{markdown(details_command(header.run_id, cause, where), 1000)}\n"
        more = more_items(header.run_id, cause, where)
        yield f"\n{markdown(more)}\n" if more else ""
    if len(failures) > MAX_FAILURES:
        yield f"\n… and {counted(len(failures) - MAX_FAILURES, 'more failure')}.\n"
    dead = sum(1 for _ in dead_letters(state))
    if dead:
        yield f"\n{counted(dead, 'item')} failed permanently: {markdown(f'rerail dlq list {header.run_id}{where}')}\n"
    if state.status != "completed":
        yield f"\nNext: {markdown(next_command(header.run_id, state, where), 1000)}\n"
    yield "\n"


def _table(state: RunState) -> Iterator[str]:
    steps = [(unit.step, known) for unit, known in state.units.items() if unit.is_top_level]
    totals = totals_by_step(state)
    costs = any(COST in totals.get(step, NOTHING).metrics for step, _ in steps)
    yield "| Step | Status | Items | Time |" + (" Cost |\n" if costs else "\n")
    yield "|---|---|---|---|" + ("---|\n" if costs else "\n")
    for step, known in steps[:MAX_ROWS]:
        within = totals.get(step, NOTHING)
        cells = [markdown(step), _status(known), _items(known), seconds(within.worked or known.duration)]
        yield f"| {' | '.join([*cells, *([dollars(within.cost_usd)] if costs else [])])} |\n"
    if len(steps) > MAX_ROWS:
        yield f"\n… and {counted(len(steps) - MAX_ROWS, 'more step')}.\n"
    settled = sum(known.settled for step, known in steps if step not in state.hooks)
    spent = f", {dollars(state.spent[COST])}" if state.spent.get(COST) else ""
    yield f"\n{settled} of {counted(state.steps, 'step')} done, {seconds(state.active_seconds)} of work{spent}.\n"


def _status(known: UnitState) -> str:
    allowed = " (allowed)" if known.status == "failed" and known.allowed else ""
    waiting = f", next attempt at {known.retry_at.astimezone(UTC):%H:%M} UTC" if known.retry_at is not None else ""
    return f"{_SYMBOLS.get(known.status, '')} {known.status}{allowed}{waiting}".strip()


def _items(known: UnitState) -> str:
    items = known.items
    if items is None or not items.total:
        return ""
    failed = f", {items.failed} failed" if items.failed else ""
    return f"{items.closed}/{items.total}{failed}" if not items.is_loop else counted(items.closed, "iteration")


def _failures(state: RunState, last_failure: Callable[[UnitId], StepFailed | None]) -> Iterator[RootCause]:
    for number, (unit, known) in enumerate(state.units.items()):
        if not unit.is_top_level or known.status != "failed" or known.retry_at is not None or known.allowed:
            continue
        cause = root_cause(state, unit)
        if cause is not None:
            yield whole(cause, last_failure(cause.unit)) if number < MAX_ROWS else cause
