"""Text of `rerail show RUN STEP`: one step, item or iteration with everything that is known about it."""

from __future__ import annotations

import shlex
import sys

import msgspec

from rerail.app.step_page import AttemptRow, StepPage, UnitRow, inspect_step
from rerail.cli.render.next_command import next_command
from rerail.cli.render.run import SHOWN_LINES, artifact_rows, waited
from rerail.cli.render.streams import print_json, printable
from rerail.cli.render.table import Cell, table
from rerail.cli.render.terminal import STYLES, Terminal, out_look
from rerail.cli.render.units import counted, dollars, plain, seconds
from rerail.core.money import COST, total
from rerail.core.unit_id import UnitId
from rerail.ports import Store
from rerail.text import one_line, without_escapes

MAX_ROWS = 50
MAX_COMMAND_LINES = 12


def show_step(store: Store, run_id: str, unit: UnitId, where: str, *, as_json: bool) -> int:
    """Print the page of one unit."""
    recording = store.read(run_id)
    alive = store.ownership(run_id).alive
    page = inspect_step(store, recording, unit, alive=alive)
    following = _next(page, unit, alive=alive, where=where) or next_command(run_id, recording.state, where)
    if alive:
        following = f"rerail watch {run_id}{where}"
    elif recording.state.status == "completed":
        following = ""
    if as_json:
        data = msgspec.to_builtins(page)
        for record in data["artifacts"]:
            record.pop("internal", None)
        print_json({**data, "next": following})
        return 0
    look = out_look()
    parts = [
        _overview(page, unit, following, look),
        _attempts(page, look),
        _units(page.iterations, "ITERATION", look),
        _units(page.inside, "UNIT", look),
        artifact_rows([(None, record) for record in page.artifacts], look),
        _error(page, look),
        _log(page, look),
    ]
    sys.stdout.write("\n\n".join("\n".join(part) for part in parts if part) + "\n")
    return 0


def _next(page: StepPage, unit: UnitId, *, alive: bool, where: str) -> str:
    if not alive and unit.item is not None:
        return f"rerail dlq show {page.run_id} {shlex.quote(unit.item)}{where}" if page.is_dead_letter else ""
    return ""


def _overview(page: StepPage, unit: UnitId, following: str, look: Terminal) -> list[str]:
    shown = "allowed" if page.attempts and page.attempts[-1].allowed and page.status == "failed" else page.status
    took = seconds(page.duration_seconds)
    if len(page.attempts) > 1 and page.worked_seconds:
        took += f" ({seconds(page.worked_seconds)} in all attempts)"
    lines = page.command.splitlines()
    if len(lines) > MAX_COMMAND_LINES:
        lines = [
            *lines[:MAX_COMMAND_LINES],
            f"… {counted(len(page.command.splitlines()) - MAX_COMMAND_LINES, 'more line')}",
        ]
    note = {"recorded": "", "evaluated": "", "declared": "  (as declared)" if "${{" in page.command else ""}
    rows: list[tuple[str, str, str]] = [
        ("step", str(unit), "bold"),
        ("run", page.run_id, ""),
        ("kind", page.kind, ""),
        ("status", f"{look.symbol(shown)} {page.status}" if page.status else "", STYLES.get(shown, "")),
        ("next", following, "bold"),
        ("why", page.why, ""),
        ("needs", ", ".join(page.needs), ""),
        *(
            ("command" if at == 0 else "", line + (note[page.command_source] if at == 0 else ""), "")
            for at, line in enumerate(lines)
        ),
        ("took", took, ""),
        ("cost", dollars(page.metrics.get(COST, 0) or total(one.cost_usd for one in page.inside)), ""),
        *(
            ("outputs" if at == 0 else "", f"{name} = {plain(value)}", "")
            for at, (name, value) in enumerate(page.outputs.items())
        ),
    ]
    cells: list[tuple[Cell, Cell]] = [((name, "dim"), (text, style)) for name, text, style in rows if text]
    return table(cells, look)


def _attempts(page: StepPage, look: Terminal) -> list[str]:
    if not page.attempts:
        return []
    rows = [
        [
            (str(one.attempt), ""),
            (str(one.invocation), "dim"),
            (one.started_at.astimezone().strftime("%Y-%m-%d %H:%M:%S"), ""),
            (seconds(one.duration_seconds) or (waited(one.started_at) if page.status == "running" else ""), ""),
            (f"{look.symbol(one.outcome)} {one.outcome}", STYLES.get(one.outcome, "")),
            (dollars(one.metrics.get(COST, 0)), ""),
            (_exit(one), ""),
            (one.why, "dim"),
        ]
        for one in page.attempts[-MAX_ROWS:]
    ]
    heads = ("ATTEMPT", "INVOCATION", "STARTED", "TOOK", "OUTCOME", "COST", "ERROR", "WHY IT RAN")
    return _table(heads, rows, look)


def _exit(one: AttemptRow) -> str:
    if one.outcome == "interrupted":
        return one.reason
    return one_line(one.error.message, 500) if one.error is not None and one.outcome == "failed" else ""


def _units(units: list[UnitRow], head: str, look: Terminal) -> list[str]:
    if not units:
        return []
    rows = [
        [
            (UnitId(one.step, one.item).key if head == "ITERATION" else str(UnitId(one.step, one.item)), ""),
            (f"{look.symbol(one.status)} {one.status}", STYLES.get(one.status, "")),
            (str(one.attempts) if one.attempts > 1 else "", ""),
            (seconds(one.duration_seconds), ""),
            (dollars(one.cost_usd), ""),
            (one.error or " ".join(f"{name}={plain(value)}" for name, value in one.outputs.items()), "dim"),
        ]
        for one in units[:MAX_ROWS]
    ]
    if len(units) > MAX_ROWS:
        rows.append([(f"and {len(units) - MAX_ROWS} more (--json)", "dim"), *[("", "")] * 5])
    return _table((head, "STATUS", "ATTEMPTS", "TOOK", "COST", "OUTPUTS"), rows, look)


def _table(heads: tuple[str, ...], rows: list[list[Cell]], look: Terminal) -> list[str]:
    """Return a table without its empty columns."""
    used = [at for at in range(len(heads)) if any(row[at][0] for row in rows)]
    cells: list[list[Cell]] = [[(heads[at], "dim") for at in used], *([row[at] for at in used] for row in rows)]
    return table(cells, look, indent="  ")


def _error(page: StepPage, look: Terminal) -> list[str]:
    if page.error is None:
        return []
    lines = without_escapes(page.error.traceback or page.error.stderr_tail).splitlines()[-SHOWN_LINES:]
    return [
        look.paint(one_line(f"error  {page.error.message}", 1000), "red"),
        *(f"  | {printable(line)}" for line in lines),
    ]


def _log(page: StepPage, look: Terminal) -> list[str]:
    if not page.log_tail:
        return []
    command = f"rerail logs {page.run_id} {page.step}" + (f" {page.item}" if page.item is not None else "")
    return [look.paint(f"log    {command}", "dim"), *(f"  | {printable(line)}" for line in page.log_tail)]
