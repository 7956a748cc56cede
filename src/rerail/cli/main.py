"""`rerail`: the group of commands, and the one place where an error becomes a message and an exit code.

Commands are imported when they are called: starting is cheap.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from rerail.errors import Diagnostic, PipelineInvalid, RerailError, StateError, UsageError
from rerail.text import nearest, one_line
from rerail.version import VERSION

# The function of each command, and its line in `rerail --help`, which does not import it.
COMMANDS = {
    "run": ("rerail.cli.commands.run:run", "Run a pipeline."),
    "resume": ("rerail.cli.commands.resume:resume", "Continue a run where it stopped."),
    "plan": ("rerail.cli.commands.plan:plan", "Show what a run would do, and why."),
    "fork": ("rerail.cli.commands.fork:fork", "Start a run that reuses the beginning of another."),
    "list": ("rerail.cli.commands.list:list_runs", "List the runs, newest first."),
    "show": ("rerail.cli.commands.show:show", "Show one run: its steps, outputs and errors."),
    "history": ("rerail.cli.commands.history:history", "Show every event of a run."),
    "why": ("rerail.cli.commands.why:why", "Say why a step ran, ran again or was reused."),
    "cost": ("rerail.cli.commands.cost:cost", "Add up what runs have cost: by step, model, day, run or pipeline."),
    "logs": ("rerail.cli.commands.logs:logs", "Print the output of steps."),
    "watch": ("rerail.cli.commands.watch:watch", "Watch a live run."),
    "stop": ("rerail.cli.commands.stop:stop", "Stop a live run from another terminal."),
    "dlq": ("rerail.cli.commands.dlq:dlq", "Dead letters, items that failed permanently: list, show, retry, drop, edit."),
    "approve": ("rerail.cli.commands.approve:approve", "Approve a waiting step."),
    "reject": ("rerail.cli.commands.reject:reject", "Reject a waiting step."),
    "mark": ("rerail.cli.commands.mark:mark", "Set the status of a step by hand."),
    "repair": ("rerail.cli.commands.repair:repair", "Recover what is intact of a damaged run."),
    "verify": ("rerail.cli.commands.verify:verify", "Verify the journal and artifacts of runs."),
    "delete": ("rerail.cli.commands.delete:delete", "Delete a run."),
    "prune": ("rerail.cli.commands.prune:prune", "Delete old runs."),
    "init": ("rerail.cli.commands.init:init", "Write a commented pipeline to start from."),
    "check": ("rerail.cli.commands.check:check", "Check a pipeline file."),
    "schema": ("rerail.cli.commands.schema:schema", "Print the JSON Schema of pipeline files."),
    "docs": ("rerail.cli.commands.docs:docs", "Print a page of the documentation."),
    "doctor": ("rerail.cli.commands.doctor:doctor", "Check the setup and report problems."),
    "completion": ("rerail.cli.commands.completion:completion", "Print the completion script of a shell."),
    "demo": ("rerail.cli.commands.demo:demo", "Run a small pipeline, kill it half-way, resume it."),
}

# Commands of other tools, and the one that does it here.
SYNONYMS = {
    word: command
    for command, words in {
        "list": "ls ps runs sessions jobs checkpoints",
        "show": "status info describe get inspect details",
        "run": "exec start execute apply launch submit",
        "resume": "retry continue restart rerun recover restore",
        "stop": "cancel kill abort terminate interrupt down pause",
        "delete": "rm remove del destroy",
        "prune": "clean gc cleanup clear purge",
        "check": "lint validate test vet fmt",
        "logs": "log tail output",
        "history": "events audit trace journal",
        "plan": "dry-run dryrun preview why graph dag",
        "init": "new create scaffold generate quickstart",
        "watch": "follow attach monitor top",
        "approve": "accept confirm allow",
        "reject": "deny decline refuse",
        "mark": "set edit",
        "verify": "fsck checksum",
        "repair": "fix salvage",
        "fork": "clone copy branch",
        "cost": "costs usage spend bill",
        "doctor": "diagnose health env",
        "completion": "completions autocomplete",
        "dlq": "dead-letters deadletters failed",
    }.items()
    for word in words.split()
}

INTERNAL_ERROR = 70
OUT_OF_RESOURCES = 6  # as for all other causes that keep a run from being recorded; it can be resumed

_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())  # its message is the help; since click 8.2


class Commands(click.Group):
    """Command group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            meant = SYNONYMS.get(cmd_name) or nearest(cmd_name, COMMANDS)
            if meant:
                message = f"no command {one_line(cmd_name, 60)!r}, did you mean `rerail {meant}`?"
                raise UsageError(message, hint=f"rerail {meant} --help")
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="rerail")
@click.option("--debug", is_flag=True, help="Show a traceback with an error.")
def cli(debug: bool) -> None:
    """Run pipelines that survive: kill them any way you like, then `rerail resume`.

    \b
    Exit codes: 0 completed, 1 a step failed, 2 bad usage or pipeline, 3 no such run,
    4 owned by a live process, 5 paused, 6 state cannot be written or is damaged,
    130/143/129 stopped by SIGINT/SIGTERM/SIGHUP.
    """


def main() -> None:
    """Run the console script."""
    gc.disable()  # most commands end before a collection would pay; the long ones turn it on
    _fill_standard_streams()
    code = call(sys.argv[1:])
    _give_up_lost_streams()
    sys.exit(code)


def _fill_standard_streams() -> None:
    """Open the standard streams that are missing, before a file of ours becomes descriptor 1 and steps print into it."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(fd, True)  # noqa: FBT003 - the system's signature
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for the whole process
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # whatever the locale is, nothing is unprintable


def _give_up_lost_streams() -> None:
    """Drop output that cannot be printed: the interpreter would try again at its end, and exit with 120."""
    for fd, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def _is_state(path: str) -> bool:
    """Return whether a path is in a store that this command opened."""
    from rerail.cli.options import opened  # it loads the store, which `--version` does not need

    return any(path == root or path.startswith(root + os.sep) for root in opened)


def call(arguments: list[str]) -> int:
    """Run one command; return its exit code. Raise nothing, except with `--debug`."""
    debug = "--debug" in arguments
    if not arguments or arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    try:
        return _called(arguments)
    except Exception as error:
        if debug:
            raise
        if _lacks_resources(error):
            hint = "raise the limits (ulimit -v, ulimit -u, or those of the container), then run it again"
            complain("not enough memory, or no more processes or threads allowed", hint)
            return OUT_OF_RESOURCES
        complain(f"internal error: {type(error).__name__}: {error}", "run it again as `rerail --debug …`")
        return INTERNAL_ERROR


def _lacks_resources(error: BaseException) -> bool:
    """Return whether a command failed for lack of memory, processes or threads, by any exception."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOMEM, errno.EAGAIN)
    if isinstance(error, RuntimeError):
        return "can't start new thread" in str(error)
    if isinstance(error, SystemError | ImportError):  # from C code that failed without a cause, or was not loaded
        return _is_memory_limited()
    return isinstance(error, MemoryError)


def _is_memory_limited() -> bool:
    """Return whether this process has a memory limit of its own."""
    try:
        import resource
    except ImportError:  # there are no such limits
        return False
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def _called(arguments: list[str]) -> int:
    debug = "--debug" in arguments
    try:
        code: Any = cli.main(arguments, prog_name="rerail", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except RerailError as error:
        if debug:
            traceback.print_exc()
        found = error.diagnostics if isinstance(error, PipelineInvalid) else ()
        complain(error.message, error.hint, found, severity=error.severity)
        return error.exit_code
    except click.exceptions.Abort:
        return 130
    except BrokenPipeError:
        # The reader of our output is gone, which is no error. Keep the interpreter from complaining too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        if debug:
            traceback.print_exc()
        if _lacks_resources(error):
            raise
        where = f"{error.filename}: " if error.filename else "cannot print the output: "
        complain(f"{where}{error.strerror}", "fix that, then run it again")
        return StateError.exit_code if _is_state(str(error.filename or "")) else 1
    except click.exceptions.Exit as request:
        return request.exit_code
    except _NO_ARGUMENTS as error:
        sys.stderr.write(error.format_message() + "\n")
        return 2
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "rerail"
        complain(error.format_message(), f"{where} --help")
        return 2


def complain(message: str, hint: str, found: Sequence[Diagnostic] = (), *, severity: str = "error") -> None:
    """Print an error, or the diagnostics of a file, and the next command to stderr, in any state of stderr."""
    try:
        # With the colours: only for errors.
        from rerail.cli.render.diagnostics import shown, shown_message
        from rerail.cli.render.streams import inert

        lines = [inert(line) for line in (shown(found) if found else shown_message(message, severity))]
    except Exception:  # noqa: BLE001 - without memory nothing can be imported
        lines = [one_line(f"rerail: {severity}{': ' if severity else ''}{message}", 1000)]
    if hint:
        lines.append(one_line(f"  next: {hint}", 1000))
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()  # earlier output comes first, also where both are one pipe
    try:
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return
