"""Repair: a damaged run goes on from what can be proved, and keeps what it can."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.artifacts.pipelines import producer
from tests.conftest import Project, eventually
from tests.pipelines import dollars, keys, ledger, note, pipeline, results, step


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


DEAR = 'echo "{\\"cost_usd\\": 5}" >> "$RERAIL_METRICS"; echo paid >> "$LEDGER"'


@pytest.mark.scenario("E2")
def test_a_repair_keeps_what_was_saved_of_a_running_attempt(project: Project) -> None:
    project.pipeline(f"""
checkpoint: {{interval: 0.1s}}
steps: [{{id: a, run: '{DEAR}; test -e fine || sleep 300'}}]
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    journal = project.run_dir("r") / "journal-0001.jsonl"

    def saved() -> list[int]:
        data = journal.read_bytes() if journal.exists() else b""
        return [at for at, line in _lines(data) if b"step-progressed" in line and b"cost_usd" in line]

    eventually(lambda: len(saved()) >= 4, "progress is saved")
    process.kill()
    process.communicate()
    data = bytearray(journal.read_bytes())
    data[saved()[2] + 30] ^= 1
    journal.write_bytes(data)
    (project.run_dir("r") / "checkpoint.json").unlink()
    project.rerail("show", "r", check=6)
    project.rerail("repair", "r", check=0)

    assert dollars(project) == 5
    (project.root / "fine").touch()
    project.rerail("resume", "r", check=0)
    assert dollars(project) == 10


def _lines(data: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    for line in data.split(b"\n"):
        found.append((at, line))
        at += len(line) + 1
    return found


def test_repair_keeps_what_follows_the_checkpoint_and_asks_about_what_it_cannot_prove(project: Project) -> None:
    steps = [step(f"s{number}", note()) for number in range(12)]
    project.pipeline(pipeline(*steps, step("pay", note("sleep 60"), idempotent="false")))
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    checkpoint = project.run_dir("r") / "checkpoint.json"
    eventually(lambda: checkpoint.exists() and '"next_step": "pay"' in checkpoint.read_text(), "the checkpoint caught up")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    journal = project.run_dir("r") / "journal-0001.jsonl"
    data = bytearray(journal.read_bytes())
    data[900] ^= 1
    journal.write_bytes(data)
    project.rerail("repair", "r", check=0)
    paused = project.rerail("resume", "r", check=5)

    assert "the outcome of pay is unknown" in paused.stderr
    assert len(project.ledger()) == 13


TWO = 'steps: [{id: a, run: echo a >> "$LEDGER"}, {id: b, run: "test -e ok && echo b >> $LEDGER"}]'


def flip(path: Path, words: bytes, beyond: int) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(words) + beyond] ^= 1
    path.write_bytes(data)


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
