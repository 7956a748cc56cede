"""The built-in kinds: files that `write` steps make."""

from __future__ import annotations

import os

from tests.conftest import Project


def mode(project: Project, name: str) -> str:
    return f"{(project.root / name).stat().st_mode & 0o7777:04o}"


def test_a_written_file_has_the_mode_that_the_step_says_whatever_the_umask(project: Project) -> None:
    project.pipeline(
        "steps:\n"
        '  - {id: script, write: {path: a.sh, content: "#!/bin/sh\\necho ran >> $LEDGER\\n", mode: "0755"}}\n'
        '  - {id: private, write: {path: key, content: x, mode: "600"}}\n'
        "  - {id: plain, write: {path: plain, content: x}}\n"
        "  - {id: run, run: ./a.sh}\n"
    )
    before = os.umask(0o077)
    try:
        project.rerail("run", "pipeline.yaml", check=0)
    finally:
        os.umask(before)

    assert project.ledger() == ["ran"]
    assert [mode(project, name) for name in ("a.sh", "key", "plain")] == ["0755", "0600", "0600"]


def test_a_changed_mode_writes_the_file_again(project: Project) -> None:
    text = (
        "steps:\n  - {id: w, write: {path: a.sh, content: '${{ run.id }}', mode: \"0644\"}}\n  - {id: b, run: exit 1}\n"
    )
    project.pipeline(text)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.pipeline(text.replace("0644", "0755").replace("exit 1", "./a.sh || true"))

    resumed = project.rerail("resume", "r", check=0)

    assert "definition changed" in resumed.stderr
    assert mode(project, "a.sh") == "0755"
