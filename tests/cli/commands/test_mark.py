"""`rerail mark`: a person's word is final, wherever the run is."""

from __future__ import annotations

from tests.artifacts.pipelines import NOTE, failed_after, one, two
from tests.conftest import Project


def test_marking_a_step_completed_vouches_for_the_edit(project: Project) -> None:
    failed_after(project, two("echo one > out.txt", "cat out.txt > final.txt"))
    (project.root / "out.txt").write_text("better by hand\n")
    project.rerail("mark", "r", "a", "completed", check=0)

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["a", "b", "b"]
    assert (project.root / "final.txt").read_text() == "better by hand\n"


def test_an_edit_that_is_vouched_for_runs_those_again_that_read_it(project: Project) -> None:
    project.pipeline(
        f"steps:\n  - id: a\n    run: |\n      {NOTE}\n      echo one > a.txt\n    artifacts: [a.txt]\n"
        f"  - id: b\n    run: |\n      {NOTE}\n      cat a.txt > b.txt\n    inputs: [a.txt]\n    artifacts: [b.txt]\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    (project.root / "a.txt").write_text("two\n")
    project.rerail("mark", "r", "a", "completed", check=0)

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["a", "b", "b"]
    assert (project.root / "b.txt").read_text() == "two\n"


def test_a_step_cannot_be_marked_completed_without_its_artifact(project: Project) -> None:
    project.pipeline(one("[out.txt]", "exit 1"))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)

    done = project.rerail("mark", "r", "a", "completed", check=2)

    assert "artifact out.txt is missing" in done.stderr
    assert "mark r a pending" in done.stderr
