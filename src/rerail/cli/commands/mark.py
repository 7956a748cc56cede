"""`rerail mark`: the status of a step as a person knows it, where rerail cannot; recorded in the journal."""

from __future__ import annotations

import click

from rerail import api
from rerail.app import interventions
from rerail.cli.options import complete_step, find_run, open_store, run_argument, store_flag, store_option
from rerail.cli.render.prompt import who
from rerail.cli.render.streams import say
from rerail.core.unit_id import UnitId
from rerail.errors import UsageError


@click.command(epilog="Example: rerail mark last deploy completed")
@run_argument()
@click.argument("step", shell_complete=complete_step)
@click.argument("status", type=click.Choice(["completed", "failed", "pending", "skipped"]))
@click.option(
    "--accept", "paths", multiple=True, metavar="PATH", help="Accept this changed artifact as it is now; repeatable."
)
@store_option()
def mark(run_name: str, step: str, status: str, paths: tuple[str, ...], store_url: str | None) -> int:
    """Set the status of a step by hand, where rerail cannot know it.

    `skipped` is as if its `when` were false: it does not run, and what depends on it does.
    `failed` and `pending` make it rerun: a map, loop or pipeline with everything in it, an item with all its steps.
    """
    store = open_store(store_url)
    run_id = find_run(store, run_name)
    recording = store.read(run_id)
    known = [str(UnitId(record.id, record.item)) for record in api.checkpoint(store, recording).steps]
    if step not in known:
        raise UsageError(
            f"run {run_id} has no step {step!r}; it has {', '.join(known[:12])}", hint=f"rerail show {run_id}"
        )
    if paths and status != "completed":
        raise UsageError(
            "--accept goes with the status `completed`", hint=f"rerail mark {run_id} {step} completed --accept …"
        )
    units = {str(unit): unit for unit in recording.state.units}
    if paths:
        unit = units.get(step, UnitId(step))
        count = interventions.accept(store, run_id, unit, paths, who(), base_dir=store.base_dir)
        what = "accepted" if count else "nothing to accept, unchanged:"
        say(f"rerail: {what} {', '.join(paths)} of {step}\n  next: rerail resume {run_id}{store_flag(store)}")
        return 0
    interventions.mark(store, run_id, units.get(step, UnitId(step)), status, who(), base_dir=store.base_dir)
    say(f"rerail: marked {step} as {status}\n  next: rerail resume {run_id}{store_flag(store)}")
    return 0
