"""Channels of killed runs are removed with them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

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
