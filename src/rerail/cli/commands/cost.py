"""`rerail cost`: the ledger of every attempt, added up."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from rerail.app.runs import ledger, newest_first
from rerail.cli.options import find_run, json_option, open_store, run_argument, store_option
from rerail.cli.render.streams import print_json, say
from rerail.cli.render.table import Cell, columns, fitted, table
from rerail.cli.render.terminal import Terminal, out_look
from rerail.cli.render.units import counted as plural
from rerail.cli.render.units import seconds as spent_time
from rerail.cli.render.units import since_moment
from rerail.core.ledger import By, Sum, overall, summed
from rerail.core.money import OTHER_TOKENS, TOKENS, amount, tokens
from rerail.errors import RerailError

WIDEST_BAR = 24
_MIN_BAR = 4
_MIN_NAME = 12
_GAP = "  "
# Columns in the order in which a narrow terminal leaves them out.
_FIRST_TO_GO = ("REASONING", "CACHE WRITE", "CACHE READ", "LOST", "TIME", "OUT", "IN", "ATTEMPTS")
_SHORT = {
    "input_tokens": "in",
    "output_tokens": "out",
    "cache_read_tokens": "cache read",
    "cache_write_tokens": "cache write",
    "reasoning_tokens": "reasoning",
}


@click.command(epilog="Example: rerail cost --since 7d --by model")
@run_argument(required=False)
@click.option("--pipeline", default="", metavar="P", help="Only runs of this pipeline.")
@click.option("--since", default="", metavar="D", help="Only since a day (2026-11-01) or within a time (7d).")
@click.option(
    "--by",
    type=click.Choice(["step", "item", "model", "day", "run", "pipeline"]),
    help="Group by this. Default: steps of one run, else runs.",
)
@json_option("Every sum and the attempts behind it, as JSON.")
@store_option()
def cost(run_name: str | None, pipeline: str, since: str, by: By | None, as_json: bool, store_url: str | None) -> int:
    """Add up the cost of all attempts, failed and killed ones included."""
    store = open_store(store_url)
    runs = [find_run(store, run_name)] if run_name else newest_first(store)[::-1]
    start = since_moment(since, "rerail cost") if since else None
    by = by or ("step" if run_name else "run")
    found = ledger(store, runs, pipeline, whole=bool(run_name), unreadable=_say_not_counted)
    counted = [entry for entry in found if start is None or entry.at >= start]
    rows, total = summed(counted, by, zone=None), overall(counted)
    if as_json:
        attempts = [msgspec.to_builtins(entry) for entry in counted]
        said = {"by": by, "rows": [_row(one) for one in rows], "total": _row(total), "attempts": attempts}
        print_json(said)
    elif not total.metrics:
        asked = f" of {run_name}" * bool(run_name) + f" of {pipeline}" * bool(pipeline) + f" since {since}" * bool(since)
        say(f"rerail: no attempt reported anything through $RERAIL_METRICS{asked}")
    else:
        shown = [row for row in rows if row.cost_usd or tokens(row.metrics)]
        told = lines(shown or rows, total, by, out_look())
        sys.stdout.write("\n".join([*told, *_notes(rows, shown or rows, total, by)]) + "\n")
    return 0


def _notes(rows: list[Sum], shown: list[Sum], total: Sum, by: str) -> list[str]:
    """Return lines about rows that do not add up to the total, and about the meaning of LOST."""
    notes = []
    hidden = [row for row in rows if row not in shown]
    if hidden:
        attempts = plural(sum(row.attempts for row in hidden), "attempt")
        notes.append(f"not shown: {plural(len(hidden), by)} without cost or tokens ({attempts})")
    counts = sum(row.attempts for row in rows)
    if by == "model" and counts < total.attempts:
        notes.append(f"{plural(total.attempts - counts, 'attempt')} reported nothing")
    elif by == "model" and counts > total.attempts:
        notes.append("an attempt that used several models counts in each of their rows")
    if total.failed:
        notes.append("LOST: attempts that failed or were interrupted; they are in ATTEMPTS and COST too")
    return notes


def _say_not_counted(run_id: str, error: RerailError) -> None:
    say(f"rerail: run {run_id} is not counted: {error}")


def _row(one: Sum) -> dict[str, Any]:
    return {**msgspec.to_builtins(one), "cost_usd": one.cost_usd, "tokens": tokens(one.metrics)}


def lines(rows: list[Sum], total: Sum, by: str, look: Terminal) -> list[str]:
    """Return the sums as a table with bars; a narrow terminal gets fewer columns, never a number cut."""
    sums = [*rows, total]
    found = _columns(sums)
    longest = max(columns(one.name) for one in sums)
    unwanted = [head for head in _FIRST_TO_GO if head in found]
    while _room(found, look) < min(longest, _MIN_NAME) and unwanted:
        del found[unwanted.pop(0)]
    room = _room(found, look)
    width = min(longest, max(room, _MIN_NAME))
    bar_room = min(WIDEST_BAR, room - width - len(_GAP))
    most = max((one.cost_usd for one in rows), default=0) or 1
    block = "█" if look.unicode else "#"
    heads = [(head.rjust(len(cells[0])), "bold") for head, cells in found.items()]
    shown: list[list[Cell]] = [[(by.upper(), "bold"), *heads]]
    for at, one in enumerate(sums):
        style = "" if at < len(rows) else "bold"
        shown.append([(fitted(one.name, width, look), style), *((cells[at], style) for cells in found.values())])
    if bar_room >= _MIN_BAR:
        for at, row in enumerate(shown):
            bar = block * round(rows[at - 1].cost_usd / most * bar_room) if 0 < at <= len(rows) else ""
            row.append((bar, ""))
    return table(shown, look, cut=0)


def _columns(sums: list[Sum]) -> dict[str, list[str]]:
    """Return the cells of each column by its head, equally wide."""
    found = {
        "ATTEMPTS": [str(one.attempts) for one in sums],
        "LOST": [str(one.failed or "") for one in sums],
        "TIME": [spent_time(one.seconds) for one in sums],
    }
    for name in (*TOKENS, *OTHER_TOKENS):
        if sums[-1].metrics.get(name):
            found[_SHORT[name].upper()] = [_grouped(one.metrics.get(name, 0)) for one in sums]
    found["COST"] = [amount("cost_usd", one.cost_usd) for one in sums]
    widths = {head: max(map(len, (head, *cells))) for head, cells in found.items()}
    return {head: [cell.rjust(widths[head]) for cell in cells] for head, cells in found.items()}


def _room(found: dict[str, list[str]], look: Terminal) -> int:
    """Return the columns left in a line for the name and the bar."""
    return (look.width or 1000) - sum(len(cells[0]) + len(_GAP) for cells in found.values())


def _grouped(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")
