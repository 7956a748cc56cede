"""`rerail why` and the events of one step: the reason of every start, from what is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Project, eventually

PIPELINE = """
steps:
  - {id: a, run: 'echo n=1 >> $RERAIL_OUTPUT'}
  - {id: each, map: {over: [one, two]}, steps: [{run: 'test ${{ item }} = one -o -e fixed'}]}
  - {id: b, needs: [a], retry: {attempts: 2, delay: 0.05}, run: 'echo b >> $LEDGER; test $RERAIL_ATTEMPT != 1'}
  - {id: last, needs: [each, b], run: 'true'}
"""


def said(project: Project, *arguments: str) -> list[list[str]]:
    answer: dict[str, Any] = project.json("why", *arguments)
    return [list(one["sentences"]) for one in answer["invocations"]]


@pytest.fixture
def failed(project: Project) -> Project:
    project.pipeline(PIPELINE)
    project.rerail("run", "--id", "r", check=1)
    return project


def test_every_invocation_has_its_reason(failed: Project) -> None:
    (failed.root / "fixed").touch()
    failed.rerail("resume", "r", check=0)
    assert said(failed, "r", "a") == [
        ["attempt 1 ran: it had not run before. It completed."],
        ["reused: settled in invocation 1."],
    ]
    assert said(failed, "r", "b")[0] == [
        "attempt 1 ran: it had not run before. It failed: exited with code 1.",
        "attempt 2 ran: attempt 1 failed: exited with code 1. It completed.",
    ]
    assert said(failed, "r", "each[two]") == said(failed, "r", "each", "two")
    assert said(failed, "each[two]")[1] == ["attempt 2 ran: failed before. It completed."]
    assert said(failed, "r", "last") == [
        ["not reached (the run failed)."],
        ["attempt 1 ran: it had not run before. It completed."],
    ]


def test_an_edit_a_mark_and_what_a_resume_would_do(failed: Project) -> None:
    assert failed.json("why", "r", "a")["now"]["decision"] == "reuse"
    assert failed.json("why", "r", "each")["now"]["decision"] == "continue"
    failed.pipeline(PIPELINE.replace("n=1", "n=2"))
    now = failed.json("why", "r", "a")["now"]
    assert now["sentence"] == "a resume would run it again (definition changed)"
    assert failed.json("plan", "r")["decisions"][0]["reason"] == now["reason"]
    (failed.root / "fixed").touch()
    failed.rerail("resume", "r", check=0)
    assert said(failed, "r", "a")[1] == ["attempt 2 ran: definition changed. It completed."]
    failed.rerail("mark", "r", "last", "pending", check=0)
    failed.rerail("resume", "r", check=0)
    notes, ran = said(failed, "r", "last")[1][-1], said(failed, "r", "last")[2]
    assert notes.startswith("marked pending by ")
    assert ran[0].startswith("attempt 2 ran: marked pending by ")
    text = failed.rerail("why", "r", "last", check=0).stdout
    assert text.startswith("last in run r: completed\n  1 ")
    assert text.splitlines()[-1].strip() == "now                    a resume would reuse it (completed)".strip()


def test_a_killed_attempt_and_a_live_run(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'echo a >> $LEDGER; until test -e go; do sleep 0.02; done'}]")
    process = project.spawn("run", "--id", "r")
    eventually(lambda: project.ledger() == ["a"])
    assert project.json("why", "r", "a")["now"]["sentence"] == "the run is running: rerail watch r"
    process.kill()
    process.communicate()
    (project.root / "go").touch()
    assert said(project, "r", "a") == [["attempt 1 ran: it had not run before. It has not ended."]]
    project.rerail("resume", "r", check=0)
    assert said(project, "r", "a") == [
        ["attempt 1 ran: it had not run before. It was interrupted (crash)."],
        ["attempt 2 ran: attempt 1 was interrupted (crash). It completed."],
    ]


def test_a_step_has_to_be_named_and_to_be_there(failed: Project) -> None:
    assert "no step named" in failed.rerail("why", "r", check=2).stderr
    assert "has no step 'lst' (steps: a, each, b, last)" in failed.rerail("why", "r", "lst", check=2).stderr


def test_history_of_one_step_or_item(failed: Project) -> None:
    def units(*arguments: str) -> set[tuple[str, str | None]]:
        return {(one["step"], one.get("item")) for one in failed.json("history", *arguments)}

    assert units("r", "each") == {("each", None), ("each", "one"), ("each", "two")}
    assert units("r", "each", "two") == units("--step", "each[two]") == {("each", "two")}
    assert units("b") == {("b", None)}
    assert "started      b (attempt 2)" in failed.rerail("history", "r", "b", check=0).stdout
    assert "no events of c (steps: a, each" in failed.rerail("history", "r", "--step", "c", check=2).stderr
    failed.rerail("history", "r", "a", "--step", "b", check=2)
