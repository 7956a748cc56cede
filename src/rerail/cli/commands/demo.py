"""`rerail demo`: a real run, really killed, really resumed, in a scratch directory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from rerail.cli.render.streams import STDERR, say_raw
from rerail.cli.render.terminal import terminal_of
from rerail.errors import StateError

PIPELINE = """\
name: build-loop
steps:
  - {id: scout, run: 'sleep 0.6; echo "the code has 3 modules" > scout.md; echo scout >> ran.log'}
  - {id: plan, run: 'sleep 0.6; sed "s/^/plan: /" scout.md > plan.md; echo plan >> ran.log'}
  - {id: tests, needs: [plan], run: 'sleep 0.8; echo "tests for $(cat plan.md)" > tests.md; echo tests >> ran.log'}
  - {id: build, needs: [plan], run: 'echo build >> ran.log; sleep 1.5; echo "built $(cat plan.md)" > build.md'}
  - {id: review, needs: [tests, build], run: 'sleep 0.4; cat build.md tests.md > review.md; echo review >> ran.log'}
"""
PATIENCE = 30.0


@click.command(epilog="Example: rerail demo")
def demo() -> int:
    """Run a small pipeline, kill it with SIGKILL half-way, list it, resume it. Takes some seconds, leaves nothing."""
    with tempfile.TemporaryDirectory(prefix="rerail-demo-") as place:
        return _tell(Path(place))


def _tell(place: Path) -> int:
    (place / "pipeline.yaml").write_text(PIPELINE, encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if name != "RERAIL_STORE"}

    def rerail(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rerail", *arguments]
        return subprocess.Popen(command, cwd=place, env={**environ, "PYTHONSAFEPATH": "1"})

    _title("$ rerail run pipeline.yaml")
    victim = rerail("run", "pipeline.yaml", "--id", "demo", "--parallel", "2")
    _wait_until_half_way(place / "ran.log", victim)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    _title(f"$ kill -9 {victim.pid}        # half-way: `build` is running")
    _title("$ rerail list")
    rerail("list").wait()
    _title("$ rerail resume")
    code = rerail("resume").wait()
    ran = Counter((place / "ran.log").read_text(encoding="utf-8").split())
    _title("What really ran, as logged by the steps themselves:")
    say_raw("  " + "   ".join(f"{step} twice" if times > 1 else step for step, times in ran.items()))
    say_raw("`build` was interrupted and ran again. No completed step ran twice, and no flag was needed.")
    return code


def _wait_until_half_way(ledger: Path, victim: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and victim.poll() is None:
        with contextlib.suppress(OSError):
            if "tests" in ledger.read_text(encoding="utf-8").split():
                time.sleep(0.3)
                return
        time.sleep(0.05)
    raise StateError("the demo's pipeline did not get half-way", hint="rerail doctor")


def _title(text: str) -> None:
    say_raw("\n" + terminal_of(STDERR).paint(text, "bold"))
