"""`rerail plan`: the plan of a run, with reasons."""

from __future__ import annotations

import os
from typing import Any

import click

from rerail import api
from rerail.app.masking import present_secrets, require_no_secrets_in_pipeline
from rerail.app.runs import owner_fields, unfinished
from rerail.cli.execute import ExecuteFlags, resume_run, show_plan
from rerail.cli.options import complete_run, default_pipeline, find_run, json_option, open_store, store_option
from rerail.cli.render.streams import print_json, say
from rerail.core.model import RunOptions
from rerail.core.planner import plan as plan_of
from rerail.core.state import RunState
from rerail.errors import RunBusy, UsageError


@click.command(epilog="Example: rerail plan last")
@click.argument("what", metavar="[PIPELINE|RUN]", required=False, shell_complete=complete_run)
@click.option("--verify", type=click.Choice(["full", "fast"]), default="full", help="As in `rerail resume`.")
@click.option("--keep-changes", is_flag=True, help="As in `rerail resume`.")
@click.option("--no-restore", is_flag=True, help="As in `rerail resume`.")
@json_option("The decisions and their reasons, as JSON.")
@store_option()
def plan(what: str | None, as_json: bool, store_url: str | None, **wishes: Any) -> int:
    """Show what a run would do and why, without changing anything (`run --dry-run`, `resume --dry-run`).

    `rerail docs reasons` says what each reason means (docs/reference/reasons.md). By default the plan is that of the
    newest unfinished run; if there is none, of pipeline.yaml or rerail.yaml of this directory.
    """
    if what is None:
        store = open_store(store_url)
        rows = unfinished(store)
        what = rows[0]["run_id"] if rows else default_pipeline()
    if not os.path.isfile(what) and what.endswith((".yaml", ".yml")):
        raise UsageError(f"no such file: {what}", hint="rerail plan PIPELINE|RUN")
    if os.path.isfile(what):
        loaded, text = api.load(what)
        require_no_secrets_in_pipeline(present_secrets(loaded, RunOptions()), loaded, text, what)
        show_plan(plan_of(loaded, RunState()), RunState(), as_json=as_json)
        return 0
    store = open_store(store_url)
    run_id = find_run(store, what)
    try:
        return resume_run(store, run_id, ExecuteFlags.parse(dry_run=True, as_json=as_json, **wishes))
    except RunBusy as busy:  # it is healthy, and that is the answer
        say(f"rerail: {busy.message}\n  next: {busy.hint}")
        if as_json:
            owner = owner_fields(store.ownership(run_id))
            print_json({"decisions": [], "running": owner})
        return 0
