"""A log that cannot be written costs the log."""

from __future__ import annotations

import resource

import pytest

from tests.conftest import Project

pytestmark = pytest.mark.privileges


@pytest.mark.scenario("D12")
def test_a_log_that_cannot_be_written_costs_the_log_and_is_said(project: Project) -> None:
    project.pipeline('steps: [{id: a, run: "head -c 3000000 /dev/zero | tr \\"\\\\0\\" x; echo ok >> $LEDGER"}]')

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))

    done = project.rerail("run", "pipeline.yaml", "--id", "r", preexec_fn=limit)

    assert done.returncode == 0, done.stderr
    assert "a: its log is incomplete: File too large" in done.stderr
    assert project.json("show", "r")["status"] == "completed"
