"""Which run a command is about."""

from __future__ import annotations

from tests.conftest import Project

FAILING = "steps: [{id: a, run: 'echo n=1 >> $RERAIL_OUTPUT'}, {id: b, run: exit 1}]"


def test_a_run_is_found_by_id_prefix_and_last(project: Project) -> None:
    project.pipeline(FAILING)
    for run_id in ("alpha-1", "alpha-2", "beta"):
        project.rerail("run", "pipeline.yaml", "--id", run_id, check=1)

    assert project.json("show", "last")["run_id"] == "beta"
    assert project.json("show", "b")["run_id"] == "beta"
    assert "it matches 2 runs" in project.rerail("show", "alpha", check=3).stderr
    assert "did you mean alpha-1 or alpha-2" in project.rerail("show", "alhpa-1", check=3).stderr
