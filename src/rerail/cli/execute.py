"""`rerail run` and `rerail resume`: the same thing from an empty journal and from one that is not."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import click
import msgspec

from rerail import api, processes
from rerail.app.runs import newest_unfinished, resumable
from rerail.cli.options import (
    Decorator,
    Dollars,
    base_dir,
    find_run,
    json_option,
    open_store,
    run_argument,
    store_option,
    volume_options,
)
from rerail.cli.render.output import STDERR, ReadingProgress, outlet, say
from rerail.cli.render.plan import say_found, say_plan
from rerail.cli.render.prompt import asker
from rerail.cli.render.reporters import Reporters
from rerail.cli.render.summary import conclude
from rerail.cli.render.terminal import terminal_of
from rerail.core.audit import Audit, Depth
from rerail.core.model import Pipeline, RunOptions
from rerail.core.params import resolve
from rerail.core.plan import Changes, Plan
from rerail.core.plan import PlanOptions as Wanted
from rerail.core.planner import plan, up_to
from rerail.core.state import RunState, Unit
from rerail.engine.spec import Ask
from rerail.errors import UsageError
from rerail.loaders.fields import parse_duration
from rerail.stores.directory import DirectoryStore, check_run_id


class ExecuteFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asked for; None and empty mean: as recorded."""

    parallel: int | None = None
    fail_fast: bool = False
    secrets: tuple[str, ...] = ()
    budget_usd: float | None = None
    max_runtime: str | None = None
    wait: bool | None = None
    start: str = ""
    until: str = ""
    changes: Changes = "rerun"
    verify: Depth = "full"
    no_restore: bool = False
    retry: frozenset[Unit] = frozenset()  # items of the dead letter queue
    allow_concurrent: bool = False
    dry_run: bool = False
    as_json: bool = False
    quiet: bool = False
    verbose: bool = False

    @property
    def patience(self) -> Literal["", "yes", "no"]:
        """Whether to wait for services that ask for it."""
        return "" if self.wait is None else "yes" if self.wait else "no"

    def options(self, recorded: RunOptions) -> RunOptions:
        """The recorded options with what was given again."""
        return RunOptions(
            parallel=self.parallel or recorded.parallel,
            fail_fast=self.fail_fast or recorded.fail_fast,
            secrets=tuple(dict.fromkeys((*recorded.secrets, *self.secrets))),
            budget_usd=recorded.budget_usd if self.budget_usd is None else self.budget_usd,
            max_runtime=recorded.max_runtime if self.max_runtime is None else _seconds(self.max_runtime),
        )


def _seconds(text: str) -> float:
    seconds = parse_duration(text)
    if seconds is None or seconds <= 0:
        raise UsageError(f"--max-runtime {text!r}: not a time such as 5h50m", hint="rerail run --help")
    return seconds


def changes_option() -> Decorator:
    return click.option(
        "--changes",
        type=click.Choice(["rerun", "keep", "refuse"]),
        default="rerun",
        help="What to do with steps whose definition was edited since they ran.",
    )


def driving_options(command: Any) -> Any:
    for option in (
        click.option("--parallel", type=click.IntRange(min=1), metavar="N", help="Run up to N steps at once."),
        click.option("--from", "start", default="", metavar="STEP", help="Run STEP and what depends on it in any case."),
        click.option("--until", default="", metavar="STEP", help="Stop when STEP is done."),
        click.option("--budget-usd", type=Dollars(), metavar="X", help="Pause when so much is spent."),
        click.option("--max-runtime", metavar="D", help="Pause after this time, such as 5h50m."),
        click.option(
            "--wait/--no-wait",
            default=None,
            help="Wait until a quota is there again, however long; or try at once although it should not be.",
        ),
        click.option("--allow-concurrent", is_flag=True, help="Run although a live run may write the same files."),
        click.option("--secret", "secrets", multiple=True, metavar="NAME", help="Mask the value of this variable."),
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
@click.option("--resume", "resume_", is_flag=True, help="Continue the newest unfinished run that fits, if there is one.")
@click.option("--fresh", "--force", "fresh", is_flag=True, help="Always start a new run.")
@click.option("--fail-fast", is_flag=True, help="Stop the other branches when a step fails.")
@driving_options
def run(
    pipeline: str,
    params: tuple[str, ...],
    params_file: str | None,
    run_id: str | None,
    labels: tuple[str, ...],
    resume_: bool,
    fresh: bool,
    store_url: str | None,
    **wishes: Any,
) -> int:
    """Run a pipeline."""
    if run_id is not None:
        check_run_id(run_id)
    if resume_ and fresh:
        raise UsageError("--resume and --fresh contradict each other", hint="rerail run --help")
    wanted = ExecuteFlags(**wishes)
    store = open_store(store_url, pipeline)
    loaded, text = api.load(pipeline)
    given = {**_params_file(params_file), **pairs(params, "-p")}
    _check_steps(loaded, wanted)
    if resume_:
        found = resumable(store, pipeline, run_id, _given_values(loaded, given), base_dir=base_dir(store))
        if found is not None:
            return go_on(store, found, wanted)
    mask = api.present_secrets(loaded, wanted.options(RunOptions()))
    api.refuse_secret_pipeline(mask, loaded, text, pipeline)
    api.refuse_secrets(mask, given)
    api.params_of(loaded, given)  # raises before anything else is done
    if wanted.dry_run:
        decisions = plan(loaded, RunState(), wishes=Wanted(start=wanted.start))
        decisions = up_to(loaded, decisions, wanted.until) if wanted.until else decisions
        show_plan(decisions, RunState(), as_json=wanted.as_json)
        return 0
    request = api.StartRequest(
        pipeline_path=pipeline,
        params=given,
        labels=pairs(labels, "--label"),
        run_id=run_id or api.new_run_id(datetime.now(UTC)),
        options=wanted.options(RunOptions(parallel=os.cpu_count() or 1)),
        start=wanted.start,
        until=wanted.until,
        wait=wanted.patience,
        allow_concurrent=wanted.allow_concurrent,
    )
    settle_in()
    with outlet():
        with shown_of(wanted, store, request.run_id or "") as shown:
            request = msgspec.structs.replace(request, ask=_asker(wanted, shown))
            shown.attach(loaded, RunState(), pipeline)
            result = api.start_pipeline(store, loaded, text, request, shown.reporters, base_dir=base_dir(store))
        return conclude(result, store, quiet=wanted.quiet)


@click.command(epilog="Example: rerail resume          (the newest unfinished run of this directory)")
@run_argument(required=False)
@changes_option()
@click.option(
    "--verify",
    type=click.Choice(["full", "fast"]),
    default="full",
    help="Prove artifacts by their whole content, or trust size, times and inode.",
)
@click.option("--no-restore", is_flag=True, help="Run steps again instead of restoring what they produced.")
@driving_options
def resume(run_name: str | None, store_url: str | None, **wishes: Any) -> int:
    """Continue a run exactly where it was, after proving that what it relies on is intact."""
    store = open_store(store_url)
    if run_name is not None:
        run_id = find_run(store, run_name)
    else:
        newest = newest_unfinished(store)
        if newest is None:
            say("rerail: nothing to resume: every run is completed")
            return 0
        run_id = newest
    return go_on(store, run_id, ExecuteFlags(**wishes))


def go_on(store: DirectoryStore, run_id: str, wanted: ExecuteFlags, headline: str = "") -> int:
    """Plan, say so, and unless it is a dry run do it."""
    base = base_dir(store)
    request = api.ResumeRequest(
        changes=wanted.changes,
        start=wanted.start,
        until=wanted.until,
        verify=wanted.verify,
        restore=not wanted.no_restore,
        retry=wanted.retry,
        wait=wanted.patience,
        allow_concurrent=wanted.allow_concurrent,
        progress=ReadingProgress() if not wanted.quiet else lambda _: None,
    )
    known = store.read(run_id)
    if wanted.dry_run or (known.state.status == "completed" and known.is_cached):
        ready = api.prepare(store, run_id, request, base_dir=base)
        if ready.finished:
            say(f"rerail: run {run_id} is completed; there is nothing to resume")
            return 0
        if wanted.dry_run:
            ready = ready.shown
            say(f"rerail: run {run_id} of {ready.recording.header.pipeline}")
            decisions = up_to(ready.pipeline, ready.plan, wanted.until) if wanted.until else ready.plan
            show_plan(decisions, ready.recording.state, ready.notices, ready.audit, as_json=wanted.as_json)
            return 0
    recorded = known.state.options if known.state.seq else known.header.options
    request = msgspec.structs.replace(request, options=wanted.options(recorded))
    settle_in()
    with outlet() as printed:
        with shown_of(wanted, store, run_id) as shown:
            headline = headline or f"rerail: run {run_id} of {known.header.pipeline}"
            request = msgspec.structs.replace(request, ask=_asker(wanted, shown))
            told = PlanPrinter(headline, wanted, store, shown, printed.drain)
            result = api.resume(store, run_id, shown.reporters, request, base_dir=base, teller=told)
        if result is None:
            say(f"rerail: run {run_id} is completed; there is nothing to resume")
            return 0
        return conclude(result, store, quiet=wanted.quiet)


class PlanPrinter(api.ResumeObserver):
    """What is said before a run goes on: the plan, then what was found and mended; then it may be drawn."""

    def __init__(
        self, headline: str, wanted: ExecuteFlags, store: DirectoryStore, shown: Reporters, drain: Callable[[], None]
    ) -> None:
        self._headline = headline
        self._wanted = wanted
        self._store = store
        self._shown = shown
        self._drain = drain

    def announce(self, ready: api.ResumePlan) -> None:
        """The plan, before anything runs."""
        ready = ready.shown
        if not self._wanted.quiet:
            say(self._headline)
            until = self._wanted.until
            decisions = up_to(ready.pipeline, ready.plan, until) if until else ready.plan
            say_plan(decisions, ready.recording.state, ready.notices, terminal_of(STDERR))

    def narrate(self, ready: api.ResumePlan, done: list[Any]) -> None:
        """What was found and done about files."""
        ready = ready.shown
        state = ready.recording.state
        if not self._wanted.quiet:
            where = os.path.relpath(self._store.path(ready.run_id))
            say_found(found_lines(ready.audit, ready.plan, done, where), ready.plan, state, terminal_of(STDERR))
        self._drain()  # before anything is drawn below it
        self._shown.attach(ready.pipeline, state, ready.recording.header.pipeline_path)


def found_lines(audit: Audit, decisions: Plan, done: list[Any] | None = None, run_dir: str = "") -> list[tuple[str, str]]:
    """What the audit found, if there was anything to look at."""
    if not audit.flaws and not any(audit.intact.values()):
        return []
    from rerail.artifacts.restore import describe

    return describe(audit, decisions, done, run_dir)


def show_plan(
    decisions: Plan, state: RunState, notices: tuple[str, ...] = (), audit: Audit | None = None, *, as_json: bool
) -> None:
    """A plan that is not carried out."""
    look = terminal_of(STDERR)
    say_plan(decisions, state, notices, look)
    say_found(found_lines(audit or Audit(), decisions), decisions, state, look)
    if as_json:
        sys.stdout.write(msgspec.json.encode(decisions).decode() + "\n")


def settle_in() -> None:
    """From here on it is a long life, and all children are of steps."""
    gc.enable()
    processes.only_steps = True


def _asker(wanted: ExecuteFlags, shown: Reporters) -> Ask | None:
    """Who asks what `approve` steps want to know, where there is somebody to ask."""
    return None if wanted.quiet or wanted.as_json else asker(shown.aside, terminal_of(STDERR))


def shown_of(wanted: ExecuteFlags, store: DirectoryStore, run_id: str) -> Reporters:
    return Reporters(store, run_id, quiet=wanted.quiet, verbose=wanted.verbose, as_json=wanted.as_json)


def _check_steps(pipeline: Pipeline, wanted: ExecuteFlags) -> None:
    names = [step.id for step in pipeline.steps]
    for option, step in (("--from", wanted.start), ("--until", wanted.until)):
        if step and step not in names:
            raise UsageError(
                f"{option}: the pipeline has no step `{step}`; it has {', '.join(names[:12])}",
                hint="rerail check PIPELINE",
            )


def _given_values(pipeline: Pipeline, given: dict[str, Any]) -> dict[str, Any]:
    """The params that were given, as the run would have recorded them."""
    values, _ = resolve(pipeline.params, given)
    return {name: values.get(name, value) for name, value in given.items()}


def pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
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
