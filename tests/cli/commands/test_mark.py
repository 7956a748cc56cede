"""`rerail mark`: a person's word is final, wherever the run is."""

from __future__ import annotations

import signal

from tests.artifacts.pipelines import NOTE, failed_after, one, two
from tests.conftest import Project, eventually
from tests.pipelines import note, pipeline, step


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


def kill_in(project: Project, name: str, *arguments: str) -> None:
    """Run until that step has said so in the ledger once more, and kill."""
    before = project.ledger().count(name)
    process = project.spawn(*arguments)
    eventually(lambda: project.ledger().count(name) == before + 1, f"{name} runs")
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_mark_is_final_even_if_the_step_was_edited_or_an_ancestor_is_newer(project: Project) -> None:
    def text(first: str, deploy: str) -> str:
        return pipeline(
            step("a", note(first)), step("deploy", note(deploy), idempotent="false"), step("c", note("test -e fixed"))
        )

    project.pipeline(text("true", "true"))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.pipeline(text("true", "test -e go || sleep 60"))
    kill_in(project, "deploy", "resume", "r")
    project.rerail("resume", "r", check=5)
    project.pipeline(text("echo newer", "test -e go || sleep 60"))
    project.rerail("resume", "r", check=5)
    project.rerail("mark", "r", "deploy", "completed", check=0)
    (project.root / "fixed").touch()
    ran = project.ledger().count("deploy")
    project.rerail("resume", "r", check=0)

    assert project.ledger().count("deploy") == ran


def test_mark_works_on_a_crashed_run_at_once(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("sleep 60"), idempotent="false"), step("b", note())))
    kill_in(project, "a", "run", "pipeline.yaml", "--id", "r")
    project.rerail("mark", "r", "a", "completed", check=0)
    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["a", "b"]


def test_marking_a_step_of_a_completed_run_makes_it_resumable(project: Project) -> None:
    project.pipeline(pipeline(step("a", note()), step("b", note())))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.rerail("mark", "r", "b", "pending", check=0)
    assert project.json("list")[0]["status"] == "interrupted"
    project.rerail("resume", check=0)

    assert project.ledger() == ["a", "b", "b"]
