"""The action of this repository, step by step as a runner of GitHub executes it: killed half-way it goes on in the next attempt."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.actions import Job
from tests.conftest import Project, eventually

ROOT = Path(__file__).parent.parent.parent
PIPELINE = """
params: {word: {default: none}}
outputs: {said: "${{ steps.ship.outputs.said }}"}
steps:
  - {id: fetch, artifacts: [data.txt], run: 'echo fetch >> $LEDGER; echo ${{ params.word }} > data.txt'}
  - id: work
    map: {over: [a, b, c], parallel: 1}
    steps: [{run: 'echo work-${{ item }} >> $LEDGER; if test ${{ item }} = b; then WAIT; fi; echo done-${{ item }} >> $LEDGER'}]
  - {id: ship, needs: [fetch, work], inputs: [data.txt], outputs: {said: stdout}, run: 'echo ship >> $LEDGER; cat data.txt'}
"""
POLITE = "while ! test -e $LEDGER.go; do sleep 0.02; done"
STUBBORN = f'trap "" INT TERM; {POLITE}'


@pytest.fixture
def job(project: Project, tmp_path: Path) -> Job:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "rerail").write_text(f'#!/bin/sh\nexec {sys.executable} -m rerail "$@"\n')
    (bin_ / "rerail").chmod(0o755)  # it is there for any user
    project.env["PATH"] = f"{bin_}{os.pathsep}{project.env['PATH']}"
    return Job(tmp_path / "github", project, ROOT)


pytestmark = pytest.mark.privileges


def checkout(text: str) -> Callable[[Path], None]:
    def write(workspace: Path) -> None:
        (workspace / "pipeline.yaml").write_text(text, encoding="utf-8")

    return write


@pytest.mark.parametrize(("wait", "patient"), [(POLITE, True), (STUBBORN, False)], ids=["asked to end", "killed"])
def test_a_job_that_is_cancelled_goes_on_in_its_next_attempt(job: Job, wait: str, patient: bool) -> None:
    project = job.project
    files = checkout(PIPELINE.replace("WAIT", wait))
    first = job.run(
        files, lambda: "work-b" in project.ledger(), patient=patient, rerail="none", params="word=two words\n"
    )

    assert first == "cancelled"
    assert project.ledger() == ["fetch", "work-a", "done-a", "work-b"]
    (Path(f"{project.ledger_file}.go")).touch()
    second = job.run(files, rerail="none", params="word=two words\n")

    assert second == "success", job.log
    assert project.ledger() == ["fetch", "work-a", "done-a", "work-b", "work-b", "done-b", "work-c", "done-c", "ship"]
    assert (job.outputs["run-id"], job.outputs["status"]) == ("ci-4711", "completed")
    assert json.loads(job.outputs["outputs"]) == {"said": "two words"}
    summary = (job.root / "summary.md").read_text(encoding="utf-8")
    assert ("run ci&#45;4711 interrupted" in summary) == patient
    assert "run ci&#45;4711 completed" in summary


def test_a_job_that_fails_saves_its_store_too_and_the_next_attempt_repairs_it(job: Job) -> None:
    text = "steps: [{id: a, run: 'echo a >> $LEDGER'}, {id: b, run: 'echo b >> $LEDGER; test -e $LEDGER.go'}]"

    assert job.run(checkout(text), rerail="none", upload="true") == "failure"
    assert (job.outputs["status"], job.steps["run"]["code"]) == ("failed", 1)
    assert (job.root / "uploads" / "rerail-build-0-1" / "runs" / "ci-4711").is_dir()
    Path(f"{job.project.ledger_file}.go").touch()
    assert job.run(checkout(text), rerail="none") == "success"
    assert job.project.ledger() == ["a", "b", "b"]
    assert job.run(checkout(text), rerail="none") == "success"  # a third one has nothing to do
    assert job.project.ledger() == ["a", "b", "b"]
    assert job.outputs["status"] == "completed"


@pytest.mark.parametrize(("paused", "expected"), [("fail", "failure"), ("neutral", "success")])
def test_a_job_at_its_time_limit_is_red_or_not_and_the_next_one_goes_on(job: Job, paused: str, expected: str) -> None:
    files = checkout(
        "steps: [{id: a, run: 'echo a >> $LEDGER'}, {id: b, run: 'while ! test -e $LEDGER.go; do sleep 0.02; done; echo b >> $LEDGER'}]"
    )
    assert job.run(files, rerail="none", max_runtime="3s", paused=paused) == expected
    assert (job.outputs["status"], job.steps["run"]["code"]) == ("paused", 5)
    assert ("::notice title=rerail::The run is paused" in job.log) == (paused == "neutral")
    Path(f"{job.project.ledger_file}.go").touch()

    assert job.run(files, rerail="none", max_runtime="10m", paused=paused) == "success"
    assert job.project.ledger() == ["a", "b"]


def test_inputs_are_never_code_and_reach_rerail_as_they_are(job: Job) -> None:
    (Path(job.project.ledger_file.parent) / "here").touch()
    text = "params: {a: {}, b: {}}\nsteps: [{id: a, env: {A: '${{ params.a }}'}, run: 'printf %s \"$A\" > $LEDGER; env > $LEDGER.env'}]"
    value = '$(touch evil) `touch evil` "quoted" ; touch evil #'
    result = job.run(
        checkout(text),
        rerail="none",
        params=f"a={value}\nb=* ~\n",
        args="--label x=* --fail-fast\n--parallel 3",
        run_id="my-run",
        store="some/where",
    )

    assert result == "success", job.log
    assert job.project.ledger_file.read_text() == value
    assert not list(job.workspace.rglob("evil"))
    assert "INPUT_" not in Path(f"{job.project.ledger_file}.env").read_text()
    run = json.loads((job.workspace / "some/where/runs/my-run/run.json").read_text())
    assert (run["params"]["b"], run["labels"], run["options"]["parallel"]) == ("* ~", {"x": "*"}, 3)


def test_a_pipeline_that_is_wrong_makes_the_job_red(job: Job) -> None:
    assert job.run(checkout("steps: [{id: a}]"), rerail="none", paused="neutral") == "failure"
    assert (job.outputs["status"], job.steps["run"]["code"]) == ("", 2)


def test_files_that_are_no_artifacts_come_along_if_they_are_named(job: Job) -> None:
    text = "steps: [{id: a, run: 'echo kept > notes.txt'}, {id: b, run: 'cat notes.txt >> $LEDGER; test -e $LEDGER.go'}]"

    assert job.run(checkout(text), rerail="none", cache_paths="notes.txt") == "failure"
    Path(f"{job.project.ledger_file}.go").touch()
    assert job.run(checkout(text), rerail="none", cache_paths="notes.txt") == "success"
    assert job.project.ledger() == ["kept", "kept"]


def test_rerail_is_the_process_that_gets_the_signals(job: Job) -> None:
    """A shell would wait for its child instead of ending it, until the runner kills both."""
    text = "steps: [{id: a, run: 'ps -o args= -p $PPID >> $LEDGER.parent || cat /proc/$PPID/cmdline >> $LEDGER.parent; echo a >> $LEDGER'}]"
    job.run(checkout(text), rerail="none")

    eventually(lambda: job.project.ledger() == ["a"])
    assert "rerail" in Path(f"{job.project.ledger_file}.parent").read_text()
    assert "exec " in next(step["run"] for step in job.definition["runs"]["steps"] if step.get("id") == "run")


def test_rerail_is_installed_apart_and_nothing_else_of_it_is_on_the_path(job: Job, tmp_path: Path) -> None:
    wheel = tmp_path / "rerail-0.0.1-py3-none-any.whl"  # of this source, and without its dependencies: no network here
    with zipfile.ZipFile(wheel, "w") as file:
        for path in (ROOT / "src" / "rerail").rglob("*.py"):
            file.write(path, path.relative_to(ROOT / "src"))
        file.writestr("rerail-0.0.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: rerail\nVersion: 0.0.1\n")
        file.writestr("rerail-0.0.1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("rerail-0.0.1.dist-info/entry_points.txt", "[console_scripts]\nrerail = rerail.cli.main:main\n")
        file.writestr("rerail-0.0.1.dist-info/RECORD", "")
    job.project.env |= {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PIP_NO_INDEX": "1",
        "PYTHONPATH": sysconfig.get_paths()["purelib"],  # the dependencies
    }
    text = "steps: [{id: a, run: 'command -v rerail >> $LEDGER; command -v python3 >> $LEDGER'}]"
    assert job.run(checkout(text), rerail=str(wheel)) == "success", job.log
    rerail, python = job.project.ledger()

    assert Path(rerail).parent.name == "rerail-bin"
    assert [path.name for path in Path(rerail).parent.iterdir()] == ["rerail"]
    assert Path(python).parent == Path(sys.executable).parent


@pytest.mark.parametrize("page", ["action.yml"])
def test_every_input_and_output_of_the_action_is_documented(page: str) -> None:
    text = (ROOT / "docs/how-to/ci.md").read_text(encoding="utf-8")
    definition = yaml.safe_load((ROOT / page).read_text(encoding="utf-8"))

    for name in (*definition["inputs"], *definition["outputs"]):
        assert f"`{name}`" in text, name
