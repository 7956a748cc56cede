"""Asking a person at the terminal."""

from __future__ import annotations

import pytest

from tests.cli.screen import screen
from tests.conftest import Project

APPROVE = "steps: [{id: a, run: 'true'}, {id: ok, approve: Shall we?}, {id: b, run: echo b >> $LEDGER}]"


def test_a_person_at_the_terminal_is_asked(project: Project) -> None:
    project.pipeline(APPROVE)
    shown = screen(project, "run", "pipeline.yaml", "--id", "r")
    shown.until(lambda text: "? Shall we?" in text and text.endswith("  >"), "the question")
    shown.type(b"perhaps\n")
    shown.until(lambda text: text.count("[y]es") == 2, "it asks again")
    assert project.ledger() == []
    shown.type(b"y fine by me\n")
    shown.end()
    assert shown.process.returncode == 0
    assert project.ledger() == ["b"]
    said = next(event for event in project.json("history", "r") if event["event"] == "approval-given")
    assert (said["approved"], said["reason"]) == (True, "fine by me")


@pytest.mark.scenario("A10")
@pytest.mark.parametrize(("keys", "code"), [(b"n no\n", 1), (b"\n", 5), (b"\x04", 5), (b"\x03", 130)])
def test_other_answers(project: Project, keys: bytes, code: int) -> None:
    project.pipeline(APPROVE)
    shown = screen(project, "run", "pipeline.yaml", "--id", "r")
    shown.until(lambda text: "? Shall we?" in text and text.endswith("  >"), "the question")
    shown.type(keys)
    shown.end()
    assert shown.process.returncode == code
    assert project.ledger() == []
    project.rerail("approve", "r", "ok", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["b"]


def test_a_question_does_not_outlast_the_time_a_life_may_take(project: Project) -> None:
    project.pipeline(APPROVE)
    shown = screen(project, "run", "pipeline.yaml", "--id", "r", "--max-runtime", "1s")
    shown.until(lambda text: "? Shall we?" in text, "the question")
    last = shown.end()
    assert shown.process.returncode == 5
    assert "--max-runtime 1 s is reached" in last


@pytest.mark.scenario("A10")
def test_a_kill_while_a_person_is_asked_loses_nothing(project: Project) -> None:
    project.pipeline(APPROVE)
    shown = screen(project, "run", "pipeline.yaml", "--id", "r")
    shown.until(lambda text: "? Shall we?" in text, "the question")
    shown.process.kill()
    shown.end()
    project.rerail("resume", "r", check=5)
    project.rerail("approve", "r", "ok", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["b"]
