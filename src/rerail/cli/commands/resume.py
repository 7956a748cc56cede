"""`rerail resume`: continue a run, after its artifacts and records are proved."""

from __future__ import annotations

import shlex
from typing import Any

import click

from rerail.app.runs import unfinished
from rerail.cli.execute import ExecuteFlags, changes_option, execute_options, resume_run
from rerail.cli.help import SectionedCommand
from rerail.cli.options import find_run, find_run_or_newest, open_store, run_argument, store_flag
from rerail.cli.render.streams import say
from rerail.cli.render.unfinished import others
from rerail.errors import RunNotFound, UsageError


@click.command(
    cls=SectionedCommand, epilog="Example: rerail resume          (the newest unfinished run of this directory)"
)
@run_argument(required=False)
@changes_option()
@click.option(
    "--verify",
    type=click.Choice(["full", "fast"]),
    default="full",
    show_default=True,
    help="Verify artifacts by content (full), or by size, times and inode (fast).",
)
@click.option("-p", "--param", "params", multiple=True, hidden=True, help="Belongs to `fork`.")
@click.option("--keep-changes", is_flag=True, help="Keep artifacts that were changed by hand, instead of restoring them.")
@click.option("--no-restore", is_flag=True, help="Rerun steps instead of restoring their artifacts.")
@execute_options()
def resume(run_name: str | None, params: tuple[str, ...], store_url: str | None, **wishes: Any) -> int:
    """Continue a run where it stopped, after verifying the artifacts it relies on."""
    store = open_store(store_url)
    if params:
        run_id = find_run_or_newest(store, run_name)
        given = " ".join(f"-p {shlex.quote(text)}" for text in params)
        raise UsageError(
            "the params of a run never change; a fork reuses what they do not touch",
            hint=f"rerail fork {run_id} {given}{store_flag(store)}",
        )
    if run_name is not None:
        run_id = find_run(store, run_name)
    else:
        if not store.runs():
            raise RunNotFound(f"no runs in {store.url}", hint="rerail run PIPELINE")
        rows = unfinished(store)
        if not rows:
            say("rerail: nothing to resume: every run is completed")
            return 0
        run_id = rows[0]["run_id"]
        if len(rows) > 1 and not wishes["quiet"]:
            say(f"rerail: {run_id} is the newest of {len(rows)} unfinished runs; also unfinished: {others(rows[1:])}")
    return resume_run(store, run_id, ExecuteFlags.parse(**wishes))
