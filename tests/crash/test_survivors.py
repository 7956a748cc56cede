"""Bugs that somebody planted and no test noticed: what notices each of them now."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rerail import durable
from rerail.core.events import ApprovalGiven
from rerail.durable import copies
from rerail.errors import StateDamaged
from rerail.stores import inbox
from rerail.stores.directory import DirectoryStore
from tests.conftest import RERAIL, Project, eventually
from tests.wrong_clock import SetClock

NEEDS_ROOT = pytest.mark.needs_root("to make namespaces")
pytestmark = pytest.mark.privileges


def test_a_letter_is_there_until_what_it_says_is_recorded(tmp_path: Path) -> None:
    """Whoever reads it may die before that, and may ask for more before that."""
    said = ApprovalGiven(at=datetime(2026, 1, 2, tzinfo=UTC), step="ok", approved=True, by="me")
    inbox.put(str(tmp_path), said)

    assert inbox.DirectoryInbox(str(tmp_path)).take() == [said]
    reader = inbox.DirectoryInbox(str(tmp_path))
    assert reader.take() == [said], "the one who read it first has died"
    assert reader.take() == []
    assert inbox.DirectoryInbox(str(tmp_path)).take() == [said], "it is not recorded yet"
    reader.clear()
    assert inbox.DirectoryInbox(str(tmp_path)).take() == []


def test_the_watchdog_forgets_who_has_ended() -> None:
    """The number of a session that is over may be a stranger's by the time rerail is killed."""
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        life = f"""
import os, signal
from rerail.executors.watchdog import Watchdogs
watchdogs = Watchdogs("mark-of-nobody")
watchdogs.start()
watchdogs.began({stranger.pid})
watchdogs.ended({stranger.pid})
print(*watchdogs.pids, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
        done = subprocess.run([sys.executable, "-c", life], check=False, capture_output=True, text=True)
        watchdogs = done.stdout.split()
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in watchdogs), "they have done their duty")
        assert len(watchdogs) == 2

        assert done.returncode == -signal.SIGKILL
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_what_an_attempt_cost_is_recorded_before_its_artifacts_are_sealed(project: Project) -> None:
    """Sealing may take long, and be cut off."""
    project.pipeline("""
steps:
  - {id: a, artifacts: [made], run: 'echo x > made; echo "{\\"cost_usd\\": 5}" >> "$RERAIL_METRICS"'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    told = [one for one in reversed(project.json("history", "r")) if one.get("metrics")]

    assert [(one["event"], one["metrics"]["cost_usd"]) for one in told] == [("step-progressed", 5), ("step-completed", 5)]
    assert project.json("cost", "r")["total"]["cost_usd"] == 5


@NEEDS_ROOT
@pytest.mark.scenario("F9", "F14")
def test_a_run_in_another_container_is_alive_as_far_as_can_be_told(project: Project) -> None:
    """The number of its process means nothing out here: there may be none of that number, or a stranger."""
    project.pipeline('steps: [{id: a, run: "echo up >> $LEDGER; until test -e go; do sleep 0.02; done"}]')
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    runner = subprocess.Popen(
        [*inside, *RERAIL, "run", "pipeline.yaml", "--id", "r", "-q"], cwd=project.root, env=project.env
    )
    eventually(lambda: project.ledger() == ["up"])

    assert project.json("list")[0]["status"] == "running"
    assert project.rerail("resume", "r").returncode == 4
    (project.root / "go").touch()
    assert runner.wait() == 0


@pytest.mark.scenario("F11")
def test_a_lock_whose_file_was_replaced_in_the_meantime_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    flock = fcntl.flock

    def replaced_before(fd: int, how: int) -> None:
        path.unlink()
        path.touch()
        flock(fd, how)

    with monkeypatch.context() as patch:
        patch.setattr("rerail.durable.fcntl.flock", replaced_before)
        with pytest.raises(BlockingIOError):
            durable.Lock(str(path))
    durable.Lock(str(path)).release()


def test_many_files_are_synced_by_their_file_systems_and_a_failure_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(tmp_path / f"f{number}") for number in range(copies.MANY + 1)]
    for path in paths:
        Path(path).touch()
    asked: list[int] = []
    answer = 0

    def syncfs(fd: int) -> int:
        asked.append(os.fstat(fd).st_dev)
        ctypes.set_errno(errno.EIO)
        return answer

    monkeypatch.setattr("rerail.durable.copies._syncfs", lambda: syncfs)
    copies.sync_files(paths)
    assert asked == [tmp_path.stat().st_dev], "once for all of them"
    answer = -1
    with pytest.raises(OSError, match="Input/output error"):
        copies.sync_files(paths)


@pytest.mark.scenario("E8")
def test_nothing_that_a_live_run_may_need_is_removed(project: Project) -> None:
    """The copy of an artifact is kept before the journal says so: who prunes in between must not see it as nobody's."""
    project.pipeline("""
steps:
  - {id: a, artifacts: [made], run: 'echo $RERAIL_RUN_ID > made'}
  - {id: b, run: 'test "$RERAIL_RUN_ID" = old || { echo b >> "$LEDGER"; until test -e go; do sleep 0.02; done; }'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "old", check=0)
    live = project.spawn("run", "pipeline.yaml", "--id", "live")
    eventually(lambda: project.ledger() == ["b"], "it runs")
    objects = project.root / ".rerail" / "objects"
    before = {path for path in objects.rglob("*") if path.is_file()}

    said = project.rerail("prune", "--keep", "0", check=0).stderr

    assert "no copies of artifacts removed: a live run may need them" in said
    assert before <= {path for path in objects.rglob("*") if path.is_file()}
    (project.root / "go").touch()
    live.communicate()
    project.rerail("verify", "live", check=0)
    assert "removed 1 cop" in project.rerail("prune", "--keep", "1", check=0).stderr


def test_how_often_a_service_refused_in_a_row_is_known_to_the_next_life(project: Project, set_clock: SetClock) -> None:
    """Killed while it waits to ask again, for longer than any machine takes to kill it."""
    project.pipeline("""
checkpoint: {interval: 0.1s}
steps:
  - id: a
    retry: {attempts: 3, delay: 4m, max_delay: 4m, backoff: fixed, jitter: false}
    run: 'echo a >> "$LEDGER"; echo "429 Too Many Requests" >&2; exit 1'
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")

    def refusals() -> int:
        return sum(path.read_bytes().count(b'"refused":') for path in project.run_dir("r").glob("journal-*.jsonl"))

    eventually(lambda: refusals() == 1, "it was refused")
    process.kill()
    process.communicate()
    set_clock(400)
    resumed = project.spawn("resume", "r")
    eventually(lambda: refusals() == 2, "it was refused again")
    set_clock(800)
    resumed.communicate(timeout=120)

    assert resumed.returncode == 1
    assert project.ledger() == ["a", "a", "a"]


def test_who_could_not_take_a_run_over_is_not_taken_for_its_driver(project: Project) -> None:
    """He may live on, and would be sent the signal that is meant for a driver."""
    project.pipeline("steps: [{id: a, run: 'kill -9 $PPID; sleep 60'}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=-9)
    (project.run_dir("r") / "results").symlink_to(project.root)
    store = DirectoryStore(str(project.root / ".rerail"))
    with pytest.raises(StateDamaged):
        store.own("r")

    assert not store.ownership("r").alive
    assert project.json("list")[0]["status"] == "crashed"


@NEEDS_ROOT
def test_what_had_to_be_left_on_a_disk_goes_with_its_run(project: Project, tmp_path: Path) -> None:
    """Without memory to keep it in, what steps write raw is in the directory for temporary files."""
    place = tmp_path / "temporary"
    place.mkdir()
    project.env["TMPDIR"] = str(place)
    project.pipeline("""steps: [{id: a, run: 'echo secret=1 >> "$RERAIL_OUTPUT"; kill -9 $PPID; sleep 60'}]""")
    script = 'mount -t tmpfs -o ro none /dev/shm && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "-", *RERAIL, "run", "pipeline.yaml", "--id", "r", "-q"]
    env = {**project.env, "XDG_RUNTIME_DIR": ""}
    subprocess.run(command, cwd=project.root, env=env, check=False)
    assert list(place.rglob("*.output"))

    project.rerail("delete", "r", "--yes", check=0)
    assert not list(place.rglob("*.output"))
