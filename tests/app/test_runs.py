"""Which run a command is about."""

from __future__ import annotations

import pytest

from tests.conftest import Project
from tests.pipelines import note, pipeline, step

FAILING = "steps: [{id: a, run: 'echo n=1 >> $RERAIL_OUTPUT'}, {id: b, run: exit 1}]"


def test_a_run_is_found_by_id_prefix_and_last(project: Project) -> None:
    project.pipeline(FAILING)
    for run_id in ("alpha-1", "alpha-2", "beta"):
        project.rerail("run", "pipeline.yaml", "--id", run_id, check=1)

    assert project.json("show", "last")["run_id"] == "beta"
    assert project.json("show", "b")["run_id"] == "beta"
    assert "it matches 2 runs" in project.rerail("show", "alpha", check=3).stderr
    assert "did you mean alpha-1 or alpha-2" in project.rerail("show", "alhpa-1", check=3).stderr


def test_a_damaged_run_of_another_pipeline_does_not_block_this_one(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("exit 1"))))
    project.pipeline(pipeline(step("b", note())), "other.yaml")
    project.rerail("run", "pipeline.yaml", "--id", "bad", check=1)
    journal = project.run_dir("bad") / "journal-0001.jsonl"
    journal.write_bytes(b"x" + journal.read_bytes()[1:])

    project.rerail("run", "other.yaml", "--resume", check=0)
    project.rerail("run", "pipeline.yaml", "--resume", check=6)


@pytest.mark.scenario("L10")
def test_params_are_compared_as_what_they_are(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("exit 1")), top="params: {flag: {type: boolean, default: false}, n: 3}"))
    project.rerail("run", "pipeline.yaml", "-p", "flag=true", "-p", "n=4", check=1)
    project.rerail("run", "pipeline.yaml", "--resume", "-p", "flag=true", "-p", "n=4", check=1)

    assert len(project.json("list")) == 1
