"""Artifacts and inputs as a user meets them: declared, checked, sealed, restored, explained."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from pathlib import Path

import pytest

from tests.artifacts.pipelines import NOTE, failed_after, one, two
from tests.conftest import Project
from tests.pipelines import as_somebody

pytestmark = pytest.mark.privileges


@pytest.mark.parametrize(
    ("artifacts", "script", "words"),
    [
        ("[out.txt]", "true", "artifact out.txt is missing"),
        ("[out.txt]", ": > out.txt", "artifact out.txt is empty"),
        ("[{path: out.txt, min_size: 10}]", "echo short > out.txt", "has 6 bytes, fewer than min_size 10"),
        ("[{path: out.txt, max_size: 3}]", "echo long > out.txt", "has 5 bytes, more than max_size 3"),
        ("[{path: out.txt, contains: ['## Plan']}]", "echo none > out.txt", "does not contain '## Plan'"),
        ("[{path: out.txt, not_contains: TODO}]", "echo a TODO > out.txt", "contains 'TODO', which it must not"),
        ("[{path: out.json, format: json}]", "echo '{' > out.json", "is not valid json"),
        ("[{path: out.yaml, format: yaml}]", "echo 'a: [' > out.yaml", "is not valid yaml"),
        ("[{path: out.toml, format: toml}]", "echo 'a = ' > out.toml", "is not valid toml"),
        ("[{path: out.csv, format: csv}]", "printf 'a,b\\n1\\n' > out.csv", "line 2 has 1 columns, the first 2"),
        ("[{path: out.json, schema: s.json}]", 'echo \'{"n": "x"}\' > out.json', "does not fit s.json: $.n"),
        ("[{path: deep.yaml, format: yaml}]", "printf '[%.0s' $(seq 40000) > deep.yaml", "nested deeper"),
        ("['*.md']", "true", "artifact *.md is missing"),
        ("[d]", "mkdir d", "artifact d is an empty directory"),
        ("[out.txt]", "ln -s pipeline.yaml out.txt", "is a symbolic link to pipeline.yaml"),
        ("[out.txt]", "mkfifo out.txt", "is a FIFO"),
    ],
)
def test_a_step_without_its_artifact_has_failed_and_the_check_is_named(
    project: Project, artifacts: str, script: str, words: str
) -> None:
    (project.root / "s.json").write_text(json.dumps({"properties": {"n": {"type": "integer"}}}))
    project.pipeline(one(artifacts, script))

    done = project.rerail("run", "pipeline.yaml", check=1)

    assert words in done.stderr
    assert project.json("show", "last")["error"]["type"] == "ArtifactInvalid"


@pytest.mark.parametrize(
    ("artifacts", "script"),
    [
        ("[{path: out.txt, min_size: 0}]", ": > out.txt"),
        ("[{path: out.txt, optional: true}]", "true"),
        ("[{path: out.txt, min_size: 2B, max_size: 1kB, contains: [x], not_contains: [y]}]", "echo xx > out.txt"),
        ("['*.md', d]", "echo 1 > a.md; echo 2 > b.md; mkdir d; echo 3 > d/f"),
        ("[{path: out.json, schema: s.json}]", "echo '{\"n\": 1}' > out.json"),
    ],
)
def test_what_is_as_declared_completes(project: Project, artifacts: str, script: str) -> None:
    (project.root / "s.json").write_text(json.dumps({"properties": {"n": {"type": "integer"}}}))
    project.pipeline(one(artifacts, script))

    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert all(made["state"] == "intact" for made in project.json("show", "r")["steps"][0]["artifacts"])
    assert "is intact" in project.rerail("verify", "r", check=0).stderr


def test_a_failed_check_is_retried_like_any_failure(project: Project) -> None:
    project.pipeline(
        one("[out.txt]", "test -e mark && echo x > out.txt; touch mark") + "    retry: {attempts: 2, delay: 0s}\n"
    )

    project.rerail("run", "pipeline.yaml", check=0)

    assert project.ledger() == ["a", "a"]


@pytest.mark.scenario("M9")
def test_the_log_says_what_was_found_restored_and_run(project: Project) -> None:
    failed_after(project, two("echo one > out.txt", "true"))
    (project.root / "out.txt").unlink()

    plan = project.rerail("plan", "r", check=0)
    assert "[warn] out.txt missing -- can be restored from the content store" in plan.stderr
    done = project.rerail("resume", "r", check=0)

    assert "[warn] out.txt missing -- restored from the content store" in done.stderr
    assert re.search(r"rerun +b +failed: exited with code 1", done.stderr)
    assert "reusing 0 of 2 steps, restoring 1, rerunning 1; saves" in done.stderr
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


def test_a_completed_run_is_healed(project: Project) -> None:
    project.pipeline(one("[out.txt]", "echo one > out.txt"))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    (project.root / "out.txt").unlink()

    assert "out.txt of a: missing; resume restores it" in project.rerail("verify", "r", check=1).stderr
    project.rerail("resume", "r", check=0)

    assert (project.root / "out.txt").read_text() == "one\n"
    assert project.ledger() == ["a"]
    assert "nothing to resume" in project.rerail("resume", "r", check=0).stderr


@pytest.mark.scenario("K6", "V5")
def test_touching_changes_nothing_and_fast_trusts_what_was_not_touched(project: Project) -> None:
    failed_after(project, two("echo one > out.txt", "true"))
    os.utime(project.root / "out.txt", ns=(1, 1))
    assert "[info] out.txt intact" in project.rerail("resume", "r", "--dry-run", check=0).stderr
    assert "[info] out.txt intact" in project.rerail("resume", "r", "--dry-run", "--verify", "fast", check=0).stderr
    (project.root / "out.txt").write_text("two\n")
    assert "[warn] out.txt changed" in project.rerail("resume", "r", "--dry-run", "--verify", "fast", check=0).stderr


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


@pytest.mark.scenario("L7")
def test_a_changed_input_runs_its_step_again_and_an_unchanged_result_stops_there(project: Project) -> None:
    (project.root / "source.txt").write_text("1 2 3\n")
    project.pipeline(
        f"steps:\n  - id: count\n    run: |\n      {NOTE}\n      wc -w < source.txt > count.txt\n"
        "    inputs: [source.txt]\n    artifacts: [count.txt]\n"
        f"  - id: use\n    run: |\n      {NOTE}\n      cp count.txt used.txt\n    artifacts: [used.txt]\n"
        f"  - id: last\n    run: {NOTE}; test -e ok\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()
    (project.root / "source.txt").write_text("4 5 6\n")

    done = project.rerail("resume", "r", check=0)

    assert "input source.txt changed" in done.stderr
    assert "use: unchanged: its inputs are the same" in done.stderr
    assert project.ledger() == ["count", "use", "last", "count", "last"]


def test_a_missing_input_fails_the_step_before_it_runs(project: Project) -> None:
    project.pipeline(f"steps:\n  - id: a\n    run: {NOTE}\n    inputs: [none.txt]\n")

    done = project.rerail("run", "pipeline.yaml", check=1)

    assert "input none.txt is missing" in done.stderr
    assert project.ledger() == []


def test_with_inputs_declared_they_decide_not_the_rest_of_what_a_step_needs(project: Project) -> None:
    project.pipeline(
        f"steps:\n  - id: a\n    run: |\n      {NOTE}\n      echo fixed > a.txt; date +%N > b.txt\n"
        "    artifacts: [{path: a.txt, keep: false}, b.txt]\n"
        f"  - id: reads-a\n    needs: [a]\n    run: {NOTE}\n    inputs: [a.txt]\n"
        f"  - id: reads-all\n    needs: [a]\n    run: {NOTE}\n"
        f"  - id: last\n    needs: [reads-a, reads-all]\n    run: {NOTE}; test -e ok\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "1", check=1)
    (project.root / "ok").touch()
    (project.root / "a.txt").unlink()

    project.rerail("resume", "r", "--parallel", "1", check=0)

    assert project.ledger()[4:] == ["a", "reads-all", "last"]


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


@pytest.mark.scenario("J2")
@pytest.mark.parametrize(
    ("artifacts", "words"),
    [
        ("[/etc/motd]", "is outside the project; `external: true` would allow that"),
        ("[../out.txt]", "is outside the project"),
        ("[a/../../out.txt]", "is outside the project"),
        ("[.rerail/x]", "is in rerail's own directory"),
        ("[.]", "cannot be an artifact"),
        ("[out.txt, ./out.txt]", "stands twice"),
        ("[{path: x, min_sise: 3}]", "did you mean `min_size`?"),
        ("[{min_size: 3}]", "has no `path`"),
        ("[{path: x, min_size: big}]", "must be bytes or a size"),
        ("[7]", "lists paths and mappings"),
        ('["a\\0b"]', "is no path"),
    ],
)
def test_paths_that_cannot_be_artifacts_are_refused_before_anything_runs(
    project: Project, artifacts: str, words: str
) -> None:
    project.pipeline(one(artifacts, "true"))

    done = project.rerail("run", "pipeline.yaml", check=2)

    assert words in done.stderr
    assert project.ledger() == []
    assert not (project.root / ".rerail" / "runs").exists() or not list((project.root / ".rerail" / "runs").iterdir())


def test_an_external_artifact_is_sealed_and_restored(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    failed_after(project, two(f"echo one > {outside}", "true", more=f"{{path: {outside}, external: true}}"))
    outside.unlink()

    project.rerail("resume", "r", check=0)

    assert outside.read_text() == "one\n"


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


def test_what_a_step_leaves_writing_is_noticed(project: Project) -> None:
    project.pipeline(
        "steps:\n  - id: a\n    run: |\n      head -c 50000000 /dev/zero > out.txt\n"
        "      (setsid sh -c 'while :; do echo more >> out.txt; done' &)\n    artifacts: [out.txt]\n"
    )

    done = project.rerail("run", "pipeline.yaml", "--id", "r")

    # rerail ends what a step leaves behind before it seals; if that once fails, the change is noticed.
    if done.returncode == 0:
        assert "is intact" in project.rerail("verify", "r", check=0).stderr
    else:
        assert "changes while it is read" in done.stderr


def test_extra_files_in_a_directory_are_nobodys_loss(project: Project) -> None:
    failed_after(project, two("mkdir -p d; echo one > d/x", "true", more="d"))
    (project.root / "d" / "mine.txt").write_text("not from the step\n")
    (project.root / "d" / "x").unlink()

    project.rerail("resume", "r", check=0)

    assert (project.root / "d" / "x").read_text() == "one\n"
    assert (project.root / "d" / "mine.txt").read_text() == "not from the step\n"


def test_paths_with_expressions(project: Project) -> None:
    failed_after(
        project,
        "params: {name: {default: 'a*b'}}\n"
        + two(
            'mkdir -p out; echo one > "out/"${{ params.name }}".md"; echo no > out/axb.md',
            "true",
            more='"out/${{ params.name }}.md"',
        ),
    )
    (project.root / "out" / "a*b.md").unlink()

    project.rerail("resume", "r", check=0)

    assert (project.root / "out" / "a*b.md").read_text() == "one\n"
    assert project.ledger() == ["a", "b", "b"]


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


@pytest.mark.scenario("V5")
def test_an_artifact_that_cannot_be_read_fails_its_step(project: Project) -> None:
    project.pipeline(one("[d]", "mkdir -p d; echo one > d/x; chmod 0 d/x"))

    done = as_somebody(project, "run", "pipeline.yaml")

    assert done.returncode == 1
    assert "cannot be read or kept" in done.stderr
    assert "d/x: Permission denied" in done.stderr
