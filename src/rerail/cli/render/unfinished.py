"""Text about unfinished runs: how far they are, and whether to resume one or to start a new one."""

from __future__ import annotations

import contextlib
import os
import termios
from collections.abc import Sequence
from typing import Any

import click

from rerail.cli.render.prompt import MAX_ANSWER, STDIN, is_interactive
from rerail.cli.render.streams import STDERR, say, say_raw
from rerail.cli.render.terminal import terminal_of
from rerail.cli.render.units import dollars

MAX_OTHERS = 3


def how_far(row: dict[str, Any]) -> str:
    """Describe the status of a run, and the work that a new run would repeat."""
    told = [row["status"]] if row["status"] != "running" else []
    if row.get("steps_total"):
        told.append(f"{row['steps_completed']} of {row['steps_total']} steps done")
    if row.get("items_total"):
        told.append(f"{row['items_done']} of {row['items_total']} items")
    if row.get("dead_letters"):
        told.append(f"{row['dead_letters']} failed")
    return ", ".join(filter(None, (*told, dollars(row.get("total_cost_usd") or 0))))


def others(rows: Sequence[dict[str, Any]]) -> str:
    """Name the first few runs of many."""
    told = ", ".join(f"{row['run_id']} ({row['pipeline']}, {row['status']})" for row in rows[:MAX_OTHERS])
    more = f" and {len(rows) - MAX_OTHERS} more (rerail list --resumable)" if len(rows) > MAX_OTHERS else ""
    return told + more


def say_same_work(rows: Sequence[dict[str, Any]], where: str) -> None:
    """Print that the newest of these runs has begun the same work, and the command that goes on with it."""
    say(f"rerail: note: {_sentence(rows)}; {_command(rows[0], where)}")


def asks_to_resume(rows: Sequence[dict[str, Any]]) -> bool | None:
    """Ask whether to resume the newest of these runs; None where there is no terminal to ask at, or it is running.

    Raise click.Abort at the end of the input.
    """
    look = terminal_of(STDERR)
    if rows[0]["status"] == "running" or look.ci or not is_interactive():
        return None
    with contextlib.suppress(termios.error):
        termios.tcflush(STDIN, termios.TCIFLUSH)  # earlier input is no answer
    say_raw(f"{look.paint('?', 'yellow')} {look.paint(_sentence(rows), 'bold')}")
    while True:
        say_raw("  [r]esume it, or start a [n]ew run? Enter to resume (--resume and --fresh answer beforehand)")
        say_raw("  > ", end="")
        data = os.read(STDIN, MAX_ANSWER)
        if not data:
            say_raw("")
            raise click.Abort
        answer = data.decode(errors="replace").strip().lower()
        if answer in ("", "r", "resume"):
            return True
        if answer in ("n", "new"):
            return False


def _sentence(rows: Sequence[dict[str, Any]]) -> str:
    state = "running" if rows[0]["status"] == "running" else "unfinished"
    more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
    return f"run {rows[0]['run_id']} with the same params is {state}{more}: {how_far(rows[0])}"


def _command(row: dict[str, Any], where: str) -> str:
    if row["status"] == "running":
        return f"watch it with: rerail watch {row['run_id']}{where}"
    return f"continue it with: rerail resume {row['run_id']}{where}"
