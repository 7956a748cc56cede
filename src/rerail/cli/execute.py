"""Shared parts of the commands that execute a run: their options, the plan they print, and the resume."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import msgspec

from rerail import api, processes
from rerail.cli.options import Decorator, Dollars, complete_step, json_option, store_flag, store_option, volume_options
from rerail.cli.render.output import OutputMode
from rerail.cli.render.plan import say_first_plan, say_found, say_plan
from rerail.cli.render.prompt import asker, who
from rerail.cli.render.reporters import Reporters
from rerail.cli.render.streams import STDERR, ReadingProgress, outlet, print_json, say
from rerail.cli.render.summary import conclude, report_to_job
from rerail.cli.render.terminal import terminal_of
from rerail.core.audit import Audit, Flaw
from rerail.core.masking import Mask
from rerail.core.model import Pipeline, RunOptions
from rerail.core.outline import outline_of
from rerail.core.plan import ExecuteOptions, Plan
from rerail.core.planner import up_to
from rerail.core.state import RunState
from rerail.core.unit_id import UnitId
from rerail.engine.spec import Ask
from rerail.errors import RunBusy, UsageError
from rerail.loaders.fields import parse_duration
from rerail.ports import Ownership, Store


class ExecuteFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of the commands that execute a run; None and empty mean: as recorded."""

    parallel: int | None = None
    fail_fast: bool = False
    secrets: tuple[str, ...] = ()
    budget_usd: float | None = None
    max_runtime: str | None = None
    execute: ExecuteOptions = ExecuteOptions()
    dry_run: bool = False
    as_json: bool = False
    output: OutputMode | None = None
    quiet: bool = False
    verbose: bool = False

    @classmethod
    def parse(cls, **flags: Any) -> ExecuteFlags:
        """Build the flags from those of the command line: options of the invocation are members of `execute`."""
        wait, no_restore = flags.pop("wait", None), flags.pop("no_restore", False)
        flags |= {"wait": "" if wait is None else "yes" if wait else "no", "restore": not no_restore}
        names = [name for name in ExecuteOptions.__struct_fields__ if name in flags]
        return cls(execute=ExecuteOptions(**{name: flags.pop(name) for name in names}), **flags)

    def options(self, recorded: RunOptions) -> RunOptions:
        """Return the recorded options, overridden by the flags that were given."""
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
        show_default=True,
        help="Steps edited since they ran: rerun them, keep their results, or refuse to continue.",
    )


def execute_options(*, recorded: bool = True) -> Decorator:
    """Add the options of every command that executes a run; `recorded` says whether the run already has limits."""

    def add(command: Any) -> Any:
        for option in reversed(_execute_options(recorded=recorded)):
            command = option(command)
        return command

    return add


def _execute_options(*, recorded: bool) -> tuple[Decorator, ...]:
    limit = "as recorded" if recorded else "as in the pipeline"
    return (
        click.option(
            "--from",
            "start",
            default="",
            metavar="STEP",
            shell_complete=complete_step,
            help="Rerun STEP and everything after it.",
        ),
        click.option("--until", default="", metavar="STEP", shell_complete=complete_step, help="Stop when STEP is done."),
        click.option(
            "--skip",
            multiple=True,
            metavar="STEP",
            shell_complete=complete_step,
            help="Skip STEP, as if `when` were false; repeatable.",
        ),
        click.option("--dry-run", is_flag=True, help="Show the plan and change nothing."),
        click.option(
            "--parallel",
            type=click.IntRange(min=1),
            metavar="N",
            show_default="as recorded" if recorded else "number of processors",
            help="Run up to N steps in parallel.",
        ),
        click.option(
            "--budget-usd", type=Dollars(), metavar="X", show_default=limit, help="Pause once X dollars are spent."
        ),
        click.option(
            "--max-runtime",
            metavar="D",
            show_default="as recorded" if recorded else "no limit",
            help="Pause after this time, such as 5h50m.",
        ),
        click.option(
            "--wait/--no-wait",
            default=None,
            show_default="pause if longer than `pause_after`",
            help="Wait for an exhausted quota to reset, however long; --no-wait tries now.",
        ),
        click.option("--allow-concurrent", is_flag=True, help="Run beside a live run of the same files or group."),
        click.option(
            "--output",
            type=click.Choice(["live", "grouped", "failed", "none"]),
            show_default="none; live with -v and in CI, grouped on GitHub Actions",
            help="Show what steps print: as it comes, once a step has ended, only of failed steps, or not.",
        ),
        json_option("Stream events as JSON, one per line, once durable."),
        click.option(
            "--secret", "secrets", multiple=True, metavar="NAME", help="Mask the value of this variable everywhere."
        ),
        volume_options,
        store_option(),
    )


def resume_run(store: Store, run_id: str, wanted: ExecuteFlags, headline: str = "") -> int:
    """Plan a resume, print the plan, and unless it is a dry run execute it; return the exit code."""
    base = store.base_dir
    request = api.ResumeRequest(
        by=who(), execute=wanted.execute, progress=ReadingProgress() if not wanted.quiet else lambda _: None
    )
    known = store.read(run_id)
    if wanted.dry_run and (ownership := store.ownership(run_id)).alive:
        raise _running(store, run_id, ownership)
    if wanted.dry_run or (known.state.status == "completed" and known.is_cached):
        ready = api.prepare(store, run_id, request, base_dir=base)
        if ready.finished:
            say(f"rerail: run {run_id} is completed; nothing to resume")
            if not wanted.dry_run:
                report_to_job(store, run_id)
            return 0
        if wanted.dry_run:
            if wanted.execute.keep_changes:
                from rerail.app.acceptance import preview  # only where edits are kept

                ready = preview(ready)
            ready = ready.shown
            say(f"rerail: run {run_id} of {ready.recording.header.pipeline}")
            decisions = up_to(ready.pipeline, ready.plan, wanted.execute.until) if wanted.execute.until else ready.plan
            show_plan(
                decisions,
                ready.recording.state,
                ready.notices,
                ready.audit,
                as_json=wanted.as_json,
                ready=ready,
                verbose=wanted.verbose,
            )
            return 0
    recorded = known.state.options if known.state.seq else known.header.options
    request = msgspec.structs.replace(request, options=wanted.options(recorded))
    prepare_process()
    with outlet() as printed:
        with reporters_of(wanted, store, run_id) as shown:
            headline = headline or f"rerail: run {run_id} of {known.header.pipeline}"
            request = msgspec.structs.replace(request, ask=asker_of(wanted, shown), listener=shown.listener)
            told = PlanPrinter(headline, wanted, store, shown, printed.drain)
            result = api.resume(store, run_id, shown.reporters, request, base_dir=base, observer=told)
        if result is None:
            say(f"rerail: run {run_id} is completed; nothing to resume")
            report_to_job(store, run_id)
            return 0
        return conclude(result, store, quiet=wanted.quiet)


def _running(store: Store, run_id: str, ownership: Ownership) -> RunBusy:
    """Return the error for the plan of a live run."""
    owner = ownership.owner
    who = f" (pid {owner.pid} on {owner.host})" if owner is not None else ""
    return RunBusy(
        f"run {run_id} is running{who}; there is nothing to plan", hint=f"rerail watch {run_id}{store_flag(store)}"
    )


class PlanPrinter(api.ResumeObserver):
    """Observer of a resume that prints the plan, then the findings and restores; then reporters may draw."""

    def __init__(
        self, headline: str, wanted: ExecuteFlags, store: Store, shown: Reporters, drain: Callable[[], None]
    ) -> None:
        self._headline = headline
        self._wanted = wanted
        self._store = store
        self._shown = shown
        self._drain = drain

    def on_plan(self, ready: api.ResumePlan) -> None:
        """Print the plan, before anything runs."""
        ready = ready.shown
        if not self._wanted.quiet:
            say(self._headline)
            until = self._wanted.execute.until
            decisions = up_to(ready.pipeline, ready.plan, until) if until else ready.plan
            say_plan(decisions, ready.recording.state, ready.notices, terminal_of(STDERR))

    def on_edits(self, ready: api.ResumePlan, edits: Mapping[UnitId, Sequence[Flaw]]) -> Mapping[UnitId, Sequence[Flaw]]:
        """Ask a person at the terminal which edited artifacts to keep; elsewhere they are restored."""
        if self._wanted.quiet or self._wanted.as_json:
            return {}
        from rerail.cli.render.edits import ask_about_edits  # only for runs with edited artifacts

        return ask_about_edits(ready, edits, self._store.content, terminal_of(STDERR))

    def on_restored(self, ready: api.ResumePlan, done: list[Any]) -> None:
        """Print the findings about files and the restores, then attach the reporters."""
        ready = ready.shown
        state = ready.recording.state
        if not self._wanted.quiet:
            directory = self._store.directory(ready.run_id)
            where = os.path.relpath(directory) if directory else ""
            lines = found_lines(ready.audit, ready.plan, done, where, ready)
            say_found(lines, ready.plan, state, terminal_of(STDERR), verbose=self._wanted.verbose)
        self._drain()  # before anything is drawn below it
        self._shown.attach(ready.pipeline, state, ready.recording.header.pipeline_path)


def found_lines(
    audit: Audit,
    decisions: Plan,
    done: list[Any] | None = None,
    run_dir: str = "",
    ready: api.ResumePlan | None = None,
) -> list[tuple[str, str]]:
    """Return lines about the findings of an audit; none if there were no artifacts."""
    if not audit.flaws and not any(audit.intact.values()):
        return []
    from rerail.artifacts.restore import describe  # only for runs with files

    lines = describe(audit, decisions, done, run_dir)
    if ready is not None:
        from rerail.cli.render.edits import keep_hints  # only for runs with files

        lines += keep_hints(ready, decisions, done, run_dir)
    return lines


def show_plan(
    decisions: Plan,
    state: RunState,
    notices: tuple[str, ...] = (),
    audit: Audit | None = None,
    *,
    as_json: bool,
    ready: api.ResumePlan | None = None,
    verbose: bool = False,
) -> None:
    """Print a plan that is not executed."""
    look = terminal_of(STDERR)
    say_plan(decisions, state, notices, look)
    say_found(found_lines(audit or Audit(), decisions, ready=ready), decisions, state, look, verbose=verbose)
    if as_json:
        print_json(decisions)


def show_first_plan(pipeline: Pipeline, decisions: Plan, *, parallel: int | None, mask: Mask, as_json: bool) -> None:
    """Print the plan of a run that has not begun."""
    outline = outline_of(pipeline, mask)
    say_first_plan(outline, decisions, parallel or os.cpu_count() or 1, terminal_of(STDERR))
    if as_json:
        print_json({**msgspec.to_builtins(decisions), "outline": outline})


def prepare_process() -> None:
    """Prepare for a long execution: turn garbage collection on; all children are those of steps from here on."""
    gc.enable()
    processes.only_steps = True


def asker_of(wanted: ExecuteFlags, shown: Reporters) -> Ask | None:
    """Return the prompt for `approve` steps, or None where there is no terminal to ask at."""
    return None if wanted.quiet or wanted.as_json else asker(shown.aside, terminal_of(STDERR))


def reporters_of(wanted: ExecuteFlags, store: Store, run_id: str) -> Reporters:
    return Reporters(
        store, run_id, quiet=wanted.quiet, verbose=wanted.verbose, as_json=wanted.as_json, output=wanted.output
    )
