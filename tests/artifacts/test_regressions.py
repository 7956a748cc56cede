"""What attackers found, each as they showed it."""

from __future__ import annotations

import os
import resource
import shutil
import stat
from pathlib import Path

import pytest

from tests.artifacts.pipelines import producer
from tests.conftest import Project
from tests.pipelines import as_somebody, pipeline

pytestmark = pytest.mark.privileges


@pytest.mark.parametrize("text", ["!!bool foo", "!!int ''", "!!timestamp foo", "!!python/object:os.system x"])
def test_whatever_a_parser_raises_fails_the_step_and_hangs_nobody(project: Project, text: str) -> None:
    project.pipeline(pipeline(producer("a", f'echo "{text}" > a.yaml', "artifacts: [{path: a.yaml, format: yaml}]")))

    assert "artifact a.yaml is not valid yaml" in project.rerail("run", "pipeline.yaml", check=1).stderr


def test_links_that_go_in_circles_are_not_followed(project: Project) -> None:
    script = "mkdir -p out/sub; echo x > out/sub/a.txt; ln -sfn . out/l1; ln -sfn . out/l2; ln -sfn .. out/sub/up"
    project.pipeline(pipeline(producer("a", script, 'artifacts: ["out/**/*.txt"]')))

    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert "out/**/*.txt  a   2 B, 1 file" in project.rerail("show", "r", check=0).stdout


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


def test_a_fork_does_not_make_stale_steps_fresh(project: Project) -> None:
    text = pipeline(
        producer("a", "echo one > a.txt", "artifacts: [a.txt]"),
        producer("b", "cat a.txt > b.txt", "artifacts: [b.txt]"),
        producer("c", "cat b.txt"),
    )
    project.pipeline(text)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.pipeline(text.replace("one", "two"))
    project.rerail("resume", "r", "--until", "a", check=0)
    project.ledger_file.write_text("")

    project.rerail("fork", "r", "--from", "c", "--id", "f", check=0)

    assert project.ledger() == ["b", "c"]
    assert (project.root / "b.txt").read_text() == "two\n"


def test_a_fork_shares_steps_declared_before_what_they_need(project: Project) -> None:
    project.pipeline(
        pipeline(
            producer("z", "cat y.txt > z.txt", "needs: [y]", "artifacts: [z.txt]"),
            producer("y", "echo Y > y.txt", "needs: []", "artifacts: [y.txt]"),
            producer("last", "cat z.txt", "needs: [z]"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.ledger_file.write_text("")

    project.rerail("fork", "r", "--from", "last", check=0)

    assert project.ledger() == ["last"]


def test_what_was_skipped_in_between_came_out_different(project: Project) -> None:
    text = pipeline(
        producer("a", "echo one > a.txt", "when: 1 == 1", "artifacts: [a.txt]"),
        producer("b", "echo saw ${{ steps.a.status }} > b.txt", "artifacts: [b.txt]"),
    )
    project.pipeline(text)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.pipeline(text.replace("1 == 1", "1 == 2"))
    project.rerail("resume", "r", check=0)
    assert (project.root / "b.txt").read_text() == "saw skipped\n"
    project.pipeline(text)
    project.rerail("resume", "r", check=0)

    assert (project.root / "b.txt").read_text() == "saw completed\n"


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


def test_what_was_private_is_private_again(project: Project) -> None:
    project.pipeline(pipeline(producer("a", "umask 077; mkdir -p d/e; echo x > d/e/k", "artifacts: [d]")))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    (project.root / "d" / "e" / "k").unlink()
    (project.root / "d" / "e").rmdir()
    (project.root / "d").rmdir()

    project.rerail("resume", "r", check=0)

    modes = [stat.S_IMODE((project.root / path).stat().st_mode) for path in ("d", "d/e", "d/e/k")]
    assert modes == [0o700, 0o700, 0o600]


def test_who_may_read_it_is_not_what_it_is(project: Project) -> None:
    project.pipeline(
        pipeline(producer("a", "mkdir -p d; echo x > d/k", "artifacts: [d]"), producer("b", "test -e ok", "inputs: [d]"))
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()
    (project.root / "d" / "k").chmod(0o600)

    assert "[info] d intact" in project.rerail("resume", "r", check=0).stderr


def test_a_store_inside_the_project_is_nobodys_artifact(project: Project) -> None:
    project.pipeline(pipeline(producer("a", "echo {} > a.json", 'artifacts: ["**/*.json"]')))

    project.rerail("run", "pipeline.yaml", "--store", "state", check=0)


def test_a_directory_that_became_a_link_to_itself(project: Project) -> None:
    project.pipeline(pipeline(producer("a", "mkdir -p out; echo x > out/a.txt", "artifacts: [out/a.txt]")))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    (project.root / "out" / "a.txt").unlink()
    (project.root / "out").rmdir()
    (project.root / "out").symlink_to("out")

    project.rerail("resume", "r", check=0)

    assert (project.root / "out" / "a.txt").read_text() == "x\n"


@pytest.mark.scenario("M1")
def test_a_run_whose_project_was_moved(project: Project, tmp_path: Path) -> None:
    project.pipeline(pipeline(producer("a", "echo x > a.txt", "artifacts: [a.txt]"), producer("b", "test -e ok")))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    os.rename(project.root, tmp_path / "elsewhere")
    project.root = tmp_path / "elsewhere"
    (project.root / "ok").touch()
    (project.root / "a.txt").unlink()

    project.rerail("resume", "r", check=0)

    assert (project.root / "a.txt").read_text() == "x\n"


def test_an_input_that_is_written_over_later_was_still_what_was_read(project: Project) -> None:
    project.pipeline(
        pipeline(
            producer("write", "echo one > x.txt", "artifacts: [x.txt]"),
            producer("read", "cat x.txt > read.txt", "inputs: [x.txt]", "artifacts: [read.txt]"),
            producer("append", "echo two >> x.txt", "inputs: [x.txt]", "artifacts: [x.txt]"),
            producer("last", "test -e ok"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["write", "read", "append", "last", "last"]

    text = (project.root / "pipeline.yaml").read_text()
    project.pipeline(text.replace("echo two", "echo zwei"))
    project.rerail("resume", "r", check=0)

    assert project.ledger()[5:] == ["append", "last"]
    assert (project.root / "x.txt").read_text() == "one\nzwei\n"
    assert (project.root / "read.txt").read_text() == "one\n"


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


def test_check_finds_what_run_would_refuse(project: Project) -> None:
    for wrong in (
        "[../x.txt]",
        "[.rerail/x]",
        "[{path: x.json, schema: none.json}]",
        "[{path: x.json, schema: pipeline.yaml}]",
    ):
        project.pipeline(pipeline(producer("a", "true", f"artifacts: {wrong}")))
        checked = project.rerail("check", "pipeline.yaml", check=2).stderr
        assert checked.splitlines()[0] == project.rerail("run", "pipeline.yaml", check=2).stderr.splitlines()[0]
        assert "pipeline.yaml:2: step `a`" in checked
    assert project.ledger() == []


def test_a_fork_of_parallel_writers_keeps_the_owner(project: Project) -> None:
    project.pipeline(
        pipeline(
            producer("a", "while ! test -e sealed; do sleep 0.01; done; echo from-a > x", "needs: []", "artifacts: [x]"),
            producer("b", "echo from-b-b > x", "needs: []", "artifacts: [x]"),
            producer("after-b", "touch sealed", "needs: [b]"),
            producer("c", "cat x > c.txt", "needs: [a, after-b]", "artifacts: [c.txt]"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "3", check=0)
    project.ledger_file.write_text("")

    project.rerail("fork", "r", "--from", "c", check=0)

    assert (project.root / "x").read_text() == "from-a\n"
    assert project.ledger() == ["c"]


def test_a_fork_shares_allowed_failures_and_skipped_steps(project: Project) -> None:
    project.pipeline(
        pipeline(
            producer("a", "exit 3", "allow_failure: true", "idempotent: false"),
            producer("s", "true", "when: 'false'"),
            producer("b", "echo b > b.txt", "artifacts: [b.txt]"),
            producer("c", "true"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.ledger_file.write_text("")

    project.rerail("fork", "r", "--from", "c", check=0)

    assert project.ledger() == ["c"]


def test_a_fork_that_is_cut_off_still_shares(project: Project) -> None:
    project.pipeline(
        pipeline(
            producer("pay", "echo receipt > r.txt", "idempotent: false", "artifacts: [r.txt]"),
            producer("end", "test -e ok"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()
    (project.root / "r.txt").unlink()
    first = project.spawn("fork", "r", "--from", "end", "--id", "f")
    assert first.stderr is not None
    for line in first.stderr:  # as soon as it speaks, it shares
        if line.startswith("rerail: run f, a fork of r"):
            break
    first.kill()
    first.communicate()

    project.rerail("resume", "f", check=0)

    assert project.ledger().count("pay") == 1


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


def test_a_path_that_is_out_of_bounds_since_an_edit_is_refused_before_its_step_is_paid_for(project: Project) -> None:
    text = pipeline(producer("a", "true"), producer("b", "test -e ok"))
    project.pipeline(text)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.pipeline(text + "    artifacts: [../x.txt]\n")

    assert "is outside the project" in project.rerail("resume", "r", check=2).stderr
    assert project.ledger() == ["a", "b"]


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
