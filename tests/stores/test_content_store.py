"""The content store: copies are shared, proved before they are used, and kept only where they may be."""

from __future__ import annotations

import os
import resource

import pytest

from tests.artifacts.pipelines import failed_after, one, producer, two
from tests.conftest import Project
from tests.pipelines import pipeline


@pytest.mark.privileges
@pytest.mark.scenario("E8")
def test_rotten_copies_are_never_restored(project: Project) -> None:
    failed_after(project, two("echo one > out.txt", "true"))
    (project.root / "out.txt").unlink()
    for copy in (project.root / ".rerail" / "objects").glob("??/*"):
        copy.chmod(0o600)
        copy.write_bytes(b"tow\n")
    assert "is corrupt" in project.rerail("verify", "--all", check=1).stderr

    done = project.rerail("resume", "r", check=0)

    assert "[warn] out.txt missing -- rerunning a" in done.stderr
    assert project.ledger() == ["a", "b", "a", "b"]
    assert (project.root / "out.txt").read_text() == "one\n"


def test_copies_are_shared_and_no_hard_links(project: Project) -> None:
    project.pipeline(one("[out.txt]", "echo one > out.txt"))
    project.rerail("run", "pipeline.yaml", check=0)
    project.rerail("run", "pipeline.yaml", check=0)

    (copy,) = (project.root / ".rerail" / "objects").glob("??/*")
    (project.root / "out.txt").write_text("scribbled over")
    assert copy.read_text() == "one\n"


def test_what_is_not_to_be_kept_is_not_and_the_step_runs_again(project: Project) -> None:
    failed_after(project, two("echo one > out.txt", "true", more="{path: out.txt, keep: false}"))
    (project.root / "out.txt").unlink()

    project.rerail("resume", "r", check=0)

    assert not list((project.root / ".rerail" / "objects").glob("??/*"))
    assert project.ledger() == ["a", "b", "a", "b"]


def test_an_artifact_with_a_secret_is_not_kept(project: Project) -> None:
    project.env["TOKEN"] = "s3cr3t-value-of-the-token"
    project.pipeline(
        "secrets: [TOKEN]\n" + one("[out.txt, plain.txt]", 'echo "key=$TOKEN" > out.txt; echo x > plain.txt')
    )

    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert "out.txt holds a secret, so the content store has no copy of it" in done.stderr
    for path in (project.root / ".rerail").rglob("*"):
        assert not path.is_file() or b"s3cr3t" not in path.read_bytes()


@pytest.mark.scenario("E8")
def test_prune_collects_what_no_run_refers_to(project: Project) -> None:
    objects = project.root / ".rerail" / "objects"
    project.pipeline(one("[out.txt, d]", "date +%N > out.txt; mkdir -p d; date +%N > d/f"))
    project.rerail("run", "pipeline.yaml", "--id", "first", check=0)
    first = set(objects.glob("??/*"))
    project.rerail("run", "pipeline.yaml", "--id", "second", check=0)
    second = set(objects.glob("??/*")) - first

    project.rerail("prune", "--keep", "1", "--dry-run", check=0)
    assert set(objects.glob("??/*")) == first | second
    done = project.rerail("prune", "--keep", "1", check=0)

    assert "removed 3 copies of artifacts" in done.stderr
    assert set(objects.glob("??/*")) == second


@pytest.mark.privileges
def test_a_copy_that_cannot_be_written_fails_nobody(project: Project) -> None:
    (project.root / "big.bin").write_bytes(os.urandom(3_000_000))
    project.pipeline(pipeline(producer("a", "mv big.bin out.bin", "artifacts: [out.bin]")))

    def no_large_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))

    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=0, preexec_fn=no_large_files)

    assert "out.bin (3.0 MB) has no copy" in done.stderr
    assert not list((project.root / ".rerail" / "objects").glob("??/*"))
    assert "1 artifact" in project.rerail("verify", "r", check=0).stderr


def rot(project: Project) -> None:
    for copy in (project.root / ".rerail" / "objects").glob("??/*"):
        copy.chmod(0o600)
        copy.write_bytes(b"rotten\n")


def test_copies_that_rotted_are_replaced_and_intact_files_are_not_paid_for_again(project: Project) -> None:
    project.pipeline(
        pipeline(
            producer("a", "mkdir -p d; echo x > d/x; echo y > f.txt", "artifacts: [d, f.txt]"),
            producer("b", "test -e ok"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()
    rot(project)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["a", "b", "b"]  # the files make the same digest, though the list of them is lost

    project.rerail("run", "pipeline.yaml", "--id", "n", check=0)

    assert "is intact" in project.rerail("verify", "n", check=0).stderr
    assert "0 of" not in project.rerail("verify", "--all", check=0).stderr
