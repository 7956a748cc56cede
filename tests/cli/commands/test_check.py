"""`rerail check`: finds what `rerail run` would refuse."""

from __future__ import annotations

from tests.artifacts.pipelines import producer
from tests.conftest import Project
from tests.pipelines import pipeline


def test_check_finds_what_run_would_refuse(project: Project) -> None:
    for wrong in (
        "[../x.txt]",
        "[.rerail/x]",
        "[{path: x.json, schema: none.json}]",
        "[{path: x.json, schema: pipeline.yaml}]",
    ):
        project.pipeline(pipeline(producer("a", "true", f"artifacts: {wrong}")))
        checked = project.rerail("check", "pipeline.yaml", check=2).stderr
        assert checked.splitlines()[0] == project.rerail("run", "pipeline.yaml", check=2).stderr.splitlines()[0]
        assert "error: step `a`" in checked
    assert project.ledger() == []
