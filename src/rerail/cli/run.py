"""`rerail run` and `rerail resume`: the same thing from an empty journal and from one that is not."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from rerail import api
from rerail.cli.options import (
    base_dir,
    find_run,
    json_option,
    newest_first,
    open_store,
    store_option,
    volume_options,
)
from rerail.cli.output import JsonReporter, LineReporter, say, say_failure, say_plan, seconds
from rerail.core.model import RunOptions
from rerail.core.plan import Changes, Plan, plan
from rerail.core.state import RunState
from rerail.errors import EXIT_STEP_FAILED, SIGNAL_EXIT_BASE, RunNotFound, RunPaused, UsageError
from rerail.ports import Recording, Reporter
from rerail.stores.directory import DirectoryStore, check_run_id


def _driving_options(command: Any) -> Any:
    for option in (
        click.option("--parallel", type=click.IntRange(min=1), metavar="N", help="Run up to N steps at once."),
        click.option("--dry-run", is_flag=True, help="Show the plan and change nothing."),
        json_option("Stream one JSON event per line on stdout, each once it is durable."),
        store_option(),
        volume_options,
    ):
        command = option(command)
    return command


@click.command(epilog="Example: rerail run pipeline.yaml -p task=docs --parallel 4")
@click.argument("pipeline", type=click.Path())
@click.option("-p", "--param", "params", multiple=True, metavar="K=V", help="A param of the pipeline; repeatable.")
@click.option("--params-file", type=click.Path(), help="Params from a YAML or JSON file.")
@click.option("--id", "run_id", metavar="ID", help="The id of the run, instead of a generated one.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Metadata of the run; repeatable.")
@click.option(
    "--resume", "resume_", is_flag=True, help="Continue the newest unfinished run that fits, if there is one."
)
@click.option("--fresh", "--force", "fresh", is_flag=True, help="Always start a new run.")
@click.option("--fail-fast", is_flag=True, help="Stop the other branches when a step fails.")
@_driving_options
def run(
    pipeline: str,
    params: tuple[str, ...],
    params_file: str | None,
    run_id: str | None,
    labels: tuple[str, ...],
    resume_: bool,
    fresh: bool,
    fail_fast: bool,
    parallel: int | None,
    dry_run: bool,
    as_json: bool,
    store_url: str | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Run a pipeline."""
    if run_id is not None:
        check_run_id(run_id)
    if resume_ and fresh:
        raise UsageError("--resume and --fresh contradict each other", hint="rerail run --help")
    store = open_store(store_url, pipeline)
    loaded, text = api.load(pipeline)
    given = {**_params_file(params_file), **_pairs(params, "-p")}
    if resume_:
        found = _resumable(store, pipeline, run_id, given)
        if found is not None:
            again = _Resume(
                store=store, changes="rerun", dry_run=dry_run, as_json=as_json, quiet=quiet, verbose=verbose
            )
            return again.go(found, parallel)
    if dry_run:
        api.params_of(loaded, given)
        _show_plan(plan(loaded, RunState()), RunState(), (), as_json=as_json)
        return 0
    request = api.StartRequest(
        pipeline_path=pipeline,
        params=given,
        labels=_pairs(labels, "--label"),
        run_id=run_id or api.new_run_id(datetime.now(UTC)),
        options=RunOptions(parallel=parallel or os.cpu_count() or 1, fail_fast=fail_fast),
    )
    reporters = _reporters(as_json, quiet, verbose, request.run_id or "")
    result = api.start_pipeline(store, loaded, text, request, reporters, base_dir=base_dir(store))
    return _conclude(result, quiet=quiet)


@click.command(epilog="Example: rerail resume          (the newest unfinished run of this directory)")
@click.argument("run_name", metavar="[RUN]", required=False, default=None)
@click.option(
    "--changes",
    type=click.Choice(["rerun", "keep", "refuse"]),
    default="rerun",
    help="What to do with steps whose definition was edited since they ran.",
)
@_driving_options
def resume(
    run_name: str | None,
    changes: Changes,
    parallel: int | None,
    dry_run: bool,
    as_json: bool,
    store_url: str | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Continue a run exactly where it was, after proving that what it relies on is intact."""
    store = open_store(store_url)
    if run_name is not None:
        run_id = find_run(store, run_name)
    else:
        newest = _newest_unfinished(store)
        if newest is None:
            say("rerail: nothing to resume: every run is completed")
            return 0
        run_id = newest
    again = _Resume(store=store, changes=changes, dry_run=dry_run, as_json=as_json, quiet=quiet, verbose=verbose)
    return again.go(run_id, parallel)


class _Resume:
    """Going on with a run, as both commands do it."""

    def __init__(
        self,
        *,
        store: DirectoryStore,
        changes: Changes,
        dry_run: bool,
        as_json: bool,
        quiet: bool,
        verbose: bool,
    ) -> None:
        self._store = store
        self._changes = changes
        self._dry_run = dry_run
        self._as_json = as_json
        self._quiet = quiet
        self._verbose = verbose

    def go(self, run_id: str, parallel: int | None) -> int:
        """Plan, say so, and unless it is a dry run do it."""
        store = self._store
        base = base_dir(store)
        ready = api.prepare(store, run_id, base_dir=base, changes=self._changes)
        if ready.finished:
            say(f"rerail: run {run_id} is completed; there is nothing to resume")
            return 0
        ownership = store.ownership(run_id)
        if ownership.alive and not self._dry_run:
            store.own(run_id).close()  # raises RunBusy, unless the owner died since
        if not self._quiet:
            say(f"rerail: run {run_id} of {ready.recording.header.pipeline}")
        if self._dry_run:
            _show_plan(ready.plan, ready.recording.state, ready.notices, as_json=self._as_json)
            return 0
        if not self._quiet:
            say_plan(ready.plan, ready.recording.state, ready.notices)
        options = None
        if parallel is not None:
            options = RunOptions(parallel=parallel, fail_fast=ready.recording.state.options.fail_fast)
        reporters = _reporters(self._as_json, self._quiet, self._verbose, run_id)
        result = api.resume(store, run_id, reporters, options=options, base_dir=base, changes=self._changes)
        return _conclude(result, quiet=self._quiet)


def _show_plan(decisions: Plan, state: RunState, notices: tuple[str, ...], *, as_json: bool) -> None:
    say_plan(decisions, state, notices)
    if as_json:
        sys.stdout.write(msgspec.json.encode(decisions).decode() + "\n")


def _reporters(as_json: bool, quiet: bool, verbose: bool, run_id: str) -> list[Reporter]:
    lines = LineReporter(run_id, quiet=quiet, verbose=verbose)
    return [JsonReporter(), lines] if as_json else [lines]


def _conclude(result: api.Result, *, quiet: bool) -> int:
    """Say how it ended and what to type next; the exit code."""
    end, run_id = result.end, result.run_id
    resume_hint = f"rerail resume {run_id}"
    if end.lost is not None:
        if end.unrecorded:
            say(f"rerail: not recorded, so they will run again: {', '.join(end.unrecorded)}")
        raise end.lost
    if end.signal is not None:
        say(f"rerail: {end.reason}\n  next: {resume_hint}")
        return SIGNAL_EXIT_BASE + int(end.signal)
    if end.status == "paused":
        raise RunPaused(f"run {run_id} is paused: {end.reason}", hint=f"rerail mark {run_id} STEP completed|pending")
    if end.status == "failed":
        if result.state.error is not None:
            say_failure(result.state.error, f"rerail show {run_id}")
        say(f"  next: {resume_hint}")
        return EXIT_STEP_FAILED
    if not quiet:
        state = result.state
        elapsed = (
            (state.updated_at - state.started_at).total_seconds() if state.started_at and state.updated_at else 0
        )
        say(f"rerail: run {run_id} completed in {seconds(max(elapsed, 0.0))}")
    return 0


def _newest_unfinished(store: DirectoryStore) -> str | None:
    runs = newest_first(store)
    if not runs:
        raise RunNotFound(f"there are no runs in {store.root}", hint="rerail run PIPELINE")
    for run_id in runs:
        if store.read(run_id).state.status != "completed":
            return run_id
    return None


def _resumable(store: DirectoryStore, pipeline: str, run_id: str | None, given: dict[str, Any]) -> str | None:
    """The run that `run --resume` continues: by id, or the newest unfinished one of this pipeline that fits."""
    if run_id is not None:
        if run_id not in store.runs():
            return None
        _refuse_conflict(store, run_id, given)
        return run_id
    path = os.path.abspath(pipeline)
    for candidate in newest_first(store):
        recording = store.read(candidate)
        theirs = os.path.normpath(os.path.join(base_dir(store), recording.header.pipeline_path))
        if theirs == path and recording.state.status != "completed" and not _conflicts(recording, given):
            return candidate
    return None


def _conflicts(recording: Recording, given: dict[str, Any]) -> list[str]:
    params = recording.header.params
    return [name for name, value in given.items() if name not in params or str(params[name]) != str(value)]


def _refuse_conflict(store: DirectoryStore, run_id: str, given: dict[str, Any]) -> None:
    conflicting = _conflicts(store.read(run_id), given)
    if conflicting:
        raise UsageError(
            f"run {run_id} was started with other params: {', '.join(conflicting)}",
            hint=f"rerail resume {run_id}, or another --id",
        )


def _pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} {text!r}: not NAME=VALUE", hint="rerail run --help")
        pairs[key] = value
    return pairs


def _params_file(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    from rerail.loaders.document import Malformed, parse
    from rerail.loaders.yaml import read_pipeline_file

    try:
        root = parse(read_pipeline_file(path).decode("utf-8-sig"))
    except Malformed as error:
        raise UsageError(f"{path}:{error.line}:{error.column}: {error.message}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8") from None
    if not isinstance(root.value, dict):
        raise UsageError(f"{path}: params must be a mapping, not {root.kind}")
    values: dict[str, Any] = root.plain()
    return values
