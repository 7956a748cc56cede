"""`rerail init`: writes a pipeline that runs, and never overwrites."""

from __future__ import annotations

import json

import jsonschema
import yaml

from tests.conftest import Project


def test_init_writes_a_pipeline_that_runs_and_never_overwrites(project: Project) -> None:
    project.rerail("init", check=0)
    text = (project.root / "pipeline.yaml").read_text()
    assert "nothing written" in project.rerail("init", check=2).stderr
    assert (project.root / "pipeline.yaml").read_text() == text
    assert text.startswith("# yaml-language-server: $schema=pipeline.schema.json\n")
    schema = json.loads((project.root / "pipeline.schema.json").read_text())
    jsonschema.validate(yaml.safe_load(text), schema)
    project.rerail("check", "pipeline.yaml", check=0)
    (project.root / "pipeline.yaml").write_text(text.replace("sleep 1", "sleep 0"))
    project.rerail("run", "pipeline.yaml", "-p", "who=you & me", check=0)

    assert (project.root / "out" / "published.txt").read_text().splitlines()[0] == "part 1 for you & me"
