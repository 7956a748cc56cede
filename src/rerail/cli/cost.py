"""`rerail cost`: the ledger of every attempt, added up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import msgspec

from rerail.cli.options import find_run, json_option, open_store, run_argument, store_option
from rerail.cli.output import STDOUT, say
from rerail.cli.terminal import Look, look_of
from rerail.core.ledger import By, Entry, Sum, entries, overall, summed
from rerail.core.money import OTHER_TOKENS, TOKENS
from rerail.errors import RerailError, UsageError
from rerail.loaders.fields import parse_duration
from rerail.stores.directory import DirectoryStore

WIDEST_BAR = 24
_SHORT = {
    "input_tokens": "in",
    "output_tokens": "out",
    "cache_read_tokens": "cache read",
    "cache_write_tokens": "cache write",
}


@click.command(epilog="Example: rerail cost --since 7d --by model")
@run_argument(required=False)
@click.option("--pipeline", default="", metavar="P", help="Only runs of this pipeline.")
@click.option("--since", default="", metavar="D", help="Only what was spent since a day (2026-11-01) or for a time (7d).")
@click.option(
    "--by",
    type=click.Choice(["step", "model", "day", "run", "pipeline"]),
    help="What to add up by. By default steps of one run, else runs.",
)
@json_option("Print every sum, and every attempt it is made of, as JSON.")
@store_option()
def cost(run_name: str | None, pipeline: str, since: str, by: By | None, as_json: bool, store_url: str | None) -> int:
    """Add up what attempts have cost: those that failed or were killed too, each of them once."""
    store = open_store(store_url)
    runs = [find_run(store, run_name)] if run_name else sorted(store.runs())
    start = _since(since) if since else None
    by = by or ("step" if run_name else "run")
    ledger = [entry for entry in _ledger(store, runs, pipeline) if start is None or entry.at >= start]
    rows, total = summed(ledger, by), overall(ledger)
    if as_json:
        attempts = [msgspec.to_builtins(entry) for entry in ledger]
        said = {"by": by, "rows": [_row(one) for one in rows], "total": _row(total), "attempts": attempts}
        sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
    elif not ledger:
        say("rerail: nothing was reported through $RERAIL_METRICS")
    else:
        sys.stdout.write(table(rows, total, by, look_of(STDOUT)))
    return 0


def _ledger(store: DirectoryStore, runs: list[str], pipeline: str) -> Iterator[Entry]:
    for run_id in runs:
        try:
            header = store.header(run_id)
            name = header.pipeline if header else ""
            if not pipeline or pipeline == name:
                yield from entries(run_id, name, store.history(run_id))
        except RerailError as error:
            say(f"rerail: run {run_id} is not counted: {error}")


def _since(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        pass
    days = text.removesuffix("d")
    seconds = float(days) * 86400 if text.endswith("d") and days.replace(".", "", 1).isdigit() else parse_duration(text)
    if seconds is None:
        raise UsageError(
            f"--since {text!r}: neither a day such as 2026-11-01 nor a time such as 7d", hint="rerail cost --help"
        )
    return datetime.now(UTC) - timedelta(seconds=seconds)


def _row(one: Sum) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(one),
        "cost_usd": one.cost_usd,
        "tokens": sum(one.metrics.get(name, 0) for name in TOKENS),
    }


def table(rows: list[Sum], total: Sum, by: str, look: Look) -> str:
    """The sums below each other, with a bar for each."""
    names = [name for name in (*TOKENS, *OTHER_TOKENS) if total.metrics.get(name)]
    heads = [by.upper(), "ATTEMPTS", "LOST", *(_SHORT.get(name, name).upper() for name in names), "COST", ""]
    most = max((one.cost_usd for one in rows), default=0) or 1
    lines = [heads]
    for one in (*rows, total):
        counts = [f"{one.metrics.get(name, 0):,.0f}".replace(",", " ") for name in names]
        bar = "" if one is total else "█" * round(one.cost_usd / most * WIDEST_BAR)
        lines.append([one.name, str(one.attempts), str(one.failed or ""), *counts, f"${one.cost_usd:,.2f}", bar])
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    shown = []
    for number, line in enumerate(lines):
        cells = [line[0].ljust(widths[0])] + [
            cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:-1], strict=True)
        ]
        text = "  ".join([*cells, line[-1]]).rstrip()
        shown.append(look.paint(text, "bold") if number in (0, len(lines) - 1) else text)
    return "\n".join(shown) + "\n"
