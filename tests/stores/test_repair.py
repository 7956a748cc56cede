"""Repair: a damaged run goes on from what can be proved, and keeps what it can."""

from __future__ import annotations

from tests.artifacts.pipelines import producer
from tests.conftest import Project
from tests.pipelines import pipeline


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
