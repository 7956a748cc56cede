"""`--from` and `--until`: where an invocation begins and ends."""

from __future__ import annotations

import pytest

from tests.conftest import Project
from tests.pipelines import note, pipeline, step


@pytest.mark.parametrize("options", [[], ["--fail-fast"]])
def test_until_does_not_turn_a_failure_into_success(project: Project, options: list[str]) -> None:
    project.pipeline(
        "steps: [{id: a, run: 'false'}, {id: b, run: 'true'}, {id: c, run: 'true'}]\nfinally: [{run: 'true'}]\n"
    )

    project.rerail("run", "pipeline.yaml", "--id", "r", "--until", "b", *options, check=1)
    assert project.json("show", "r")["status"] == "failed"


def test_from_skips_what_is_declared_after_what_needs_it(project: Project) -> None:
    project.pipeline(
        pipeline(step("b", note(), needs="[a]"), step("a", note(), needs="[]"), step("c", note(), needs="[b]"))
    )
    project.rerail("run", "pipeline.yaml", "--from", "c", check=0)

    assert project.ledger() == ["c"]


def test_from_and_until(project: Project) -> None:
    project.pipeline(
        pipeline(
            step("a", note()),
            step("b", note(), needs="[a]"),
            step("c", note(), needs="[b]"),
            step("x", note(), needs="[a]"),
        )
    )
    stopped = project.rerail("run", "pipeline.yaml", "--id", "r", "--until", "b", check=0)
    assert "stopped after b (--until)" in stopped.stderr
    assert project.ledger() == ["a", "b"]
    assert project.json("list")[0]["status"] == "paused"
    project.rerail("resume", "r", "--parallel", "1", check=0)
    assert sorted(project.ledger()[2:]) == ["c", "x"]
    project.rerail("resume", "r", "--from", "b", check=0)
    assert project.ledger()[4:] == ["b", "c"]
    project.rerail("run", "pipeline.yaml", "--id", "s", "--from", "c", check=0)
    assert project.ledger()[6:] == ["c"]
    assert [item["status"] for item in project.json("show", "s")["steps"]] == [
        "skipped",
        "skipped",
        "completed",
        "skipped",
    ]
    assert "no step `zz`" in project.rerail("run", "pipeline.yaml", "--until", "zz", check=2).stderr
