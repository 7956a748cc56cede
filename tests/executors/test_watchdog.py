"""The watchdogs forget who has ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.conftest import eventually


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
