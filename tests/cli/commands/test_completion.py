"""`rerail completion`: commands, runs and steps."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import Project


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_runs_and_steps(project: Project, shell: str) -> None:
    project.pipeline("params: {topic: sun}\nsteps: [{id: compile, run: 'true'}]")
    project.rerail("run", "pipeline.yaml", "--id", "nightly-1", check=0)
    assert "_RERAIL_COMPLETE" in project.rerail("completion", shell, check=0).stdout

    def completed(*words: str) -> str:
        env = {"_RERAIL_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        code = "import sys; sys.argv[0] = 'rerail'; from rerail.cli.main import main; main()"
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, cwd=project.root, env={**project.env, **env}, capture_output=True, text=True
        ).stdout

    assert "plain,resume" in completed("rerail", "res")
    assert "plain,nightly-1" in completed("rerail", "show", "nigh")
    assert "plain,compile" in completed("rerail", "logs", "nightly-1", "co")
    assert "plain,compile" in completed("rerail", "mark", "last", "co")
    assert "plain,compile" in completed("rerail", "run", "pipeline.yaml", "--from", "co")
    assert "plain,compile" in completed("rerail", "resume", "last", "--from", "co")
    assert "plain,compile" in completed("rerail", "fork", "last", "--until", "")
    assert "plain,topic=" in completed("rerail", "run", "pipeline.yaml", "-p", "to")
    assert "plain,topic=" in completed("rerail", "fork", "last", "-p", "")
