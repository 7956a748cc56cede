"""Failures as text: the step, the item in which it began, its command, its last lines, and where to look next."""

from __future__ import annotations

import shlex
import textwrap

from rerail.cli.render.streams import say, say_raw
from rerail.cli.render.table import Cell, table
from rerail.cli.render.terminal import Terminal
from rerail.cli.render.units import counted
from rerail.core.events import Failure
from rerail.core.failures import RootCause
from rerail.core.unit_id import UnitId
from rerail.text import one_line, without_escapes

SHOWN_LINES = 12


def logs_command(run_id: str, unit: UnitId, where: str) -> str:
    """Return the command that prints the output of a unit."""
    step, item = unit
    return f"rerail logs {run_id} {shlex.quote(step)}{'' if item is None else ' ' + _argument(item)}{where}"


def details_command(run_id: str, cause: RootCause, where: str) -> str:
    """Return the command that shows more of a failure: all errors of an item of a map, or the output of a step."""
    if cause.item is None or cause.item.item is None:
        return logs_command(run_id, cause.unit, where)
    return f"rerail dlq show {run_id}{where} {_argument(cause.item.item)}"


def more_items(run_id: str, cause: RootCause, where: str) -> str:
    """Say how many other items failed, and how to list them; '' if there are none."""
    if not cause.more_items:
        return ""
    return f"{counted(cause.more_items, 'more item')} failed: rerail dlq list {run_id}{where}"


def last_lines(cause: RootCause, most: int = SHOWN_LINES) -> list[str]:
    """Return the last lines of the output that say why."""
    return without_escapes(cause.tail).splitlines()[-most:]


def say_failure(run_id: str, error: Failure, cause: RootCause, next_command: str, where: str, look: Terminal) -> None:
    """Print everything about a failure that helps to fix it."""
    rows = _rows(run_id, error, cause, where)
    more = more_items(run_id, cause, where)
    if not look.unicode or not look.colour:
        say(f"rerail: step {error.step} failed: {error.message}")
        for label, text in rows:
            say(f"  {label}: {text}")
        for line in last_lines(cause):
            say(f"  | {line}")
        say(f"{f'  {more}' + chr(10) if more else ''}  next: {next_command}")
        return
    bar = look.paint("│", "red")
    head = look.paint(f"step {one_line(error.step)} failed", "bold")
    say_raw(look.paint("╭─ ", "red") + f"{head}: {one_line(error.message)}")
    cells: list[tuple[Cell, Cell]] = [((label, "dim"), (text, "")) for label, text in rows]
    for line in table(cells, look, indent="  "):
        say_raw(bar + line[1:])
    for line in last_lines(cause):
        for piece in textwrap.wrap(one_line(line, 4000), look.room(4), drop_whitespace=False) or [""]:
            say_raw(f"{bar}   {piece}")
    if more:
        say_raw(f"{bar} {one_line(more)}")
    say_raw(look.paint("╰─ ", "red") + f"next: {look.paint(next_command, 'bold')}")


def _rows(run_id: str, error: Failure, cause: RootCause, where: str) -> list[tuple[str, str]]:
    rows = []
    if cause.unit != (error.step, None):
        rows.append(("item" if cause.unit == cause.item else "step", str(cause.unit)))
    if cause.error.command:
        rows.append(("command", _first_line(cause.error.command)))
    ended = cause.error.signal or (f"exit code {cause.error.exit_code}" if cause.error.exit_code else "")
    if ended and str(cause.error.signal or cause.error.exit_code) not in error.message:
        rows.append(("ended", ended))
    rows.append(("logs", logs_command(run_id, cause.unit, where)))
    if cause.item is not None:
        rows.append(("details", details_command(run_id, cause, where)))
    return rows


def _argument(text: str) -> str:
    return shlex.quote(text) if not text.startswith("-") else f"-- {shlex.quote(text)}"


def _first_line(command: str) -> str:
    lines = command.splitlines() or [""]
    more = f" (+{len(lines) - 1} lines)" if len(lines) > 1 else ""
    return f"{one_line(lines[0])}{more}"
