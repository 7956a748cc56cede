"""`rerail list`: newest first, filtered."""

from __future__ import annotations

import pytest

from tests.conftest import Project

FAILING = "steps: [{id: a, run: 'echo n=1 >> $RERAIL_OUTPUT'}, {id: b, run: exit 1}]"


@pytest.mark.scenario("K3")
def test_lists_are_newest_first_and_filtered(project: Project) -> None:
    project.pipeline(FAILING)
    project.pipeline("steps: [{run: 'true'}]", "other.yaml")
    project.rerail("run", "pipeline.yaml", "--id", "one", check=1)
    project.rerail("run", "other.yaml", "--id", "two", "--label", "team=docs", check=0)

    assert [run["run_id"] for run in project.json("list")] == ["two", "one"]
    assert [run["run_id"] for run in project.json("list", "--status", "failed")] == ["one"]
    assert [run["run_id"] for run in project.json("list", "--pipeline", "other")] == ["two"]
    assert [run["run_id"] for run in project.json("list", "--resumable")] == ["one"]
    assert [run["run_id"] for run in project.json("list", "--label", "team=docs")] == ["two"]
    assert [run["run_id"] for run in project.json("list", "--limit", "1")] == ["two"]
    assert [event["seq"] for event in project.json("history", "one")] == [6, 5, 4, 3, 2, 1]
