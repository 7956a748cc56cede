"""RUN and PIPELINE left out: the newest run, the file of the directory."""

from __future__ import annotations

import pytest

from tests.conftest import Project, eventually

FAILING = """
steps:
  - {id: draft, run: 'echo drafted; echo $RERAIL_RUN_ID >> $LEDGER'}
  - {id: each, map: {over: [one, two]}, steps: [{run: 'test ${{ item }} = one'}]}
"""


@pytest.fixture
def two(project: Project) -> Project:
    project.pipeline("steps: [{id: other, run: echo something else}]", "other.yaml")
    project.pipeline(FAILING, "first.yaml")
    project.rerail("run", "other.yaml", "--id", "older", check=0)
    project.rerail("run", "first.yaml", "--id", "newer", check=1)
    return project


def test_commands_that_read_take_the_newest_run(two: Project) -> None:
    assert two.json("show")["run_id"] == "newer"
    assert two.json("history")[-1]["event"] == "run-started"
    assert len(two.json("history")) == len(two.json("history", "newer"))
    assert two.rerail("logs", check=0).stdout == "draft | drafted\n"
    assert "run newer is failed" in two.rerail("watch", check=0).stderr
    assert [one["item"] for one in two.json("dlq", "list")] == ["two"]
    assert two.json("plan")["decisions"][0]["step"] == "draft"


def test_a_word_that_is_no_run_may_be_a_step_or_an_item_of_the_newest(two: Project) -> None:
    assert two.rerail("logs", "draft", check=0).stdout == "drafted\n"
    assert [one["item"] for one in two.json("show", "each")] == ["one", "two"]
    assert [one["item"] for one in two.json("dlq", "show", "two")] == ["two"]
    for arguments in (("show", "drfat"), ("logs", "other"), ("dlq", "show", "three"), ("history", "nope")):
        assert "no run" in two.rerail(*arguments, check=3).stderr


def test_commands_that_change_a_run_ask_for_it(two: Project) -> None:
    for command in ("delete", "stop", "fork"):
        assert "Missing argument 'RUN'" in two.rerail(command, check=2).stderr
    for words in (("dlq", "retry"), ("dlq", "drop"), ("mark",)):
        assert "Missing argument" in two.rerail(*words, check=2).stderr


def test_watch_takes_the_newest_live_run(project: Project) -> None:
    project.pipeline("steps: [{run: 'echo >> $LEDGER; until test -e go; do sleep 0.02; done'}]")
    project.pipeline("steps: [{run: 'true'}]", "quick.yaml")
    alive = project.spawn("run", "--id", "alive")
    eventually(project.ledger_file.read_text)
    project.rerail("run", "quick.yaml", "--id", "done", check=0)
    watching = project.spawn("watch")
    assert watching.stderr is not None
    assert "run started" in watching.stderr.readline()
    (project.root / "go").touch()
    assert "run alive is completed" in watching.communicate()[1]
    assert alive.wait() == 0


def test_run_takes_the_pipeline_file_of_the_directory(project: Project) -> None:
    refused = project.rerail("run", check=2)
    assert "no pipeline.yaml or rerail.yaml here" in refused.stderr
    project.pipeline("steps: [{id: only, run: 'echo b >> $LEDGER'}]", "rerail.yaml")
    project.rerail("run", check=0)
    assert project.json("plan")["decisions"][0]["step"] == "only"  # nothing is unfinished: that of the file
    project.pipeline("steps: [{run: 'echo a >> $LEDGER'}]")
    both = project.rerail("run", check=2)
    assert "pipeline.yaml and rerail.yaml" in both.stderr
    assert project.ledger() == ["b"]


def test_a_pipeline_file_is_no_run(two: Project) -> None:
    refused = two.rerail("resume", "first.yaml", check=2)
    assert "first.yaml is a pipeline file, not a run" in refused.stderr
    command = refused.stderr.partition("next: rerail ")[2].partition(",")[0]
    assert command == "run first.yaml --resume"
    assert "each" in two.rerail(*command.split(), "--id", "newer", check=1).stderr
