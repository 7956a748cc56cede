"""`rerail fork`: a new run that shares the beginning of another."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from rerail import api
from rerail.app.start import with_new_id
from rerail.cli.execute import ExecuteFlags, execute_options, resume_run, show_plan
from rerail.cli.help import SectionedCommand
from rerail.cli.options import complete_param, find_run, open_store, pairs, param_values, run_argument
from rerail.cli.render.streams import say
from rerail.errors import UsageError
from rerail.stores.directory import check_run_id


@click.command(cls=SectionedCommand, epilog="Example: rerail fork last -p level=final")
@run_argument()
@click.option(
    "-p",
    "--param",
    "params",
    multiple=True,
    metavar="K=V",
    shell_complete=complete_param,
    help="Override a param; repeatable.",
)
@click.option("--id", "run_id", metavar="ID", help="The id of the new run, instead of a generated one.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Metadata of the new run; repeatable.")
@click.option("--fail-fast", is_flag=True, help="Stop the other branches when a step fails.")
@execute_options()
def fork(
    run_name: str,
    params: tuple[str, ...],
    run_id: str | None,
    labels: tuple[str, ...],
    store_url: str | None,
    **wishes: Any,
) -> int:
    """Start a new run that reuses everything of RUN before --from STEP, or all that a changed param does not touch.

    Both runs work in the same directory: files of the new run replace those of RUN, whose record stays.
    """
    from rerail.app.fork import create_fork, plan_fork  # only for this command, and not for its help

    wanted = ExecuteFlags.parse(**wishes)
    if not wanted.execute.start and not params:
        hint = f"rerail fork {run_name} --from STEP, or -p NAME=VALUE"
        raise UsageError("fork needs --from STEP, or a param that changes", hint=hint)
    if run_id is not None:
        check_run_id(run_id)
    store = open_store(store_url)
    parent = find_run(store, run_name)
    base, header = store.base_dir, store.read(parent).header
    request = api.StartRequest(
        pipeline_path="",
        params=param_values(params),
        labels=pairs(labels, "--label"),
        run_id=run_id or api.new_run_id(store, header.pipeline),
        options=wanted.options(header.options),
        execute=wanted.execute,
    )
    if wanted.dry_run:
        ready = plan_fork(store, parent, request, base_dir=base).ready.shown
        say(f"rerail: a fork of run {parent} of {ready.recording.header.pipeline}")
        show_plan(ready.plan, ready.recording.state, ready.notices, ready.audit, as_json=wanted.as_json)
        return 0

    def create(new_id: str) -> str:
        named = msgspec.structs.replace(request, run_id=new_id, generated=run_id is None)
        return create_fork(store, parent, named, base_dir=base).run_id

    created = create(run_id) if run_id is not None else with_new_id(store, header.pipeline, create)
    return resume_run(store, created, wanted, headline=f"rerail: run {created}, a fork of {parent}")
