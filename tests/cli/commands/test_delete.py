"""`rerail delete`: refuses what lives, and asks."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.cli.screen import screen
from tests.conftest import Project, eventually


@pytest.mark.scenario("F2")
def test_delete_refuses_what_lives_and_does_not_guess(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'echo a >> $LEDGER; sleep 60'}]")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a"], "it runs")
    assert "run r is running" in project.rerail("delete", "r", "--yes", check=4).stderr
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert "not a terminal: pass --yes" in project.rerail("delete", "r", check=2, stdin=subprocess.DEVNULL).stderr
    project.rerail("delete", "r", "--yes", check=0)

    assert not project.run_dir("r").exists()
    assert project.json("list") == []


def test_delete_asks(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    asked = screen(project, "delete", "r")
    asked.until(lambda text: "delete run r (completed" in text, "the question")
    asked.type(b"n\n")
    asked.end()
    assert project.run_dir("r").exists()
    asked = screen(project, "delete", "r")
    asked.until(lambda text: "delete run r" in text, "the question")
    asked.type(b"y\n")
    asked.end()

    assert not project.run_dir("r").exists()
