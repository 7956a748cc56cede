"""The reasons that a person reads, in real runs: renamed and removed steps, live runs, and the time that is saved."""

from __future__ import annotations

import json

from tests.conftest import Project, eventually

STORY = """
steps:
  - {id: fetch, run: 'echo raw > raw.txt', artifacts: [raw.txt]}
  - {id: %s, needs: [fetch], inputs: [raw.txt], run: 'tr a-z A-Z < raw.txt > tr.txt', artifacts: [tr.txt]}
  - {id: review, needs: [%s], inputs: [tr.txt], run: 'cp tr.txt review.txt', artifacts: [review.txt]}
  - {id: ship, needs: [review], run: 'cat review.txt'}
"""


def test_what_comes_after_a_renamed_step_names_it_and_not_a_step_that_was_kept(project: Project) -> None:
    project.pipeline(STORY % ("translate", "translate"))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.pipeline(STORY % ("xlate", "xlate"))

    made = {one["step"]: one for one in project.json("plan", "r")["decisions"]}
    assert made["ship"]["because"] == {"kind": "new-dependency", "step": "xlate"}
    told = project.rerail("resume", "r", check=0).stderr

    assert "review: unchanged" in told
    assert "new dependency xlate" in told
    assert "review produced" not in told
    assert "result of review" not in told
    shown = project.json("show", "r")
    assert shown["removed_steps"] == ["translate"]
    assert project.json("list")[0]["steps_completed"] == 4
    assert "5 completed" not in told
    assert "translate  - removed" in project.rerail("show", "r").stdout


def test_a_plan_of_a_live_run_says_that_it_is_running(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'touch begun; while [ ! -e go ]; do sleep 0.05; done'}]\n")
    live = project.spawn("run", "pipeline.yaml", "--id", "v1")
    try:
        eventually((project.root / "begun").exists, "the step runs")
        planned = project.rerail("plan", "v1", "--json", check=0)
        assert "run v1 is running (pid " in planned.stderr
        assert "rerail watch v1" in planned.stderr
        assert json.loads(planned.stdout)["decisions"] == []
        assert json.loads(planned.stdout)["running"]["pid"] == live.pid
        assert "run v1 is running" in project.rerail("resume", "v1", "--dry-run", check=4).stderr
    finally:
        (project.root / "go").touch()
        live.wait()


def test_what_a_map_saves_is_the_same_before_and_after_it_completes(project: Project) -> None:
    """The last thing that runs in the map fails it, after all of its work is done."""
    project.pipeline(
        "steps:\n"
        "  - id: m\n"
        "    map: {over: [a, b, c]}\n"
        "    steps:\n"
        "      - {id: work, run: 'sleep 0.2'}\n"
        "      - {id: last, run: 'test -e ok'}\n"
        "  - {id: z, run: 'test -e done'}\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    before = {one["step"]: one for one in project.json("plan", "r")["decisions"]}["m"]
    assert before["decision"] == "continue"
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=1)

    after = {one["step"]: one for one in project.json("plan", "r")["decisions"]}["m"]
    assert after["decision"] == "reuse"
    assert after["saved_seconds"] >= before["saved_seconds"] >= 0.6
