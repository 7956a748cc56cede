"""The plan in words."""

from __future__ import annotations

from tests.conftest import Project


def test_the_plan_of_a_map_under_way_says_on_what_it_depends(project: Project) -> None:
    text = """
steps:
%s  - {id: m, map: {over: [a, b], parallel: 1}, steps: [{run: 'test ${{ item }} = a'}]}
"""
    project.pipeline(text % "  - {id: mid, run: 'true'}\n")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.pipeline(text % "  - {id: mid, run: 'true edited'}\n")

    told = project.rerail("resume", "r", "--dry-run", check=0).stderr
    assert "retrying 1; restarts if the result of mid changes" in told

    project.pipeline(text % "  - {id: new, run: 'true'}\n")
    assert "new dependency new" in project.rerail("resume", "r", "--dry-run", check=0).stderr
