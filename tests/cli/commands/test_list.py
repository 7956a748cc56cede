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


def test_params_are_shown_as_expressions_see_them(project: Project) -> None:
    project.pipeline(
        "params: {flag: false, specs: {type: list, default: []}, level: draft}\n"
        'steps: [{id: a, run: \'echo "${{ params.flag }} ${{ params.specs }} ${{ params.level }}" >> "$LEDGER"\'}]'
    )
    given = ("-p", "flag=yes", "-p", "specs=a", "-p", "specs=b,c")
    project.rerail("run", "pipeline.yaml", "--id", "r", *given, check=0)
    project.pipeline("params: {flag: false}\nsteps: [{id: a, run: 'true'}]", "other.yaml")
    project.rerail("run", "other.yaml", "--id", "s", check=0)

    assert project.ledger() == ["true", '["a","b,c"]', "draft"]
    assert 'flag=true specs=["a","b,c"] level=draft' in project.rerail("list", check=0).stdout
    assert "flag=false" in project.rerail("list", check=0).stdout
    assert 'flag=true specs=["a","b,c"] level=draft' in project.rerail("show", "r", check=0).stdout


def test_a_param_that_is_no_list_is_given_once(project: Project) -> None:
    project.pipeline("params: {level: draft}\nsteps: [{run: 'true'}]")

    refused = project.rerail("run", "pipeline.yaml", "-p", "level=a", "-p", "level=b", "-p", "level=c", check=2)

    assert "the param `level` takes one value of type string, not 3: ['a', 'b', 'c']" in refused.stderr
