"""Repair: a damaged run goes on from what can be proved, and keeps what it can."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.artifacts.pipelines import producer
from tests.conftest import Project
from tests.pipelines import keys, ledger, pipeline, results


def test_a_repaired_run_verifies(project: Project) -> None:
    project.pipeline(
        pipeline(
            producer("a", "echo x > a.txt", "artifacts: [a.txt]"), producer("b", "true"), producer("c", "test -e ok")
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    journal = project.run_dir("r") / "journal-0001.jsonl"
    lines = journal.read_bytes().split(b"\n")
    lines[3] = lines[3].replace(b'"step"', b'"stXp"')
    journal.write_bytes(b"\n".join(lines))
    project.rerail("repair", "r", check=0)
    (project.root / "ok").touch()

    assert "is intact" in project.rerail("verify", "r", check=0).stderr
    project.rerail("resume", "r", check=0)
    assert "is intact" in project.rerail("verify", "r", check=0).stderr


def broken(run_dir: Path) -> None:
    """Cut the newest journal in half."""
    newest = max(run_dir.glob("journal-*.jsonl"))
    data = newest.read_bytes().rstrip(b"\n")
    newest.write_bytes(data[: len(data) // 2] + b"\n" + data[-200:])


MANY = """
steps:
  - id: m
    map: {over: [a, b, c, d], parallel: 1, max_failures: %s}
    steps: [{run: 'echo ${{ item }} >> "$LEDGER"; test ${{ item }} != d -o -e ok; echo v=${{ item }} >> $RERAIL_OUTPUT'}]
  - {id: after, run: 'echo after >> "$LEDGER"'}
"""


def test_a_run_can_be_repaired_again_and_again(project: Project) -> None:
    project.pipeline(MANY % 0)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    for _ in range(3):
        project.rerail("resume", "r", check=1)
        broken(project.run_dir("r"))
        assert project.rerail("resume", "r").returncode == 6
        project.rerail("repair", "r", check=0)
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)

    assert keys(project) == ["a", "b", "c", "d"]
    assert all(one["outputs"] == {"v": one["key"]} for one in results(project))
    assert ledger(project)[-1] == "after"


@pytest.mark.parametrize("kept", [4, 6, 8, 10, 12])
def test_items_whose_records_a_repair_gave_up_run_again(project: Project, kept: int) -> None:
    project.pipeline(MANY % 0)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    journal = project.run_dir("r") / "journal-0001.jsonl"
    lines = journal.read_bytes().split(b"\n")
    lines[kept] = lines[kept].replace(b'"step"', b'"stop"')
    journal.write_bytes(b"\n".join(lines))
    assert project.rerail("resume", "r").returncode == 6
    project.rerail("repair", "r", check=0)
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)

    assert keys(project) == ["a", "b", "c", "d"]
    assert all(one["outputs"] == {"v": one["key"]} for one in results(project))
