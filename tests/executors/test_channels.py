"""Channels of killed runs are found, and removed with them."""

from __future__ import annotations

import os
import subprocess
import threading
import uuid
from pathlib import Path

import pytest

from rerail.executors import channels
from tests.conftest import RERAIL, Project, eventually


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


NEEDS_ROOT = pytest.mark.needs_root("to make namespaces")


@pytest.mark.privileges
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


def test_a_directory_that_goes_while_they_are_listed_hides_no_other() -> None:
    """Runs begin and end beside each other: what one of them has left must be found all the same."""
    mark = f"test-{os.getpid()}-{uuid.uuid4().hex}"
    kept = channels.Channels(mark)
    kept.of("s")
    place = channels.directory_of(mark)
    prefix = os.path.join(os.path.dirname(place), f"rerail-{os.getuid()}-0-{os.getpid()}-")
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            for number in range(50):
                os.mkdir(f"{prefix}{number}", 0o700)
            for number in range(50):
                os.rmdir(f"{prefix}{number}")

    others = threading.Thread(target=come_and_go)
    others.start()
    try:
        missed = sum(place not in channels.all_directories() for _ in range(300))
    finally:
        ended.set()
        others.join()
        kept.close(recorded=True)

    assert not missed
