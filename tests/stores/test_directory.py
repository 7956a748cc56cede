"""The directory store keeps the contract that rerail.testing ships, and its own promises too."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from rerail import durable, testing
from rerail.errors import BadRunId, RunNotFound
from rerail.ports import Store
from rerail.stores.directory import DirectoryStore
from tests.conftest import Project
from tests.pipelines import note, pipeline, step

pytestmark = pytest.mark.privileges


class TestDirectoryStore(testing.SharedStoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: DirectoryStore(str(tmp_path / ".rerail"))


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(str(tmp_path / ".rerail"))


@pytest.mark.scenario("M3")
def test_files_are_private_and_git_ignores_them(store: DirectoryStore) -> None:
    old = os.umask(0)
    try:
        log = store.create(testing.header(), b"x")
        log.append([testing.started()])
        log.close()
    finally:
        os.umask(old)

    for path in Path(store.root).rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert (Path(store.root) / ".gitignore").read_text() == "*\n"


@pytest.mark.scenario("C9", "J1")
@pytest.mark.parametrize(
    "bad", ["", ".", "..", "../x", "/etc/x", "a/b", "x" * 65, "a\0b", "a\nb", "-x", ".x", "last", "ünï", "a b"]
)
def test_ids_off_the_allow_list_are_refused(store: DirectoryStore, bad: str) -> None:
    with pytest.raises(BadRunId):
        store.read(bad)


@pytest.mark.scenario("A6")
def test_a_run_that_never_started_can_still_be_read_and_owned(store: DirectoryStore) -> None:
    store.create(testing.header(), b"x").close()

    assert store.read("r1").state.status == "pending"
    log = store.own("r1")
    log.append([testing.started()])
    log.close()
    assert store.read("r1").state.status == "running"


@pytest.mark.scenario("A6")
def test_what_a_dead_creator_left_is_not_a_run_and_is_tidied_up(store: DirectoryStore) -> None:
    store.create(testing.header(), b"x").close()
    left = Path(store.root) / "runs" / ".new-r9-abc"
    left.mkdir()
    (left / "lock").touch()
    os.utime(left, (1, 1))
    assert store.runs() == ["r1"]

    store.create(testing.header("r2"), b"x").close()
    assert not left.exists()


@pytest.mark.scenario("E13", "J3")
def test_links_and_pipes_in_place_of_state_are_refused_not_followed(store: DirectoryStore, tmp_path: Path) -> None:
    log = store.create(testing.header(), b"x")
    log.append([testing.started()])
    log.close()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    run = Path(store.path("r1"))
    (run / "lock").unlink()
    (run / "lock").symlink_to(victim)
    with pytest.raises(Exception, match="cannot lock"):
        store.own("r1")
    assert victim.read_text() == "precious"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        durable.read_file(str(tmp_path / "pipe"))


def test_history_keeps_as_many_older_checkpoints_as_asked(store: DirectoryStore) -> None:
    from rerail.core.checkpoint import checkpoint_of
    from rerail.core.events import StepInvalidated, StepStarted
    from rerail.core.model import Pipeline

    log = store.create(testing.header(), b"x")
    log.append([testing.started()])
    for number in range(1, 9):
        at = testing.ManualClock().now()
        log.append([StepStarted(at=at, step="a", attempt=number), StepInvalidated(at=at, step="a", reason="again")])
        state = store.read("r1").state
        log.save_snapshot(checkpoint_of(testing.header(), Pipeline(name="p", steps=()), state), keep=3)
    log.close()

    kept = sorted(path.name for path in (Path(store.root) / "runs/r1/history").iterdir())
    assert kept == ["checkpoint-000000000011.json", "checkpoint-000000000013.json", "checkpoint-000000000015.json"]


@pytest.mark.scenario("J5")
def test_a_deleted_run_leaves_what_links_pointed_to(store: DirectoryStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").touch()
    store.create(testing.header(), b"x").close()
    (Path(store.path("r1")) / "logs" / "link").symlink_to(outside)
    store.delete("r1")

    assert (outside / "keep").exists()
    with pytest.raises(RunNotFound):
        store.read("r1")


@pytest.mark.scenario("J15")
def test_a_damaged_frozen_pipeline_blocks_nobody(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("exit 1"))))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.run_dir("r") / "pipeline.yaml").write_text("rubbish")
    assert project.json("show", "r")["status"] == "failed"
    project.rerail("resume", "r", check=1)

    assert (project.run_dir("r") / "pipeline-0002.yaml").read_text() == (project.root / "pipeline.yaml").read_text()


@pytest.mark.scenario("E3", "M8")
def test_run_json_is_healed_from_the_journal_and_strangers_in_runs_are_ignored(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("exit 1"))))
    project.rerail("run", "pipeline.yaml", "--id", "old", check=1)
    project.rerail("run", "pipeline.yaml", "--id", "new", check=1)
    (project.run_dir("new") / "run.json").write_text("{")
    (project.root / ".rerail" / "runs" / "Thumbs.db").touch()
    resumed = project.rerail("resume", check=1)

    assert "run new of pipeline" in resumed.stderr
    assert "run.json is damaged" in resumed.stderr
    assert '"run_id": "new"' in (project.run_dir("new") / "run.json").read_text()
    assert project.rerail("resume", "last", check=1)
