"""A run this process owns: history, and what happens when others take its state away."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.conftest import Project, eventually
from tests.pipelines import note, pipeline, step

# How soon a snapshot is taken depends on what the one before it cost.
UNTIL_ONE_IS_KEPT = "while test $(ls .rerail/runs/r/history | wc -l) -lt 1; do sleep 0.02; done"


def test_a_long_step_does_not_wear_out_the_history(project: Project) -> None:
    wait = note("while ! test -e go; do sleep 0.02; done")
    before_it = [step("quick", "true"), step("second", "true"), step("third", UNTIL_ONE_IS_KEPT)]
    project.pipeline(pipeline(*before_it, step("a", wait), top="checkpoint: {interval: 0.1s, history: 1}"))
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a"], "a runs")
    checkpoint = project.run_dir("r") / "checkpoint.json"
    seen: list[object] = []

    def progress_was_saved(times: int) -> bool:
        progress = json.loads(checkpoint.read_text())["steps"][-1].get("progress")
        if progress and progress not in seen:
            seen.append(progress)
        return len(seen) >= times

    def kept() -> list[str]:
        return sorted(path.name for path in (project.run_dir("r") / "history").iterdir())

    eventually(lambda: progress_was_saved(2), "a snapshot that says how far it is and nothing else that is new")
    before = eventually(lambda: len(kept()) == 1 and kept(), "one older snapshot that is kept")
    eventually(lambda: progress_was_saved(4), "two more")
    after = kept()
    (project.root / "go").touch()
    process.communicate()

    assert after == before


@pytest.mark.scenario("F11", "M10")
@pytest.mark.parametrize("what", ["everything", "lock"])
def test_state_that_is_removed_mid_run_stops_the_run(project: Project, what: str) -> None:
    remove = "rm -rf .rerail" if what == "everything" else "rm .rerail/runs/r/lock"
    project.pipeline(pipeline(step("a", note(remove)), step("b", note())))
    stopped = project.rerail("run", "pipeline.yaml", "--id", "r", check=6)

    assert "was removed or replaced while the run was running" in stopped.stderr
    assert project.ledger() == ["a"]


@pytest.mark.scenario("F11")
@pytest.mark.parametrize(
    "replace",
    [
        "mv lock lock.old",
        "ln lock keep; rm lock",
        "cp lock new; mv new lock",
        "cd ..; cp -r r copy; mv r old; mv copy r",
    ],
)
def test_two_owners_of_one_run_do_not_both_go_on(project: Project, replace: str) -> None:
    """Whoever had the lock that has lost its name stops before it records another word."""
    project.pipeline(pipeline(step("a", note("until test -e go; do sleep 0.02; done")), step("b", note())))
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a"], "a runs")
    subprocess.run(["sh", "-c", replace], cwd=project.run_dir("r"), check=True)
    (project.root / "go").touch()
    _, said = process.communicate(timeout=120)

    assert process.returncode == 6
    assert "was removed or replaced while the run was running" in said
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["a", "a", "b"]
    project.rerail("verify", "r", check=0)
