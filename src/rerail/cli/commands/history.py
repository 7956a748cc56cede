"""`rerail history`: every event of a run."""

from __future__ import annotations

import sys

import click
import msgspec

from rerail.cli.options import complete_step, find_run_and_step, json_option, open_store, run_argument, store_option
from rerail.cli.render.events import sentence
from rerail.cli.render.streams import STDOUT, print_json, printable, wrapped
from rerail.core.events import Event, UnitEvent
from rerail.core.unit_id import UnitId
from rerail.errors import UsageError

_INDENT = 41  # where the words of an event begin


@click.command(epilog="Example: rerail history last publish")
@run_argument(required=False)
@click.argument("step", required=False, default=None, shell_complete=complete_step)
@click.argument("item", required=False, default=None)
@click.option(
    "--step", "named", default=None, metavar="STEP", help="Only events of this step, or of an item: write[intro]."
)
@json_option("An array of events, newest first.")
@store_option()
def history(
    run_name: str | None, step: str | None, item: str | None, named: str | None, as_json: bool, store_url: str | None
) -> int:
    """Show every event of a run, or of one step with everything inside it: oldest first, with --json newest first."""
    store = open_store(store_url)
    run_id, (step, item) = find_run_and_step(store, run_name, step, item)
    if step is not None and named is not None:
        raise UsageError("STEP and --step exclude each other", hint=f"rerail history {run_id} {step}")
    step = step if step is not None else named
    records = list(store.history(run_id))
    if step is not None:
        records = _of_step(records, UnitId(step, item) if item is not None else UnitId.parse(step), run_id)
    if as_json:
        print_json([{"seq": seq, **msgspec.to_builtins(event)} for seq, event in reversed(records)])
        return 0
    zone = records[-1][1].at.astimezone().strftime("%Z") if records else ""
    sys.stdout.write(f"  SEQ  {f'TIME ({zone})':<19}  EVENT\n")
    for seq, event in records:
        at = event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        line = printable(f"{seq:>5}  {at}  {sentence(event)}")
        sys.stdout.write(wrapped(line, STDOUT, indent=_INDENT) + "\n")
    return 0


def _of_step(records: list[tuple[int, Event]], unit: UnitId, run_id: str) -> list[tuple[int, Event]]:
    """Return the events of a unit and of everything inside it; raise UsageError if there are none."""
    of_units = [(seq, event) for seq, event in records if isinstance(event, UnitEvent)]
    found: list[tuple[int, Event]] = [(seq, event) for seq, event in of_units if event.unit.is_within(unit)]
    if not found:
        steps = ", ".join(list(dict.fromkeys(event.step for _, event in of_units))[:12])
        raise UsageError(
            f"run {run_id} has no events of {unit} (steps: {steps or 'none yet'})", hint=f"rerail show {run_id}"
        )
    return found
