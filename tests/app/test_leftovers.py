"""What killed runs left in memory goes when the next run of their store begins, and nothing else does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rerail.executors import channels
from tests.conftest import Project, eventually
from tests.pipelines import dollars

STEP = """
params: {n: a}
steps:
  - id: s
    run: |
      echo secret=1 >> "$RERAIL_OUTPUT"; echo '{"cost_usd": 5}' >> "$RERAIL_METRICS"; echo ${{ params.n }} >> "$LEDGER"
      test -e fine || sleep 300
"""


def scratch(project: Project) -> dict[str, set[str]]:
    """Run → the files in its channel directories."""
    found: dict[str, set[str]] = {}
    for place in channels.all_directories():
        lock = Path(channels.lock_of(place))
        if project.root in lock.parents:
            found.setdefault(lock.parent.name, set()).update(os.listdir(place))
    return found


def begun(project: Project, run: str, kill: bool) -> None:
    process = project.spawn("run", "pipeline.yaml", "--id", run, "-p", f"n={run}")
    eventually(lambda: run in project.ledger(), f"{run} runs")
    if kill:
        process.kill()
        process.communicate()
        eventually(lambda: "death" in scratch(project)[run], "the watchdog has ended")


def raw(files: set[str]) -> set[str]:
    return {name for name in files if name.endswith(".output")}


def test_raw_files_of_dead_runs_go_with_the_next_start(project: Project) -> None:
    project.pipeline(STEP)
    begun(project, "live", kill=False)
    begun(project, "dead", kill=True)
    assert raw(scratch(project)["dead"])
    project.pipeline("steps: [{run: 'true'}]", "other.yaml")

    for command in (("list",), ("show", "dead"), ("plan", "dead"), ("resume", "dead", "--dry-run")):
        project.rerail(*command, check=0)
        assert raw(scratch(project)["dead"]), command  # readers change nothing
    project.rerail("run", "other.yaml", check=0)

    assert not raw(scratch(project)["dead"])
    assert raw(scratch(project)["live"])
    (project.root / "fine").touch()
    project.rerail("resume", "dead", check=0)
    assert dollars(project, "dead") == 10  # what the killed attempt cost is known all the same
    assert "dead" not in scratch(project)


def test_what_is_left_of_a_run_that_is_gone_goes_after_a_day(project: Project) -> None:
    project.pipeline(STEP)
    begun(project, "dead", kill=True)
    shutil.rmtree(project.run_dir("dead"))
    project.pipeline("steps: [{run: 'true'}]", "other.yaml")

    project.rerail("run", "other.yaml", check=0)
    assert not raw(scratch(project)["dead"])
    assert scratch(project)["dead"]
    for place in channels.all_directories():
        if channels.lock_of(place).startswith(str(project.root)):
            os.utime(place, (1, 1))
    project.rerail("run", "other.yaml", check=0)
    assert "dead" not in scratch(project)


def test_other_stores_are_not_touched(project: Project, tmp_path: Path) -> None:
    project.pipeline(STEP)
    begun(project, "dead", kill=True)
    (tmp_path / "elsewhere").mkdir()
    elsewhere = Project(tmp_path / "elsewhere")
    elsewhere.pipeline("steps: [{run: 'true'}]")
    elsewhere.rerail("run", "pipeline.yaml", check=0)
    assert raw(scratch(project)["dead"])
