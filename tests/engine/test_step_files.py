"""The files of steps on their way through an invocation: inputs before, artifacts after."""

from __future__ import annotations

from tests.artifacts.pipelines import NOTE
from tests.conftest import Project


def test_a_missing_input_fails_the_step_before_it_runs(project: Project) -> None:
    project.pipeline(f"steps:\n  - id: a\n    run: {NOTE}\n    inputs: [none.txt]\n")

    done = project.rerail("run", "pipeline.yaml", check=1)

    assert "input none.txt is missing" in done.stderr
    assert project.ledger() == []
