"""`max_crashes`: a step that kills rerail itself is tried so often in a row, then the run is paused."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.conftest import Project, eventually

KILLER = """
max_crashes: 3
steps:
  - {id: before, run: 'echo before >> "$LEDGER"'}
  - {id: big, run: 'echo big-$RERAIL_ATTEMPT >> "$LEDGER"; test -e calm || { kill -9 $PPID; sleep 60; }'}
  - {id: aside, needs: [before], run: 'echo aside >> "$LEDGER"'}
"""


def crash(project: Project, times: int) -> None:
    """Have a step kill its rerail so often."""
    for _ in range(times):
        project.rerail("run", "pipeline.yaml", "--id", "r", "--resume", "--parallel", "1", check=-signal.SIGKILL)


def killed(project: Project) -> int:
    return sum(entry.startswith("big-") for entry in project.ledger())


def resumed_with_another_attempt(project: Project) -> subprocess.Popen[str]:
    before = killed(project)
    process = project.spawn("resume", "r")
    eventually(lambda: killed(project) > before, "the step runs")
    return process


def test_a_step_that_kills_rerail_pauses_the_run(project: Project) -> None:
    project.pipeline(KILLER)
    crash(project, 3)

    planned = project.rerail("resume", "r", "--dry-run", check=0).stderr
    paused = project.rerail("resume", "r", check=5).stderr

    assert "rerail was killed during it 3 times in a row" in planned
    assert "run r is paused: big: rerail was killed during it 3 times in a row" in paused
    assert "next: rerail mark r big pending" in paused
    assert "rerail logs r big" in paused
    assert killed(project) == 3
    assert "aside" in project.ledger()  # all the rest has run
    shown = project.json("show", "r")
    assert (shown["status"], shown["paused_for"], shown["waiting_for"]) == ("paused", "crashes", ["big"])
    project.rerail("resume", "r", check=5)
    assert killed(project) == 3


def test_a_person_may_have_it_tried_again(project: Project) -> None:
    project.pipeline(KILLER)
    crash(project, 3)
    project.rerail("resume", "r", check=5)
    project.rerail("mark", "r", "big", "pending", check=0)
    crash(project, 3)  # it has as many again
    project.rerail("mark", "r", "big", "pending", check=0)
    (project.root / "calm").touch()
    project.rerail("resume", "r", check=0)
    assert killed(project) == 7


def test_an_edited_step_is_another_one(project: Project) -> None:
    project.pipeline(KILLER)
    crash(project, 3)
    project.pipeline(KILLER.replace("test -e calm", "true"))
    project.rerail("resume", "r", check=0)


def test_an_end_of_its_own_and_a_clean_stop_do_not_count(project: Project) -> None:
    project.pipeline(
        KILLER.replace("test -e calm", "test -e calm || { test -e stop && sleep 60; } || { test -e fail && exit 1; }")
    )
    crash(project, 2)
    (project.root / "fail").touch()
    project.rerail("resume", "r", check=1)  # an end of its own
    (project.root / "fail").unlink()
    crash(project, 2)
    (project.root / "stop").touch()
    for _ in range(2):
        process = resumed_with_another_attempt(project)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=240)
        assert process.returncode == 143
    (project.root / "stop").unlink()
    crash(project, 1)  # the third in a row: stops in between are not its own end
    project.rerail("resume", "r", check=5)


def test_items_in_flight_together_are_all_suspects_and_the_others_go_on(project: Project) -> None:
    project.pipeline("""
max_crashes: 2
steps:
  - id: m
    map: {over: [a, b, c, d], parallel: 2}
    steps:
      - run: |
          echo big-${{ item }} >> "$LEDGER"
          case ${{ item }} in
            a) until test "$(grep -c big-b "$LEDGER")" = "$(grep -c big-a "$LEDGER")"; do sleep 0.02; done; kill -9 $PPID; sleep 60;;
            b) sleep 60;;
          esac
""")
    crash(project, 2)

    paused = project.rerail("resume", "r", check=5).stderr

    assert "m[a]: rerail was killed during it 2 times in a row; m[b]: rerail was killed" in paused
    assert sorted(project.ledger()) == ["big-a", "big-a", "big-b", "big-b", "big-c", "big-d"]
    assert project.json("show", "r")["waiting_for"] == ["m[a]", "m[b]"]
    project.rerail("mark", "r", "m[a]", "failed", check=0)
    project.rerail("resume", "r", check=5)
    assert project.json("show", "r")["waiting_for"] == ["m[b]"]


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_wrong_number_is_found_when_the_file_is_checked(project: Project, value: str) -> None:
    project.pipeline(f"max_crashes: {value}\nsteps: [{{run: 'true'}}]")
    assert "`max_crashes`" in project.rerail("check", "pipeline.yaml", check=2).stderr
