"""Printing that can neither fail nor hold up a run."""

from __future__ import annotations

import subprocess
from functools import partial

import pytest

from tests.conftest import RERAIL, Project, eventually
from tests.pipelines import note, pipeline, step

# Where output goes


def _has(project: Project, entries: int) -> bool:
    return len(project.ledger()) == entries


@pytest.mark.scenario("G6")
def test_what_happens_to_our_output_does_not_happen_to_the_run(project: Project) -> None:
    steps = "".join(f"  - {{id: s{n}, run: 'echo s{n} >> $LEDGER'}}\n" for n in range(8))
    project.pipeline("steps:\n" + steps)
    rerail = " ".join(RERAIL)
    for number, shell in enumerate(
        [
            f"{rerail} run pipeline.yaml --json | head -1 >/dev/null",
            f"{rerail} run pipeline.yaml >&- 2>&-",
            f"{rerail} run pipeline.yaml --json >/dev/full 2>/dev/full",
            f"{rerail} run pipeline.yaml 2>/dev/full",
        ],
        1,
    ):
        subprocess.run(["bash", "-c", shell], cwd=project.root, env=project.env, check=True, timeout=120)
        eventually(partial(_has, project, 8 * number), "all steps ran")  # `head` is gone before the run is
    eventually(lambda: {row["status"] for row in project.json("list")} == {"completed"}, "all are completed")


@pytest.mark.scenario("G6")
def test_nobody_reading_our_output_does_not_hold_the_run_up(project: Project) -> None:
    many = [step(f"s{number}", note("exit 0")) for number in range(300)]
    project.pipeline(pipeline(*many))
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--json")  # its pipes are never read
    eventually(lambda: len(project.ledger()) == 300, "all steps ran")
    process.wait()

    assert project.json("list")[0]["status"] == "completed"
    process.communicate()
