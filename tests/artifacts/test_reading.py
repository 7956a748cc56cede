"""Reading a file once: whatever a check of its content raises."""

from __future__ import annotations

import pytest

from tests.artifacts.pipelines import producer
from tests.conftest import Project
from tests.pipelines import pipeline


@pytest.mark.parametrize("text", ["!!bool foo", "!!int ''", "!!timestamp foo", "!!python/object:os.system x"])
def test_whatever_a_parser_raises_fails_the_step_and_hangs_nobody(project: Project, text: str) -> None:
    project.pipeline(pipeline(producer("a", f'echo "{text}" > a.yaml', "artifacts: [{path: a.yaml, format: yaml}]")))

    assert "artifact a.yaml is not valid yaml" in project.rerail("run", "pipeline.yaml", check=1).stderr
