"""Signals: the first ends gently, the second at once."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.conftest import Project, eventually
from tests.pipelines import note, pipeline, step


@pytest.mark.scenario("G2", "H4")
def test_the_second_signal_kills_at_once(project: Project) -> None:
    # So patient that only the second signal can end it.
    patient = "from rerail.engine import shutdown; shutdown.STOP_GRACE = 3600.0; import rerail.__main__"
    deaf = "trap '' INT TERM\n" + note("while ! test -e again; do sleep 0.1; done")
    project.pipeline(pipeline(step("first", note()), step("a", deaf)))
    process = project.spawn("run", "pipeline.yaml", "--id", "r", program=(sys.executable, "-c", patient))
    eventually(lambda: project.ledger() == ["first", "a"], "a runs")
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert any("stopping steps" in line for line in process.stderr)  # it has heard the first
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)

    assert process.returncode == 143
    assert project.json("show", "r")["status"] == "interrupted"
    (project.root / "again").touch()
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["first", "a", "a"]
