"""What the laboratory and those who attacked rerail found, kept from coming back."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rerail.core.events import StepCompleted
from rerail.stores.directory import DirectoryStore
from rerail.testing import header, started
from tests.conftest import RERAIL, Project, eventually
from tests.crash.conftest import Lab
from tests.crash.figures import figure

AT = datetime(2026, 1, 2, tzinfo=UTC)
TWO = 'steps: [{id: a, run: echo a >> "$LEDGER"}, {id: b, run: "test -e ok && echo b >> $LEDGER"}]'
NEEDS_ROOT = pytest.mark.needs_root("to make namespaces")
pytestmark = pytest.mark.privileges


@pytest.mark.scenario("A7")
def test_a_deletion_that_is_cut_off_leaves_a_run_or_none(lab: Lab) -> None:
    """Half of a run looked like one that has hardly begun: resume ran its finished steps again."""
    at = 0
    while True:
        at += 1
        result = lab.ask(kind="deletion", mode="kill", at=at)
        before, met, after = result["lives"]
        again = result["ledger"][met["ledger"] : after["ledger"]]
        if result["there"]:
            assert after["code"] == 0, result
            assert [line.split()[0] for line in again] == ["end"], result  # the one that had failed
        else:
            assert again == [], result
        assert [name for name in result["left"] if name.startswith(".")] == [], result
        if met["code"] == 0:
            break
        assert met["code"] == -signal.SIGKILL, result
        assert before["acked"] == ["one", "tree", "two"], result
    figure("T1", "calls killed while a run is deleted", at - 1)
    assert at > 10


@pytest.mark.scenario("D10", "G2")
@pytest.mark.parametrize("at", [40, 55])
def test_a_disk_that_does_not_answer_is_named_and_can_be_left(lab: Lab, at: int) -> None:
    result = lab.ask(kind="hanging", mode="hang", at=at)
    met, after = result["lives"]

    assert met["code"] == 128 + signal.SIGINT, result
    assert "a write to the state has taken" in result["messages"]
    assert "exiting during a write to the state" in result["messages"]
    assert after["code"] == 0, result


@pytest.mark.scenario("M4")
@pytest.mark.parametrize("ok", [True, False])
def test_the_directory_we_were_started_in_is_removed(project: Project, ok: bool) -> None:
    sub = project.root / "sub"
    sub.mkdir()
    project.pipeline(f'steps: [{{id: a, run: "rm -rf {sub}"}}, {{id: b, run: "{"true" if ok else "exit 3"}"}}]')

    done = subprocess.run(
        [*RERAIL, "run", "../pipeline.yaml", "--id", "r"], cwd=sub, env=project.env, capture_output=True, text=True
    )

    assert done.returncode == (0 if ok else 1), done.stderr
    if not ok:
        assert "exited with code 3" in done.stderr
        assert "next: rerail resume r --store" in done.stderr
    assert project.json("show", "r")["status"] == ("completed" if ok else "failed")


@pytest.mark.scenario("E10")
def test_a_journal_that_tells_the_impossible_is_refused_and_can_be_repaired(project: Project) -> None:
    """Its sums are right: it was written by our own writer, with an event that the engine would never have recorded."""
    log = DirectoryStore(str(project.root / ".rerail")).create(header("r"), b"steps: [{run: 'true'}]")
    log.append([started()])
    log.append([StepCompleted(at=AT, step="a", attempt=1, duration=1.0)])
    log.close()

    for command in ("resume", "show", "verify"):
        refused = project.rerail(command, "r", check=6)
        assert "contradicts itself" in refused.stderr + refused.stdout
        assert "rerail repair r" in refused.stderr + refused.stdout
    project.rerail("repair", "r", check=0)
    assert project.json("show", "r")["status"] in ("running", "interrupted", "crashed")


@NEEDS_ROOT
@pytest.mark.scenario("F14", "F9")
def test_a_run_whose_owner_died_in_another_container_can_be_deleted(project: Project) -> None:
    """Its number in there means nothing out here, but its lock is free."""
    project.pipeline('steps: [{id: a, run: "echo up >> $LEDGER; sleep 60"}]')
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    runner = subprocess.Popen([*inside, *RERAIL, "run", "pipeline.yaml", "--id", "r"], cwd=project.root, env=project.env)
    eventually(lambda: project.ledger() == ["up"])
    refused = project.rerail("delete", "r", "--yes")
    runner.kill()
    runner.wait()
    eventually(lambda: not DirectoryStore(str(project.root / ".rerail")).is_owned("r"))

    assert refused.returncode == 4
    assert project.json("show", "r")["status"] == "crashed"
    assert "is not running" in project.rerail("stop", "r", check=0).stderr
    project.rerail("delete", "r", "--yes", check=0)


@pytest.mark.scenario("J3")
@pytest.mark.parametrize("name", ["logs", "history", "results", "staging", "quarantine", "inbox"])
def test_nothing_is_written_through_a_planted_link(project: Project, tmp_path: Path, name: str) -> None:
    project.pipeline(TWO)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    outside = tmp_path / "outside"
    outside.mkdir()
    place = project.run_dir("r") / name
    if place.exists():
        shutil.rmtree(place)
    place.symlink_to(outside)

    refused = project.rerail("resume", "r", check=6)

    assert f"{name}: is a link" in refused.stderr
    assert list(outside.iterdir()) == []
    place.unlink()
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["a", "b"]


@pytest.mark.scenario("J4")
@pytest.mark.parametrize("name", ["lock", "reserve", "logs/b.2.out", "../../index.jsonl"])
def test_a_planted_second_name_of_a_file_is_not_written_to(project: Project, tmp_path: Path, name: str) -> None:
    project.pipeline(TWO)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    target = project.run_dir("r") / name
    target.unlink(missing_ok=True)
    target.hardlink_to(victim)
    (project.root / "ok").touch()

    done = project.rerail("resume", "r")

    assert victim.read_text() == "precious"
    assert done.returncode == 0  # a lock file of our own takes the place of one that is not ours alone
    assert not target.exists() or not target.samefile(victim) or name != "lock"


@pytest.mark.scenario("J4")
def test_a_snapshot_by_hard_links_keeps_neither_copy_from_going_on(project: Project) -> None:
    """`cp -al`: each copy gets a lock of its own when it is taken over; what one writes the other does not see."""
    project.pipeline(TWO)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    subprocess.run(["cp", "-al", project.root, project.root.parent / "other"], check=True)
    (project.root / "ok").touch()
    before = {path: path.read_bytes() for path in sorted((project.root.parent / "other").rglob("*")) if path.is_file()}

    project.rerail("resume", "r", check=0)

    assert {path: path.read_bytes() for path in before} == before
    original, project.root = project.root, project.root.parent / "other"
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)
    assert project.json("show", "r")["status"] == "completed"
    project.root = original
    assert project.json("show", "r")["status"] == "completed"


@pytest.mark.scenario("E13")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["reserve", "logs/b.2.out", "../../index.jsonl", "inbox/x.json"])
def test_nobody_waits_for_a_pipe_in_the_place_of_a_file(project: Project, name: str) -> None:
    """Opened to write it waits for a reader, and written to it waits for room: not even a signal would end that."""
    talk = "seq 100000; test -e ok && echo b >> $LEDGER"
    project.pipeline(f"""
steps:
  - {{id: a, run: 'echo a >> "$LEDGER"'}}
  - {{id: b, run: '{talk}'}}
  - {{id: ok, needs: [a], approve: Fine?}}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    target = project.run_dir("r") / name
    target.unlink(missing_ok=True)
    target.parent.mkdir(exist_ok=True)
    os.mkfifo(target)
    (project.root / "ok").touch()

    for command in (["list"], ["show", "r"], ["logs", "r"], ["watch", "r"]):
        project.rerail(*command)
    project.rerail("resume", "r", check=5)
    project.rerail("approve", "r", "ok", check=0)
    project.rerail("resume", "r", check=0)

    assert target.is_fifo() or name == "reserve"
    assert project.ledger() == ["a", "b"]


def test_a_channel_that_is_a_pipe_stops_nobody(project: Project) -> None:
    project.pipeline("""
checkpoint: {interval: 0.1s}
steps: [{id: a, run: 'mkfifo "$RERAIL_PROGRESS" "$RERAIL_METRICS"; sleep 1.3; echo a >> "$LEDGER"'}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    assert project.ledger() == ["a"]


@pytest.mark.parametrize("command", ["delete", "prune"])
def test_what_a_killed_run_left_in_memory_goes_with_it(project: Project, command: str) -> None:
    """Raw output of steps: it may hold secrets, and nobody will resume it."""
    project.pipeline(
        """steps: [{id: a, run: 'echo raw=1 >> "$RERAIL_OUTPUT"; echo "$RERAIL_OUTPUT" >> "$LEDGER"; sleep 60'}]"""
    )
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: len(project.ledger()) == 1, "a runs")
    process.kill()
    process.communicate()
    left = Path(project.ledger()[0])
    assert left.exists()

    project.rerail(
        *{"delete": ["delete", "r", "--yes"], "prune": ["prune", "--status", "crashed", "--keep", "0"]}[command], check=0
    )

    assert not left.parent.exists()


@pytest.mark.scenario("J3")
def test_a_state_directory_that_everybody_may_write_to_is_refused(project: Project) -> None:
    project.pipeline(TWO)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / ".rerail").chmod(0o777)

    for refused in (project.rerail("resume", "r", check=6), project.rerail("run", "pipeline.yaml", check=6)):
        assert "everybody may write there" in refused.stderr
    (project.root / ".rerail" / ".gitignore").chmod(0o777)  # as where there are no permissions at all: not to be helped
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)


@pytest.mark.scenario("C6")
def test_a_descriptor_beyond_the_limit_keeps_no_step_from_starting(project: Project) -> None:
    project.pipeline(TWO)
    (project.root / "ok").touch()
    high = 100
    os.dup2(0, high)
    try:
        limit = "import os,resource,sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); os.execv(sys.argv[1], sys.argv[1:])"
        done = subprocess.run(
            [sys.executable, "-c", limit, *RERAIL, "run", "pipeline.yaml", "--id", "r"],
            cwd=project.root,
            env=project.env,
            pass_fds=(high,),
            capture_output=True,
            text=True,
        )
    finally:
        os.close(high)

    assert done.returncode == 0, done.stderr
    assert project.ledger() == ["a", "b"]


@pytest.mark.scenario("D12")
def test_a_log_that_cannot_be_written_costs_the_log_and_is_said(project: Project) -> None:
    project.pipeline('steps: [{id: a, run: "head -c 3000000 /dev/zero | tr \\"\\\\0\\" x; echo ok >> $LEDGER"}]')

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))

    done = project.rerail("run", "pipeline.yaml", "--id", "r", preexec_fn=limit)

    assert done.returncode == 0, done.stderr
    assert "a: its log is incomplete: File too large" in done.stderr
    assert project.json("show", "r")["status"] == "completed"


@pytest.mark.scenario("E11")
@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"x": {"b": [{"c": 1, "c": 1}]}}', '{"a": ":", "b": 1, "b": 2}'])
def test_an_object_that_says_something_twice_is_refused(project: Project, text: str) -> None:
    project.pipeline(f"steps:\n  - id: s\n    run: |\n      echo '{text}' >> \"$RERAIL_OUTPUT\"\n")

    refused = project.rerail("run", "pipeline.yaml", check=1)

    assert "two values" in refused.stderr


PAY = """
steps:
  - {id: a, run: 'echo a | tee -a "$LEDGER"'}
  - {id: pay, idempotent: false, run: 'echo pay | tee -a "$LEDGER"; kill -9 $PPID; sleep 60'}
"""


def flip(path: Path, words: bytes, beyond: int) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(words) + beyond] ^= 1
    path.write_bytes(data)


@pytest.mark.scenario("E2")
@pytest.mark.parametrize("at", [b'"step-completed"', b'{"sum":"', b'"seq":3'])
def test_rot_in_what_was_written_last_is_no_tear(project: Project, at: bytes) -> None:
    """The end of one step and the start of the next are one write: what is wrong before something whole was not torn."""
    project.pipeline(PAY)
    project.rerail("run", "pipeline.yaml", "--id", "r", "-q", check=-signal.SIGKILL)
    journal = project.run_dir("r") / "journal-0001.jsonl"
    lines = journal.read_bytes().split(b"\n")
    before = b"\n".join(lines[:3])  # the opening, the run's start, the start of a
    data = bytearray(journal.read_bytes())
    data[data.index(at, len(before)) + 12] ^= 1
    journal.write_bytes(data)
    (project.run_dir("r") / "checkpoint.json").unlink()

    project.rerail("resume", "r", check=6)
    project.rerail("verify", "r", check=6)
    assert project.ledger() == ["a", "pay"]


@pytest.mark.scenario("E5")
@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize("witness", ["logs", "begun"])
def test_a_run_whose_records_are_all_gone_is_not_started_over(project: Project, emptied: bool, witness: str) -> None:
    project.pipeline(PAY)
    project.rerail("run", "pipeline.yaml", "--id", "r", "-q", check=-signal.SIGKILL)
    place = project.run_dir("r")
    shutil.rmtree(place / "history")
    (place / "checkpoint.json").unlink(missing_ok=True)
    (place / "journal-0001.jsonl").unlink()
    if emptied:
        (place / "journal-0001.jsonl").touch()
    if witness == "logs":
        (place / "begun").unlink()
    else:
        shutil.rmtree(place / "logs")

    refused = project.rerail("resume", "r", check=6)
    assert witness in refused.stderr or "its first line is damaged" in refused.stderr
    project.rerail("verify", "r", check=6)
    assert project.ledger() == ["a", "pay"]


@pytest.mark.scenario("E2")
def test_rot_in_the_journal_of_an_earlier_life_is_noticed(project: Project) -> None:
    project.pipeline(TWO)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.rerail("resume", "r", check=1)
    flip(project.run_dir("r") / "journal-0001.jsonl", b'"step-completed"', 20)

    project.rerail("resume", "r", check=6)


@pytest.mark.scenario("E4")
def test_a_repair_takes_no_snapshot_of_another_run(project: Project) -> None:
    project.pipeline(TWO)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()
    project.rerail("run", "pipeline.yaml", "--id", "other", check=0)
    shutil.copy(project.run_dir("other") / "checkpoint.json", project.run_dir("r") / "checkpoint.json")
    shutil.rmtree(project.run_dir("r") / "history")
    flip(project.run_dir("r") / "journal-0001.jsonl", b'"step-failed"', 20)
    project.rerail("repair", "r", check=0)
    before = project.ledger()
    project.rerail("resume", "r", check=0)

    assert project.ledger() == [*before, "b"], "what the other run did is not done here"


def test_a_lock_file_of_any_size_is_only_looked_at(project: Project) -> None:
    project.pipeline(TWO)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    os.truncate(project.run_dir("r") / "lock", 3 << 30)

    def little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    assert "failed" in project.rerail("list", check=0, preexec_fn=little_memory).stdout
