"""Pipelines of steps that make files, for the tests of artifacts."""

from __future__ import annotations

from tests.conftest import Project

NOTE = 'echo "$RERAIL_STEP" >> "$LEDGER"'


def one(artifacts: str, script: str) -> str:
    return f"steps:\n  - id: a\n    run: |\n      {NOTE}\n      {script}\n    artifacts: {artifacts}\n"


def two(first: str, second: str, *, more: str = "") -> str:
    """A step that makes out.txt, and one behind it that fails until there is a file `ok`."""
    return (
        f"steps:\n  - id: a\n    run: |\n      {NOTE}\n      {first}\n    artifacts: [{more or 'out.txt'}]\n"
        f"  - id: b\n    run: |\n      {NOTE}\n      test -e ok\n      {second}\n"
    )


def failed_after(project: Project, text: str) -> None:
    """A run whose last step has failed; the next one will not."""
    project.pipeline(text)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()


def producer(name: str, script: str, *more: str) -> str:
    lines = "".join(f"    {line}\n" for line in more)
    return f"  - id: {name}\n    run: |\n      {NOTE}\n      {script}\n{lines}"
