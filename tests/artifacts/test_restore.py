"""What a plan restores is as it was, and whatever stood in its place is moved aside."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from pathlib import Path

import pytest

from tests.artifacts.pipelines import failed_after, one, producer, two
from tests.conftest import Project
from tests.pipelines import as_somebody, pipeline


@pytest.mark.scenario("M9")
def test_the_log_says_what_was_found_restored_and_run(project: Project) -> None:
    failed_after(project, two("echo one > out.txt", "true"))
    (project.root / "out.txt").unlink()

    plan = project.rerail("plan", "r", check=0)
    assert "[warn] out.txt missing -- can be restored from the content store" in plan.stderr
    done = project.rerail("resume", "r", check=0)

    assert "[warn] out.txt missing -- restored from the content store" in done.stderr
    assert re.search(r"rerun +b +failed: exited with code 1", done.stderr)
    assert "reusing 0 of 2 steps, restoring 1, rerunning 1" in done.stderr
    assert project.ledger() == ["a", "b", "b"]
    assert (project.root / "out.txt").read_text() == "one\n"


def test_what_a_person_wrote_is_kept_and_said_where(project: Project) -> None:
    failed_after(project, two("echo one > out.txt", "true"))
    (project.root / "out.txt").write_text("my own edit, an hour of work\n")

    done = project.rerail("resume", "r", check=0)

    kept = next(line for line in done.stderr.splitlines() if "the file found there is in" in line).split()[-1]
    assert (project.root / kept).read_text() == "my own edit, an hour of work\n"
    assert (project.root / "out.txt").read_text() == "one\n"
    assert "moved to quarantine/0001/out.txt" in project.rerail("history", "r", check=0).stdout


def test_before_a_producer_runs_again_what_stands_there_is_moved_aside(project: Project) -> None:
    failed_after(project, two("echo one > out.txt", "true"))
    (project.root / "out.txt").write_text("edited\n")

    project.rerail("resume", "r", "--no-restore", check=0)

    assert project.ledger() == ["a", "b", "a", "b"]
    (kept,) = project.run_dir("r").glob("quarantine/*/out.txt")
    assert kept.read_text() == "edited\n"


def test_a_completed_run_is_healed(project: Project) -> None:
    project.pipeline(one("[out.txt]", "echo one > out.txt"))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    (project.root / "out.txt").unlink()

    assert "out.txt of a: missing; resume restores it" in project.rerail("verify", "r", check=1).stderr
    project.rerail("resume", "r", check=0)

    assert (project.root / "out.txt").read_text() == "one\n"
    assert project.ledger() == ["a"]
    assert "nothing to resume" in project.rerail("resume", "r", check=0).stderr


@pytest.mark.scenario("J2")
def test_a_symlinked_directory_cannot_smuggle_a_restore_outside(project: Project, tmp_path: Path) -> None:
    failed_after(project, two("mkdir -p d; echo one > d/out.txt", "true", more="d/out.txt"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.rmtree(project.root / "d")
    (project.root / "d").symlink_to(elsewhere)

    done = project.rerail("resume", "r")

    assert done.returncode == 2
    assert "is outside the project" in done.stderr
    assert project.ledger() == ["a", "b"]
    assert not list(elsewhere.iterdir())


@pytest.mark.privileges
@pytest.mark.scenario("V6")
def test_odd_names_links_and_sockets_in_a_directory(project: Project) -> None:
    script = (
        "mkdir -p d/sub d/empty; echo n > \"$(printf 'd/new\\nline')\"; echo b > \"$(printf 'd/b\\377yte')\"; "
        "echo s > 'd/back\\\\slash'; ln -s sub d/link; echo x > d/run.sh; chmod 755 d/run.sh; "
        f"{sys.executable} -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"d/sock\")'"
    )
    failed_after(project, two(script, "true", more="d"))
    before = snapshot(project.root / "d")
    assert before[b"sock"][0] == "other"
    shutil.rmtree(project.root / "d")

    project.rerail("resume", "r", check=0)

    after = snapshot(project.root / "d")
    before.pop(b"sock")
    assert after == before
    assert os.access(project.root / "d" / "run.sh", os.X_OK)


def snapshot(directory: Path) -> dict[bytes, tuple[str, bytes]]:
    """Every entry below a directory: its kind and content."""
    found = {}
    top = os.fsencode(directory)
    for where, directories, names in os.walk(top):
        for name in [*directories, *names]:
            path = os.path.join(where, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                content = ("link", os.readlink(path))
            elif stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    content = ("file", file.read())
            else:
                content = ("dir" if stat.S_ISDIR(mode) else "other", b"")
            found[os.path.relpath(path, top)] = content
    return found


def test_an_edit_is_kept_under_from_too(project: Project) -> None:
    project.pipeline(pipeline(producer("a", "echo x > a.txt", "artifacts: [a.txt]")))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    (project.root / "a.txt").write_text("my precious edit\n")

    project.rerail("resume", "r", "--from", "a", check=0)

    (kept,) = project.run_dir("r").glob("quarantine/*/a.txt")
    assert kept.read_text() == "my precious edit\n"


@pytest.mark.parametrize("path", ["d", "d/x"])
@pytest.mark.parametrize("keep", ["true", "false"])
def test_a_file_in_the_place_of_a_directory_is_moved_aside(project: Project, path: str, keep: str) -> None:
    script = "rm -rf d; mkdir -p d; echo x > d/x"
    project.pipeline(pipeline(producer("a", script, f"artifacts: [{{path: {path}, keep: {keep}}}]")))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    (project.root / "d" / "x").unlink()
    (project.root / "d").rmdir()
    (project.root / "d").write_text("precious\n")

    project.rerail("resume", "r", check=0)

    assert (project.root / "d" / "x").read_text() == "x\n"
    assert [kept.read_text() for kept in project.run_dir("r").glob("quarantine/*/d")] == ["precious\n"]


def test_a_temporary_artifact_comes_back_for_whoever_may_read_it(project: Project) -> None:
    project.pipeline(
        pipeline(
            producer("a", "mkdir -p tmp; echo x > tmp/x", "artifacts: [{path: ./tmp/x, temporary: true}]"),
            producer("m", "true"),
            producer("b", "(cat tmp/x; echo b) > b.txt", "artifacts: [{path: b.txt, keep: false}]"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    for path in ("tmp/x", "b.txt"):
        (project.root / path).unlink()

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["a", "m", "b", "b"]


def test_what_was_private_is_private_again(project: Project) -> None:
    project.pipeline(pipeline(producer("a", "umask 077; mkdir -p d/e; echo x > d/e/k", "artifacts: [d]")))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    (project.root / "d" / "e" / "k").unlink()
    (project.root / "d" / "e").rmdir()
    (project.root / "d").rmdir()

    project.rerail("resume", "r", check=0)

    modes = [stat.S_IMODE((project.root / path).stat().st_mode) for path in ("d", "d/e", "d/e/k")]
    assert modes == [0o700, 0o700, 0o600]


def rot(project: Project) -> None:
    for copy in (project.root / ".rerail" / "objects").glob("??/*"):
        copy.chmod(0o600)
        copy.write_bytes(b"rotten\n")


def test_without_its_list_a_changed_directory_is_moved_aside_and_made_again(project: Project, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("not ours\n")
    project.pipeline(
        pipeline(
            producer("a", "mkdir -p d; echo x > d/x; echo y > d/y", "artifacts: ['d/*']"), producer("b", "test -e ok")
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()
    rot(project)
    (project.root / "d" / "x").unlink()
    (project.root / "d" / "x").symlink_to(tmp_path / "target")

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["a", "b", "a", "b"]
    assert (tmp_path / "target").read_text() == "not ours\n"
    assert not (project.root / "d" / "x").is_symlink()


@pytest.mark.scenario("J2")
def test_a_directory_that_became_a_link_is_not_written_through(project: Project) -> None:
    project.pipeline(
        pipeline(producer("a", "mkdir -p d/e; echo good > d/e/x", "artifacts: [d]"), producer("b", "test -e ok"))
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()
    (project.root / "src" / "e").mkdir(parents=True)
    (project.root / "src" / "e" / "x").write_text("mine\n")
    for path in ("d/e/x",):
        (project.root / path).unlink()
    (project.root / "d" / "e").rmdir()
    (project.root / "d").rmdir()
    (project.root / "d").symlink_to("src")

    assert "a directory on the way is a link now" in project.rerail("resume", "r", check=0).stderr

    assert (project.root / "src" / "e" / "x").read_text() == "mine\n"
    assert not (project.root / "d").is_symlink()
    assert (project.root / "d" / "e" / "x").read_text() == "good\n"


@pytest.mark.privileges
def test_read_only_directories_come_back_as_they_were(project: Project) -> None:
    script = "mkdir -p d/ro d/e; echo 1 > d/ro/a.txt; chmod 555 d/ro d/e"
    project.pipeline(pipeline(producer("a", script, "artifacts: [d]"), producer("b", "test -e ok")))
    assert as_somebody(project, "run", "pipeline.yaml", "--id", "r").returncode == 1
    (project.root / "ok").touch()
    (project.root / "d" / "ro").chmod(0o755)  # else only root could remove what is in it
    shutil.rmtree(project.root / "d")

    done = as_somebody(project, "resume", "r")

    assert done.returncode == 0, done.stderr
    assert project.ledger() == ["a", "b", "b"]
    assert stat.S_IMODE((project.root / "d" / "ro").stat().st_mode) == 0o555


def test_what_two_artifacts_take_in_is_restored_once(project: Project) -> None:
    project.pipeline(
        pipeline(producer("a", "mkdir -p d; echo x > d/x", "artifacts: [d, 'd/*']"), producer("b", "test -e ok"))
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()
    (project.root / "d" / "x").write_text("precious\n")

    done = project.rerail("resume", "r", check=0)

    assert done.stderr.count("[warn] d/x") == 1
    (kept,) = [path for path in project.run_dir("r").glob("quarantine/*/d/*") if path.is_file()]
    assert kept.read_text() == "precious\n"


@pytest.mark.privileges
def test_what_cannot_be_moved_out_of_the_way_is_not_run_over(project: Project) -> None:
    """A step that turns out to run again, and somebody's edit at its path in a directory that is read-only."""
    project.pipeline(
        pipeline(
            producer("a", "date +%N > a.txt", "artifacts: [{path: a.txt, keep: false}]"),
            producer(
                "b",
                "mkdir -p d; cat a.txt > d/b.txt; chmod 555 d",
                "artifacts: [{path: d/b.txt, keep: false, temporary: true}]",
            ),
        )
    )
    as_somebody(project, "run", "pipeline.yaml", "--id", "r")
    (project.root / "a.txt").unlink()
    (project.root / "d").chmod(0o755)
    (project.root / "d" / "b.txt").write_text("precious\n")
    (project.root / "d").chmod(0o555)

    done = as_somebody(project, "resume", "r")

    assert done.returncode == 1
    assert "cannot quarantine" in done.stderr
    assert (project.root / "d" / "b.txt").read_text() == "precious\n"
    (project.root / "d").chmod(0o755)


def test_what_is_restored_behind_what_is_made_again_waits_for_it(project: Project) -> None:
    body = "steps: [{run: 'echo %s ${{ item }} > %s-${{ item }}', artifacts: [{path: \"%s-${{ item }}\", keep: %s}]}]"
    project.pipeline(f"""
steps:
  - {{id: m1, map: {{over: [a, b]}}, {body % ("1", "one", "one", "false")}}}
  - {{id: m2, map: {{over: [a, b]}}, {body % ("2", "two", "two", "true")}}}
  - {{id: last, run: test -e ok}}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "one-a").unlink()
    (project.root / "two-a").unlink()
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)

    assert (project.root / "one-a").read_text() == "1 a\n"
    assert (project.root / "two-a").read_text() == "2 a\n"
