"""`rerail logs`: the output of steps in the order of time, also while they run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import click

from rerail.app.logs import LogReader, LogSelection, Piece
from rerail.cli.options import complete_step, find_run_and_step, open_store, run_argument, store_option
from rerail.cli.render.output import Colours
from rerail.cli.render.streams import printable, say
from rerail.cli.render.terminal import Terminal, out_look
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
@store_option()
def logs(
    run_name: str | None, step: str | None, item: str | None, attempt: int | None, follow: bool, store_url: str | None
) -> int:
    """Print the output of all steps, of one step, or of one item of a map, in order of time."""
    store = open_store(store_url)
    run_id, (step, item) = find_run_and_step(store, run_name, step, item)
    if step is not None and item is None:
        step, item = UnitId.parse(step)  # as `show` names it
    if attempt is not None and step is None:
        raise UsageError("--attempt needs a STEP", hint=f"rerail logs {run_id} STEP --attempt {attempt}")
    wanted = LogSelection(step=step or "", item=item, attempt=attempt)
    _check_selection(store, run_id, wanted)
    lists_of = () if step else _listing_maps(store, run_id)
    reader = LogReader(store.logs(run_id), wanted, lists_of)
    printer = _Printer(out_look(), only="" if step is None else str(UnitId(step, item)))
    for piece in _pieces(store, run_id, reader, follow=follow):
        printer.put(piece)
    printer.end()
    if lists_of:
        say(f"rerail: without the list of the items of {', '.join(lists_of)}: rerail logs {run_id} {lists_of[0]}")
    if not printer.printed:
        say(f"rerail: no output\n  next: rerail show {run_id}")
    return 0


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
    yield from reader.ordered()
    while follow:
        alive = store.ownership(run_id).alive
        yield from reader.new()
        if not alive:
            break
        sys.stdout.flush()
        time.sleep(POLL_SECONDS)
    yield from reader.new()
    yield from reader.rests()


class _Printer:
    """Printer of whole lines to stdout, each with its step if there are several; raw if stdout is not a terminal."""

    def __init__(self, look: Terminal, *, only: str) -> None:
        self._raw = not os.isatty(1)
        self._only = only  # needs no title, as it was asked for
        self._pending: dict[str, tuple[str, bytes]] = {}
        self._colours = Colours(look)
        self.printed = False

    def put(self, piece: Piece) -> None:
        self.printed = True
        stream, title = piece.stream, piece.title
        for other in [other for other in self._pending if stream != other and stream.startswith(other)]:
            self._line(*self._pending.pop(other))  # a long log goes on in another file
        *lines, rest = (self._pending.pop(stream, ("", b""))[1] + piece.data).split(b"\n")
        for line in lines:
            self._line(title, line)
        if rest:
            self._pending[stream] = (title, rest)

    def end(self) -> None:
        for title, rest in self._pending.values():
            self._line(title, rest)
        self._pending.clear()
        sys.stdout.flush()

    def _line(self, title: str, line: bytes) -> None:
        if not self._raw:
            line = printable(line.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1]).encode()
        if title != self._only:
            line = self._colours.title(title).encode() + line
        sys.stdout.buffer.write(line + b"\n")
