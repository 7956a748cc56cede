"""`rerail prune`: takes what is done with, and nothing else."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.cli.screen import screen
from tests.conftest import Project, eventually


@pytest.mark.scenario("F2")
def test_prune_takes_what_is_done_with_and_nothing_else(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}]", "good.yaml")
    project.pipeline("steps: [{id: a, run: 'exit 1'}]", "bad.yaml")
    project.pipeline("steps: [{id: a, run: 'echo a >> $LEDGER; sleep 60'}]", "long.yaml")
    for number in range(3):
        project.rerail("run", "good.yaml", "--id", f"good-{number}", check=0)
    project.rerail("run", "bad.yaml", "--id", "failed", check=1)
    before = project.state_digest()
    project.rerail("prune", "--keep", "0", "--dry-run", check=0)
    assert project.state_digest() == before
    process = project.spawn("run", "long.yaml", "--id", "live")
    eventually(lambda: project.ledger() == ["a"], "it runs")
    planned = project.rerail("prune", "--keep", "0", "--dry-run", "--json", check=0)
    assert sorted(row["run_id"] for row in json.loads(planned.stdout)) == ["good-0", "good-1", "good-2"]
    assert all(row["bytes"] > 0 for row in json.loads(planned.stdout))
    assert json.loads(project.rerail("prune", "--older-than", "1h", "--json", check=0).stdout) == []
    project.rerail("prune", "--keep", "4", check=0)  # live, failed, good-2, good-1
    assert sorted(row["run_id"] for row in project.json("list")) == ["failed", "good-1", "good-2", "live"]
    project.rerail("prune", "--keep", "0", "--status", "failed", "--status", "running", check=0)
    assert sorted(row["run_id"] for row in project.json("list")) == ["good-1", "good-2", "live"]
    process.send_signal(signal.SIGTERM)
    process.communicate()
    project.rerail("prune", check=2)
    project.rerail("prune", "--older-than", "soon", check=2)


def test_prune_does_not_destroy_what_only_looks_well(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    journal = project.run_dir("r") / "journal-0001.jsonl"
    status, data = journal.stat(), bytearray(journal.read_bytes())
    data[300] ^= 1
    journal.write_bytes(data)
    os.utime(journal, ns=(status.st_atime_ns, status.st_mtime_ns))  # as bits rot
    pruned = project.rerail("prune", "--keep", "0", check=0)

    assert "run r is kept" in pruned.stderr
    assert project.run_dir("r").exists()


@pytest.mark.parametrize(("answer", "left"), [(b"n\r", True), (b"y\r", False)])
def test_prune_asks_on_a_terminal(project: Project, answer: bytes, left: bool) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    shown = screen(project, "prune", "--keep", "0")
    shown.until(lambda text: "delete 1 run, " in text, "the question")
    shown.type(answer)
    assert ("nothing deleted" in shown.end()) is left
    assert project.run_dir("r").exists() is left
    screen(project, "prune", "--keep", "0", "--yes").end()
    assert not project.run_dir("r").exists()
