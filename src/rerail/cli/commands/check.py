"""`rerail check`: pipeline files without running them."""

from __future__ import annotations

import shlex

import click

from rerail.app.inspection import Inspection, inspect
from rerail.cli.options import default_pipeline, json_option, open_store
from rerail.cli.render.diagnostics import shown
from rerail.cli.render.streams import print_json, say, say_raw
from rerail.cli.render.units import counted
from rerail.errors import Diagnostic, UsageError

MAX_NAMED = 3  # files in the next command


@click.command(epilog="Example: rerail check pipeline.yaml")
@click.argument("pipelines", type=click.Path(), nargs=-1, metavar="[PIPELINE]...")
@click.option("--strict", is_flag=True, help="Fail for warnings, too.")
@json_option("Print an array of errors and warnings with file, line, column, end, severity, code, message and help.")
def check(pipelines: tuple[str, ...], strict: bool, as_json: bool) -> int:
    """Check pipeline files: PIPELINE, or pipeline.yaml or rerail.yaml of this directory.

    Errors make it fail, warnings do not. Nothing is run and nothing is written.
    """
    paths = pipelines or (default_pipeline(),)
    inspections = [(path, inspect(path, open_store(None, path))) for path in paths]
    found = [one for _, inspection in inspections for one in inspection.diagnostics]
    failed = any(inspection.failed for _, inspection in inspections) or (strict and bool(found))
    if as_json:
        print_json([_record(one) for one in found])
        return UsageError.exit_code if failed else 0
    _print(inspections, found, failed=failed)
    return UsageError.exit_code if failed else 0


def _print(inspections: list[tuple[str, Inspection]], found: list[Diagnostic], *, failed: bool) -> None:
    for line in shown(found):
        say_raw(line)
    for path, inspection in inspections:
        pipeline = inspection.pipeline
        if pipeline is not None and not inspection.failed:
            say(f"{path}: OK ({counted(len(pipeline.steps), 'step')}, {counted(len(pipeline.params), 'param')})")
    if failed:
        say(f"  next: rerail check {' '.join(shlex.quote(path) for path, _ in inspections[:MAX_NAMED])}")


def _record(one: Diagnostic) -> dict[str, object]:
    """Return a diagnostic for programs; an unknown place is null."""
    return {
        "file": one.file or None,
        "line": one.line or None,
        "column": one.column or None,
        "end": one.end or None,
        "severity": one.severity,
        "code": one.code,
        "message": one.message,
        "help": one.help or None,
    }
