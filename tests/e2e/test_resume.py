"""Resuming what was copied, edited, or failed and was allowed to."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.conftest import RERAIL, Project, eventually
from tests.pipelines import note, pipeline, step


@pytest.mark.scenario("M1")
def test_resuming_a_copy_leaves_the_live_original_alone(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("while ! test -e ../go; do sleep 0.02; done"))))
    original = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a"], "a runs")
    copy = project.root.parent / "copy"
    shutil.copytree(project.root, copy, symlinks=True, ignore=shutil.ignore_patterns("*.rerail-tmp"))
    second = subprocess.Popen([*RERAIL, "resume", "r"], cwd=copy, env=project.env, stderr=subprocess.PIPE)
    eventually(lambda: project.ledger() == ["a", "a"], "the copy runs")
    (project.root.parent / "go").touch()
    second.communicate()
    original.communicate()

    assert (original.returncode, second.returncode) == (0, 0)


def test_an_allowed_failure_is_tried_again_when_it_was_edited_or_is_no_longer_allowed(project: Project) -> None:
    def text(script: str, allowed: str) -> str:
        return pipeline(
            step("a", note(script), allow_failure=allowed), step("b", note()), step("c", note("test -e fixed"))
        )

    project.pipeline(text("exit 1", "true"))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    assert "reuse  a" in project.rerail("resume", "--dry-run").stderr
    project.pipeline(text("exit 1", "false"))
    assert "rerun  a     failed, and is no longer allowed to fail" in project.rerail("resume", "--dry-run").stderr
    project.pipeline(text("exit 0", "true"))
    assert "rerun  a     definition changed" in project.rerail("resume", "--dry-run").stderr
