"""`rerail logs`: the output of steps in the order of time, also while they run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

import click
import msgspec

from rerail.app.logs import LogLine, LogReader, LogSelection, Piece, assembled, last_lines
from rerail.cli.options import complete_step, find_run_and_step, json_option, open_store, run_argument, store_option
from rerail.cli.render.output import Colours
from rerail.cli.render.streams import printable, say
from rerail.cli.render.terminal import Terminal, out_look
from rerail.cli.render.units import since_moment
from rerail.core.unit_id import UnitId, is_step_within
from rerail.errors import UsageError
from rerail.executors.logs import begun, is_pooled
from rerail.ports import Store

POLL_SECONDS = 0.1


@click.command(epilog="Example: rerail logs last build -f")
@run_argument(required=False)
@click.argument("step", required=False, default=None, shell_complete=complete_step)
@click.argument("item", required=False, default=None)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Only this attempt of STEP.")
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the run ends.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--since", metavar="D", help="Only lines since then: 10m, 2h, 7d ago, or 2026-11-01.")
@click.option("-t", "--timestamps", is_flag=True, help="Print the time of each line before it.")
@click.option("--failed", is_flag=True, help="Only the output of steps and items that failed.")
@json_option("A JSON object per line: step, item, attempt, stream, at, text.")
@store_option()
def logs(
    run_name: str | None,
    step: str | None,
    item: str | None,
    attempt: int | None,
    follow: bool,
    tail: int | None,
    since: str | None,
    timestamps: bool,
    failed: bool,
    as_json: bool,
    store_url: str | None,
) -> int:
    """Print the output of all steps, of one step, or of one item of a map, in order of time."""
    if failed and follow:
        raise UsageError("--failed and --follow exclude each other", hint="rerail logs --failed")
    after = since_moment(since, "rerail logs").timestamp() if since else 0.0
    store = open_store(store_url)
    run_id, (step, item) = find_run_and_step(store, run_name, step, item)
    if step is not None and item is None:
        step, item = UnitId.parse(step)  # as `show` names it
    if attempt is not None and step is None:
        raise UsageError("--attempt needs a STEP", hint=f"rerail logs {run_id} STEP --attempt {attempt}")
    wanted = LogSelection(step=step or "", item=item, attempt=attempt)
    _check_selection(store, run_id, wanted)
    if failed:
        wanted = msgspec.structs.replace(wanted, units=_failed(store, run_id))
    lists_of = () if step else _listing_maps(store, run_id)

    def lines(*, follow: bool) -> Iterator[LogLine]:
        reader = LogReader(store.logs(run_id), wanted, lists_of)
        return (line for line in assembled(_pieces(store, run_id, reader, follow=follow)) if line.at >= after)

    found = lines(follow=follow)
    if tail is not None:  # counted, then printed: no number of lines is too many to be held
        found = last_lines(found, sum(1 for _ in lines(follow=False)), tail)
    only = "" if step is None else str(UnitId(step, item))
    printer: _Printer = _JsonPrinter() if as_json else _TextPrinter(out_look(), only, attempt, timestamps=timestamps)
    count = 0
    for count, line in enumerate(found, 1):  # noqa: B007 - counts
        printer.put(line)
    sys.stdout.flush()
    if lists_of:
        say(f"rerail: without the list of the items of {', '.join(lists_of)}: rerail logs {run_id} {lists_of[0]}")
    if not count:
        chosen = "no step or item failed" if wanted.units == frozenset() else "no output"
        say(f"rerail: {chosen}{f' since {since}' if since else ''}\n  next: rerail show {run_id}")
    return 0


def _failed(store: Store, run_id: str) -> frozenset[UnitId]:
    units = store.read(run_id).state.units
    return frozenset(unit for unit, known in units.items() if known.status == "failed")


def _listing_maps(store: Store, run_id: str) -> list[str]:
    """Return the maps whose own output was a list of items; that of one that failed to make a list is no list."""
    units = store.read(run_id).state.units.items()
    maps = [unit.step for unit, known in units if unit.item is None and known.items is not None and known.items.total]
    files = {
        log.name.rpartition(".")[0].rpartition(".")[0] for log in store.logs(run_id).files() if not is_pooled(log.name)
    }
    return [step for step in maps if step.replace("/", "~") in files]


def _check_selection(store: Store, run_id: str, wanted: LogSelection) -> None:
    """Reject a step or item without events, unless it has printed something; raise UsageError."""
    units = store.read(run_id).state.units
    known = {unit.step for unit in units}
    entries = begun(store.logs(run_id))
    printed = [one for one in entries if is_step_within(one.step, wanted.step)]
    happened = any(wanted.takes(*unit, one.attempts) for unit, one in units.items() if unit.item is not None)
    if (
        wanted.item is not None
        and not happened
        and not any(wanted.takes(one.step, one.item, one.attempt) for one in printed)
    ):
        raise UsageError(
            f"run {run_id} has no output of item {wanted.item!r} of step {wanted.step!r}",
            hint=f"rerail show {run_id} {wanted.step}",
        )
    if wanted.step and wanted.step not in known and not printed:
        names = ", ".join(sorted(known)[:12]) or "none yet"
        raise UsageError(
            f"run {run_id} has no step {wanted.step!r} with events (steps: {names})",
            hint=f"rerail show {run_id}",
        )


def _pieces(store: Store, run_id: str, reader: LogReader, *, follow: bool) -> Iterator[Piece]:
    yield from reader.ordered(ended=not store.ownership(run_id).alive)
    while follow:
        alive = store.ownership(run_id).alive
        yield from reader.new()
        if not alive:
            break
        sys.stdout.flush()
        time.sleep(POLL_SECONDS)
    yield from reader.new()
    yield from reader.rests()


class _Printer(Protocol):
    """Printer of lines to stdout."""

    def put(self, line: LogLine) -> None: ...


class _JsonPrinter:
    """Printer of a JSON object per line."""

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode

    def put(self, line: LogLine) -> None:
        origin = line.origin
        fields = {
            "step": origin.unit.step,
            "item": origin.unit.item,
            "attempt": origin.attempt,
            "stream": origin.stream,
            "at": _moment(line.at),
            "text": line.text.decode(errors="replace"),
        }
        sys.stdout.buffer.write(self._encode(fields) + b"\n")


class _TextPrinter:
    """Printer of lines, each with its step if there are several; raw if stdout is not a terminal."""

    def __init__(self, look: Terminal, only: str, attempt: int | None, *, timestamps: bool) -> None:
        self._raw = not os.isatty(1)
        self._only = only  # needs no title, as it was asked for
        self._single = attempt is not None
        self._timestamps = timestamps
        self._look = look
        self._colours = Colours(look)
        self._attempts: dict[UnitId, int] = {}  # of which the last line was

    def put(self, line: LogLine) -> None:
        origin, text = line.origin, line.text
        if not self._raw:
            text = printable(text.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1]).encode()
        start = self._colours.title(origin.title).encode() if origin.title != self._only else b""
        if self._timestamps:
            start = self._look.paint(_local(line.at), "dim").encode() + b" " + start
        if not self._single and self._attempts.get(origin.unit, 1) != origin.attempt:
            rule = self._look.paint(f"--- attempt {origin.attempt} ---", "dim")
            sys.stdout.buffer.write(start + rule.encode() + b"\n")
        self._attempts[origin.unit] = origin.attempt
        sys.stdout.buffer.write(start + text + b"\n")


@lru_cache(maxsize=64)
def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(round(at, 3), UTC)


@lru_cache(maxsize=64)
def _local(at: float) -> str:
    """Format a time of the timeline, which is known to some hundredths of a second."""
    return _moment(at).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-4]
