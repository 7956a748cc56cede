"""The files of steps on their way through an invocation: inputs before, artifacts after."""

from __future__ import annotations

from tests.artifacts.pipelines import NOTE
from tests.conftest import Project


def test_a_missing_input_fails_the_step_before_it_runs(project: Project) -> None:
    project.pipeline(f"steps:\n  - id: a\n    run: {NOTE}\n    inputs: [none.txt]\n")

    done = project.rerail("run", "pipeline.yaml", check=1)

    assert "input none.txt is missing" in done.stderr
    assert project.ledger() == []


def test_what_an_attempt_cost_is_recorded_before_its_artifacts_are_sealed(project: Project) -> None:
    """Sealing may take long, and be cut off."""
    project.pipeline("""
steps:
  - {id: a, artifacts: [made], run: 'echo x > made; echo "{\\"cost_usd\\": 5}" >> "$RERAIL_METRICS"'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    told = [one for one in reversed(project.json("history", "r")) if one.get("metrics")]

    assert [(one["event"], one["metrics"]["cost_usd"]) for one in told] == [("step-progressed", 5), ("step-completed", 5)]
    assert project.json("cost", "r")["total"]["cost_usd"] == 5
