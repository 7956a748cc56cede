"""`rerail plan`: the plan of a run, with reasons."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from rerail import api
from rerail.app.masking import present_secrets, require_no_secrets_in_pipeline
from rerail.app.runs import owner_fields, unfinished
from rerail.cli.execute import ExecuteFlags, resume_run, show_first_plan
from rerail.cli.options import complete_run, default_pipeline, find_run, json_option, open_store, store_option
from rerail.cli.render.streams import print_json, say
from rerail.core.model import Pipeline, RunOptions
from rerail.core.planner import plan as plan_of
from rerail.core.state import RunState
from rerail.core.unit_id import UnitId
from rerail.errors import RunBusy, UsageError


@click.command(epilog="Example: rerail plan last")
@click.argument("what", metavar="[PIPELINE|RUN]", required=False, shell_complete=complete_run)
@click.option(
    "--verify", type=click.Choice(["full", "fast"]), default="full", show_default=True, help="As in `rerail resume`."
)
@click.option("--keep-changes", is_flag=True, help="As in `rerail resume`.")
@click.option("--no-restore", is_flag=True, help="As in `rerail resume`.")
@click.option("--graph", "drawn", is_flag=True, help="Draw the steps and their needs instead; of a run, with statuses.")
@click.option("--mermaid", is_flag=True, help="The same as a Mermaid flowchart.")
@json_option("The decisions and their reasons, as JSON.")
@store_option()
def plan(what: str | None, drawn: bool, mermaid: bool, as_json: bool, store_url: str | None, **wishes: Any) -> int:
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
        mask = present_secrets(loaded, RunOptions())
        require_no_secrets_in_pipeline(mask, loaded, text, what)
        if drawn or mermaid:
            return _draw(loaded, {}, mermaid=mermaid)
        show_first_plan(loaded, plan_of(loaded, RunState()), parallel=None, mask=mask, as_json=as_json)
        return 0
    store = open_store(store_url)
    run_id = find_run(store, what)
    if drawn or mermaid:
        from rerail.app.step_page import recorded_pipeline  # only to draw a run

        recording = store.read(run_id)
        alive = store.ownership(run_id).alive
        recorded = recorded_pipeline(store, recording)
        found = {step.id: recording.state.unit(UnitId(step.id)).status for step in recorded.steps}
        statuses: dict[str, str] = {
            step: "interrupted" if status == "running" and not alive else status for step, status in found.items()
        }
        return _draw(recorded, statuses, mermaid=mermaid)
    try:
        return resume_run(store, run_id, ExecuteFlags.parse(dry_run=True, as_json=as_json, **wishes))
    except RunBusy as busy:  # it is healthy, and that is the answer
        say(f"rerail: {busy.message}\n  next: {busy.hint}")
        if as_json:
            owner = owner_fields(store.ownership(run_id))
            print_json({"decisions": [], "running": owner})
        return 0


def _draw(pipeline: Pipeline, statuses: dict[str, str], *, mermaid: bool) -> int:
    """Print the graph of the steps, of a run with their statuses."""
    from rerail.cli.render import graph  # only to draw
    from rerail.cli.render.terminal import out_look

    lines = graph.mermaid(pipeline.steps, statuses) if mermaid else graph.drawing(pipeline.steps, statuses, out_look())
    sys.stdout.write("".join(line + "\n" for line in lines))
    return 0
