"""The end of an invocation in words, and the command to type next."""

from __future__ import annotations

import pytest

from tests.conftest import Project

FAILING = "steps: [{id: a, run: 'echo n=1 >> $RERAIL_OUTPUT'}, {id: b, run: exit 1}]"


@pytest.mark.scenario("M2")
def test_the_next_command_works_from_where_it_is_printed(project: Project) -> None:
    (project.root / "sub").mkdir()
    project.pipeline(FAILING, "sub/p.yaml")
    failed = project.rerail("run", "sub/p.yaml", "--id", "r", check=1)
    hint = failed.stderr.split("next: rerail ")[1].split("\n")[0]

    assert "no run" not in project.rerail(*hint.split(), check=1).stderr


def test_hooks_are_not_counted_as_steps(project: Project) -> None:
    project.pipeline(
        "steps: [{id: a, run: exit 1, on_failure: [{run: 'true'}]}]\nfinally: [{run: 'true'}, {run: 'true'}]"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    row = project.json("list")[0]

    assert (row["steps_completed"], row["steps_total"], row["last_completed_step"]) == (0, 1, None)
    assert "no matching run in" in project.rerail("list", "--status", "crashed", check=0).stderr


def test_hints_name_a_store_that_is_elsewhere(project: Project) -> None:
    project.pipeline("steps: [{id: ok, approve: sure?}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    store = str(project.root / ".rerail")
    here = project.root.parent
    project.root = here
    shown = project.rerail("show", "r", "--store", store, check=0)
    unnamed = project.rerail("approve", "r", "--store", store, check=2)
    answered = project.rerail("approve", "r", "ok", "--store", store, check=0)

    assert f"rerail approve r ok --store {store}" in shown.stdout
    assert f"no step named\n  next: rerail approve r ok --store {store}" in unnamed.stderr
    assert f"next: rerail resume r --store {store}" in answered.stderr


def test_the_time_limit_that_got_nowhere_is_raised_by_every_hint(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: sleep 300}]")
    paused = project.rerail("run", "pipeline.yaml", "--id", "r", "--max-runtime", "1s", check=5)

    assert "next: rerail resume r --max-runtime 2s" in paused.stderr
    assert "rerail resume r --max-runtime 2s" in project.rerail("show", "r", check=0).stdout
