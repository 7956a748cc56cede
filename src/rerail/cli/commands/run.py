"""`rerail run`: a new run, or with --resume the newest matching one."""

from __future__ import annotations

import os
from typing import Any

import click
import msgspec

from rerail import api
from rerail.app.checks import params_of
from rerail.app.masking import present_secrets, require_no_secrets, require_no_secrets_in_pipeline
from rerail.app.runs import resumable, same_work
from rerail.app.start import with_new_id
from rerail.cli.execute import (
    ExecuteFlags,
    asker_of,
    execute_options,
    prepare_process,
    reporters_of,
    resume_run,
    show_first_plan,
)
from rerail.cli.help import SectionedCommand
from rerail.cli.options import complete_param, default_pipeline, open_store, pairs, param_values, store_flag
from rerail.cli.render.streams import outlet
from rerail.cli.render.summary import conclude
from rerail.core.model import Pipeline, RunOptions
from rerail.core.params import resolve
from rerail.core.plan import PlanOptions
from rerail.core.planner import plan, up_to
from rerail.core.state import RunState
from rerail.errors import UsageError
from rerail.ports import Store
from rerail.stores.directory import check_run_id


@click.command(cls=SectionedCommand, epilog="Example: rerail run pipeline.yaml -p task=docs --parallel 4")
@click.argument("pipeline", type=click.Path(), required=False)
@click.option(
    "-p",
    "--param",
    "params",
    multiple=True,
    metavar="K=V",
    shell_complete=complete_param,
    help="A param of the pipeline; repeatable.",
)
@click.option("--params-file", type=click.Path(), help="Params from a YAML or JSON file.")
@click.option("--id", "run_id", metavar="ID", help="The id of the run, instead of a generated one.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Metadata of the run; repeatable.")
@click.option(
    "--resume",
    "resume_",
    is_flag=True,
    help="Continue the newest unfinished run of this pipeline and params, if there is one.",
)
@click.option(
    "--fresh",
    "--force",
    "fresh",
    is_flag=True,
    help="Start a new run, also beside an unfinished one, without a question or note.",
)
@click.option("--fail-fast", is_flag=True, help="Stop the other branches when a step fails.")
@execute_options(recorded=False)
def run(
    pipeline: str | None,
    params: tuple[str, ...],
    params_file: str | None,
    run_id: str | None,
    labels: tuple[str, ...],
    resume_: bool,
    fresh: bool,
    store_url: str | None,
    **wishes: Any,
) -> int:
    """Run a pipeline: PIPELINE, or pipeline.yaml or rerail.yaml of this directory."""
    pipeline = pipeline or default_pipeline()
    if run_id is not None:
        check_run_id(run_id)
    if resume_ and fresh:
        raise UsageError("--resume and --fresh exclude each other", hint="rerail run --help")
    wanted = ExecuteFlags.parse(**wishes)
    store = open_store(store_url, pipeline)
    loaded, text = api.load(pipeline)
    given = {**_params_file(params_file), **param_values(params)}
    _check_steps(loaded, wanted)
    if resume_:
        found = resumable(store, pipeline, run_id, _given_values(loaded, given), base_dir=store.base_dir)
        if found is not None:
            return resume_run(store, found, wanted)
    mask = present_secrets(loaded, wanted.options(RunOptions()))
    require_no_secrets_in_pipeline(mask, loaded, text, pipeline)
    require_no_secrets(mask, given)
    values = params_of(loaded, given, pipeline)  # raises before anything else is done
    if not (fresh or resume_ or wanted.quiet):
        going_on = _same_work(store, pipeline, values, wanted, is_named=run_id is not None)
        if going_on is not None:
            return resume_run(store, going_on, wanted)
    if wanted.dry_run:
        decisions = plan(loaded, RunState(), options=PlanOptions(start=wanted.execute.start, skip=wanted.execute.skip))
        decisions = up_to(loaded, decisions, wanted.execute.until) if wanted.execute.until else decisions
        show_first_plan(loaded, decisions, parallel=wanted.parallel, mask=mask, as_json=wanted.as_json)
        return 0
    request = api.StartRequest(
        pipeline_path=pipeline,
        params=given,
        labels=pairs(labels, "--label"),
        run_id=run_id,
        options=wanted.options(RunOptions(parallel=os.cpu_count() or 1)),
        execute=wanted.execute,
    )
    prepare_process()

    def begin(new_id: str) -> int:
        named = msgspec.structs.replace(request, run_id=new_id, generated=run_id is None)
        return _start(store, loaded, text, named, wanted)

    return begin(run_id) if run_id is not None else with_new_id(store, loaded.name, begin)


def _start(store: Store, loaded: Pipeline, text: bytes, request: api.StartRequest, wanted: ExecuteFlags) -> int:
    with outlet():
        with reporters_of(wanted, store, request.run_id or "") as shown:
            request = msgspec.structs.replace(request, ask=asker_of(wanted, shown), listener=shown.listener)
            shown.attach(loaded, RunState(), request.pipeline_path)
            result = api.start_pipeline(store, loaded, text, request, shown.reporters, base_dir=store.base_dir)
        return conclude(result, store, quiet=wanted.quiet)


def _same_work(
    store: Store, pipeline: str, values: dict[str, Any], wanted: ExecuteFlags, *, is_named: bool
) -> str | None:
    """Say that an unfinished run has begun the same work; return it if the person at the terminal wants to resume it.

    A run that is given a name of its own is meant to be new: then no question is asked.
    """
    from rerail.cli.render.unfinished import asks_to_resume, say_same_work  # only beside an unfinished run

    rows = same_work(store, pipeline, values, base_dir=store.base_dir)
    if not rows:
        return None
    answer = None if is_named or wanted.dry_run or wanted.as_json else asks_to_resume(rows)
    if answer is None:
        say_same_work(rows, store_flag(store))
    return rows[0]["run_id"] if answer else None


def _check_steps(pipeline: Pipeline, wanted: ExecuteFlags) -> None:
    names = [step.id for step in pipeline.steps]
    skipped = [("--skip", step) for step in wanted.execute.skip]
    for option, step in (("--from", wanted.execute.start), ("--until", wanted.execute.until), *skipped):
        if step and step not in names:
            raise UsageError(
                f"{option}: the pipeline has no step `{step}`; it has {', '.join(names[:12])}",
                hint="rerail check PIPELINE",
            )


def _given_values(pipeline: Pipeline, given: dict[str, Any]) -> dict[str, Any]:
    """Return the given params as the run would have recorded them."""
    values, _ = resolve(pipeline.params, given)
    return {name: values.get(name, value) for name, value in given.items()}


def _params_file(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    from rerail.loaders.document import Malformed, parse  # YAML: only for a file of params
    from rerail.loaders.yaml import read_pipeline_file

    hint = "rerail run PIPELINE --params-file FILE"
    try:
        root = parse(read_pipeline_file(path).decode("utf-8-sig"))
    except Malformed as error:
        raise UsageError(f"{path}:{error.line}:{error.column}: {error.message}", hint=hint) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8", hint=hint) from None
    if not isinstance(root.value, dict):
        raise UsageError(f"{path}: params must be a mapping, not {root.kind}", hint=hint)
    values: dict[str, Any] = root.plain()
    return values
