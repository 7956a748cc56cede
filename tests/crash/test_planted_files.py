"""Files that somebody planted in the place of state: links, second names, pipes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Project

TWO = 'steps: [{id: a, run: echo a >> "$LEDGER"}, {id: b, run: "test -e ok && echo b >> $LEDGER"}]'


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


@pytest.mark.privileges
@pytest.mark.scenario("J3")
def test_a_state_directory_that_everybody_may_write_to_is_refused(project: Project) -> None:
    project.pipeline(TWO)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / ".rerail").chmod(0o777)

    for refused in (project.rerail("resume", "r", check=6), project.rerail("run", "pipeline.yaml", check=6)):
        assert "everybody may write to" in refused.stderr
    (project.root / ".rerail" / ".gitignore").chmod(0o777)  # as where there are no permissions at all: not to be helped
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)
