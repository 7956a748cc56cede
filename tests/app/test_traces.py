"""What attempts cost is known until it is durable elsewhere, whatever became of the invocation that ran them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rerail.app.traces import process_tag_in
from rerail.executors import channels
from rerail.stores.directory import DirectoryStore
from tests.conftest import Project, eventually
from tests.patched import life
from tests.pipelines import dollars

DEAR = 'echo "{\\"cost_usd\\": 5}" >> "$RERAIL_METRICS"; echo paid >> "$LEDGER"'


def kill_when(project: Project, process: subprocess.Popen[str], ledger: list[str]) -> None:
    eventually(lambda: project.ledger() == ledger, f"{ledger}")
    process.kill()
    process.communicate()


def test_a_step_whose_end_could_not_be_recorded_has_cost_what_it_cost(project: Project) -> None:
    project.pipeline(f"steps: [{{id: a, run: '{DEAR}; test -e fine || touch broken'}}]")
    assert life(project, "run", "pipeline.yaml", "--id", "r") == 6

    assert dollars(project) == 5
    assert life(project, "resume", "r") == 6  # it cannot record what the first one cost, either
    assert dollars(project) == 5
    (project.root / "broken").unlink()
    (project.root / "fine").touch()
    assert life(project, "resume", "r") == 0
    assert project.ledger() == ["paid", "paid"]
    assert dollars(project) == 10


def test_what_a_killed_step_cost_outlives_a_resume_that_cannot_write(project: Project) -> None:
    project.pipeline(f"steps: [{{id: a, run: '{DEAR}; test -e fine || sleep 300'}}]")
    kill_when(project, project.spawn("run", "pipeline.yaml", "--id", "r"), ["paid"])
    (project.root / "broken").touch()

    assert life(project, "resume", "r") == 6
    assert dollars(project) == 5
    (project.root / "broken").unlink()
    (project.root / "fine").touch()
    assert life(project, "resume", "r") == 0
    assert dollars(project) == 10


def test_an_attempt_that_was_never_launched_is_none(project: Project) -> None:
    wait = f"{DEAR}; sleep 300"
    project.pipeline(f"steps: [{{id: a, run: touch broken-once}}, {{id: b, run: '{wait}'}}]")
    assert life(project, "run", "pipeline.yaml", "--id", "r") == 6
    assert [one["step"] for one in project.json("cost", "r")["attempts"]] == ["a"]
    kill_when(project, project.spawn("resume", "r"), ["paid"])

    told = project.json("cost", "r")
    assert told["total"]["cost_usd"] == 5
    assert [(one["step"], one["status"]) for one in told["attempts"]] == [("a", "completed"), ("b", "interrupted")]


COSTLY = """
steps:
  - run: |
      echo '{"cost_usd": 5}' >> "$RERAIL_METRICS"
      test -e again || { touch again; kill -9 $PPID; sleep 60; }
"""


@pytest.mark.parametrize("how", ["copied", "copied and the original deleted", "moved"])
def test_the_money_of_a_killed_attempt_follows_the_run(project: Project, how: str) -> None:
    """What it had counted is in memory-backed storage, found by the invocation that the journal names."""
    project.pipeline(COSTLY)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=-9)
    other = project.root.parent / "other"
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    if how == "moved":
        project.root.rename(other)
    else:
        shutil.copytree(project.root, other, symlinks=True)
    if how == "copied and the original deleted":
        shutil.rmtree(project.root)
    original, project.root = project.root, other

    project.rerail("resume", "r", check=0)

    assert project.json("show", "r")["total_cost_usd"] == 10
    if how == "copied":  # the original has its own to count still
        project.root = original
        project.rerail("resume", "r", check=0)
        assert project.json("show", "r")["total_cost_usd"] == 10
    mine = {entry for entry in before if (Path("/dev/shm") / entry / "origin").is_file()}
    assert not any(str(project.root.parent) in (Path("/dev/shm") / entry / "origin").read_text() for entry in mine)


def test_money_that_nobody_can_know_of_is_said(project: Project) -> None:
    project.pipeline("budget: {cost_usd: 100}\n" + COSTLY)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=-9)
    store = DirectoryStore(str(project.root / ".rerail"))
    channels.wipe(process_tag_in(store, "r"))  # as a restart of the machine does
    done = project.rerail("resume", "r", check=0)
    assert "when it was killed is known only up to the last save" in done.stderr
