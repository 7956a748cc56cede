"""The audit: what was changed, lost or added since a step completed is noticed, and nothing else is."""

from __future__ import annotations

import os

import pytest

from tests.artifacts.pipelines import NOTE, failed_after, producer, two
from tests.conftest import Project
from tests.pipelines import as_somebody, pipeline


@pytest.mark.scenario("K6", "V5")
def test_touching_changes_nothing_and_fast_trusts_what_was_not_touched(project: Project) -> None:
    failed_after(project, two("echo one > out.txt", "true"))
    os.utime(project.root / "out.txt", ns=(1, 1))
    assert "out.txt" not in project.rerail("resume", "r", "--dry-run", check=0).stderr
    assert "[info] out.txt intact" in project.rerail("resume", "r", "--dry-run", "-v", check=0).stderr
    assert "[info] out.txt intact" in project.rerail("resume", "r", "--dry-run", "-v", "--verify", "fast", check=0).stderr
    (project.root / "out.txt").write_text("two\n")
    assert "[warn] out.txt was changed" in project.rerail("resume", "r", "--dry-run", "--verify", "fast", check=0).stderr


def test_the_last_producer_of_a_path_owns_it(project: Project) -> None:
    project.pipeline(
        f"steps:\n  - id: write\n    run: |\n      {NOTE}\n      echo one > x.txt\n    artifacts: [x.txt]\n"
        f"  - id: append\n    run: |\n      {NOTE}\n      echo two >> x.txt\n    artifacts: [x.txt]\n"
        f"  - id: last\n    run: {NOTE}; test -e ok\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()
    assert "[warn]" not in project.rerail("resume", "r", "--dry-run", check=0).stderr

    (project.root / "x.txt").write_text("broken")
    project.rerail("resume", "r", "--until", "append", check=0)
    assert (project.root / "x.txt").read_text() == "one\ntwo\n"

    # Its definition changes: it must start from what the first step made, not from its own result.
    text = (project.root / "pipeline.yaml").read_text().replace("echo two", "echo zwei")
    (project.root / "pipeline.yaml").write_text(text)
    project.rerail("resume", "r", check=0)
    assert (project.root / "x.txt").read_text() == "one\nzwei\n"
    assert project.ledger() == ["write", "append", "last", "append", "last"]


def test_a_step_skipped_on_purpose_owes_nothing(project: Project) -> None:
    project.pipeline(
        f"steps:\n  - id: a\n    when: false\n    run: {NOTE}\n    artifacts: [out.txt]\n"
        f"  - id: b\n    run: {NOTE}; test -e ok\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["b", "b"]


def test_extra_files_in_a_directory_are_nobodys_loss(project: Project) -> None:
    failed_after(project, two("mkdir -p d; echo one > d/x", "true", more="d"))
    (project.root / "d" / "mine.txt").write_text("not from the step\n")
    (project.root / "d" / "x").unlink()

    project.rerail("resume", "r", check=0)

    assert (project.root / "d" / "x").read_text() == "one\n"
    assert (project.root / "d" / "mine.txt").read_text() == "not from the step\n"


@pytest.mark.privileges
@pytest.mark.scenario("D5", "M3")
def test_what_cannot_be_read_is_said_and_nothing_is_decided_about_it(project: Project) -> None:
    project.pipeline(two("mkdir -p d; echo one > d/x; echo two > d/y", "true", more="d") + "\n")
    assert as_somebody(project, "run", "pipeline.yaml", "--id", "r").returncode == 1
    (project.root / "ok").touch()
    (project.root / "d" / "x").chmod(0)

    refused = as_somebody(project, "resume", "r")

    assert refused.returncode == 6, refused.stderr
    assert "cannot read" in refused.stderr
    assert "d/x: Permission denied; nothing was changed" in refused.stderr
    (project.root / "d" / "x").chmod(0o644)
    assert as_somebody(project, "resume", "r").returncode == 0


@pytest.mark.parametrize("keep", ["true", "false"])
def test_what_a_rerun_step_wipes_is_noticed_before_its_owner_is_kept(project: Project, keep: str) -> None:
    project.pipeline(
        pipeline(
            producer("a", "rm -rf out; mkdir out; echo x > out/a.txt", "artifacts: [{path: out/a.txt, keep: false}]"),
            producer("b", "echo y > out/b.txt", f"artifacts: [{{path: out/b.txt, keep: {keep}}}]"),
            producer("c", "cat out/b.txt; test -e ok"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "out" / "a.txt").unlink()
    (project.root / "ok").touch()

    done = project.rerail("resume", "r", check=0)

    assert project.ledger()[3:] == (["a", "c"] if keep == "true" else ["a", "b", "c"])
    assert ("b: restored out/b.txt" in done.stderr) == (keep == "true")
    assert (project.root / "out" / "b.txt").read_text() == "y\n"


def test_a_temporary_directory_is_not_missed_once_its_reader_is_done(project: Project) -> None:
    project.pipeline(
        pipeline(
            producer("a", "mkdir -p tmp; echo xx > tmp/x", "artifacts: [{path: tmp, temporary: true, keep: false}]"),
            producer("b", "cat tmp/x > b.txt", "inputs: [tmp]", "artifacts: [b.txt]"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    (project.root / "tmp" / "x").unlink()
    (project.root / "tmp").rmdir()

    assert "nothing to resume" in project.rerail("resume", "r", check=0).stderr


def test_an_edited_list_of_artifacts_does_not_mix_their_checks_up(project: Project) -> None:
    text = pipeline(producer("a", "echo x > a.txt; echo {} > b.json", "artifacts: [a.txt, {path: b.json, format: json}]"))
    project.pipeline(text)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.pipeline(text.replace("[a.txt, ", "["))

    assert "nothing to resume" in project.rerail("resume", "r", "--changes", "keep", check=0).stderr


@pytest.mark.privileges
def test_who_may_read_it_is_not_what_it_is(project: Project) -> None:
    project.pipeline(
        pipeline(producer("a", "mkdir -p d; echo x > d/k", "artifacts: [d]"), producer("b", "test -e ok", "inputs: [d]"))
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()
    (project.root / "d" / "k").chmod(0o600)

    assert "[info] d intact" in project.rerail("resume", "r", "-v", check=0).stderr


def test_a_directory_that_became_a_link_to_itself(project: Project) -> None:
    project.pipeline(pipeline(producer("a", "mkdir -p out; echo x > out/a.txt", "artifacts: [out/a.txt]")))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    (project.root / "out" / "a.txt").unlink()
    (project.root / "out").rmdir()
    (project.root / "out").symlink_to("out")

    project.rerail("resume", "r", check=0)

    assert (project.root / "out" / "a.txt").read_text() == "x\n"


def test_what_must_not_be_repeated_is_not_repeated_for_a_lost_artifact(project: Project) -> None:
    project.pipeline(
        pipeline(producer("ship", "echo x > receipt", "artifacts: [{path: receipt, keep: false}]", "idempotent: false"))
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    (project.root / "receipt").unlink()

    done = project.rerail("resume", "r", check=5)

    assert "rerail does not repeat it by itself" in done.stderr
    assert project.ledger() == ["ship"]
    project.rerail("mark", "r", "ship", "pending", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["ship", "ship"]


def test_an_edit_has_it_run_again_whatever_is_lost(project: Project) -> None:
    """It would run again with its artifact, too: what is lost makes no difference."""
    extra = ("artifacts: [{path: receipt, keep: false}]", "idempotent: false")
    project.pipeline(pipeline(producer("ship", "echo x > receipt", *extra)))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    (project.root / "receipt").unlink()
    project.rerail("resume", "r", check=5)
    project.pipeline(pipeline(producer("ship", "echo y > receipt", *extra)))

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["ship", "ship"]
    assert (project.root / "receipt").read_text() == "y\n"
