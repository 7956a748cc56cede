"""The pages to paste for CI are executed as far as they can be here, and the others at least parsed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.actions import Job
from tests.conftest import Project, eventually

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/how-to/ci.md").read_text(encoding="utf-8")
PIPELINE = "steps: [{id: a, run: 'echo a >> $LEDGER'}, {id: b, run: 'echo b >> $LEDGER; test -e $LEDGER.go'}]"


def block(section: str, kind: str) -> str:
    """The first code block of a section."""
    text = PAGE.partition(f"\n## {section}\n")[2]
    found = re.search(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None, section
    return found[1]


@pytest.fixture
def nightly(project: Project, tmp_path: Path) -> Project:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/rerail").symlink_to(Path(sys.executable).parent / "rerail")
    project.env["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{project.env['PATH']}"
    project.pipeline(PIPELINE, "nightly.yaml")
    return project


def checkout(workspace: Path) -> None:
    (workspace / "nightly.yaml").write_text(PIPELINE, encoding="utf-8")


def test_the_workflow_continues_the_run_in_its_next_attempt(nightly: Project, tmp_path: Path) -> None:
    steps = yaml.safe_load(block("GitHub Actions, step by step", "yaml"))["jobs"]["build"]["steps"]
    steps = [step for step in steps if not step.get("run", "").startswith("pip install")]
    assert len(steps) == 6
    job = Job(tmp_path / "github", nightly, ROOT, steps)

    assert job.run(checkout) == "failure", job.log
    assert (job.root / "uploads" / "rerail" / "runs" / "ci-4711").is_dir()
    Path(f"{nightly.ledger_file}.go").touch()
    assert job.run(checkout) == "success", job.log
    assert nightly.ledger() == ["a", "b", "b"]
    assert job.steps["rerail"]["outputs"]["status"] == "completed"


def test_the_example_of_the_action_uses_inputs_and_outputs_that_there_are() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    workflow = yaml.safe_load(block("GitHub Actions, with the action", "yaml"))
    steps: list[dict[str, Any]] = workflow["jobs"]["build"]["steps"]
    used = next(step for step in steps if step.get("id") == "rerail")

    assert set(used["with"]) <= set(action["inputs"])
    assert set(re.findall(r"steps\.rerail\.outputs\.([\w-]+)", str(steps))) == set(action["outputs"])


def options(command: str) -> set[str]:
    return set(re.findall(r"(?<!-)--[a-z][\w-]*", command))


@pytest.mark.parametrize("section", ["GitLab", "Jenkins", "cron", "systemd"])
def test_commands_have_options_that_there_are(section: str) -> None:
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    known = options(
        subprocess.run([sys.executable, "-m", "rerail", "run", "--help"], capture_output=True, text=True).stdout
    )

    commands = re.findall(r"rerail run [^\n']*", text)
    assert commands
    for command in commands:
        assert options(command) <= known, command


def test_the_yaml_for_gitlab_is_yaml() -> None:
    job = yaml.safe_load(block("GitLab", "yaml"))["nightly"]

    assert job["cache"]["when"] == job["artifacts"]["when"] == "always"
    assert job["allow_failure"] == {"exit_codes": 5}


def cron(project: Project) -> subprocess.CompletedProcess[str]:
    """What cron does: the command of its line, by sh, with what it prints as a mail."""
    line = next(line for line in block("cron", "").splitlines() if line.startswith("0 2"))
    command = line.split(maxsplit=5)[5].replace("/srv/nightly", str(project.root))
    return subprocess.run(
        ["sh", "-c", command],
        env=project.env,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )


def test_cron_mails_what_went_wrong_and_runs_nothing_twice(nightly: Project) -> None:
    failed = cron(nightly)
    assert (failed.returncode, nightly.ledger()) == (1, ["a", "b"])
    assert "step b failed: exited with code 1" in failed.stdout
    assert "next: rerail resume" in failed.stdout
    Path(f"{nightly.ledger_file}.go").touch()
    done = cron(nightly)
    assert (done.returncode, done.stdout, nightly.ledger()) == (0, "", ["a", "b", "b"])


def test_cron_beside_a_live_run_says_so_and_after_a_kill_goes_on(nightly: Project) -> None:
    nightly.pipeline(
        PIPELINE.replace("test -e", "until test -e").replace(".go'", ".go; do sleep 0.05; done'"), "nightly.yaml"
    )
    live = nightly.spawn("run", "nightly.yaml", "--resume", "-q")
    eventually(lambda: nightly.ledger() == ["a", "b"], "b runs")
    beside = cron(nightly)

    assert (beside.returncode, nightly.ledger()) == (4, ["a", "b"])
    assert str(live.pid) in beside.stdout
    live.kill()
    live.communicate()
    Path(f"{nightly.ledger_file}.go").touch()
    after = cron(nightly)
    assert (after.returncode, nightly.ledger()) == (0, ["a", "b", "b"]), after.stdout
