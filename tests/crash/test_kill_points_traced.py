"""The kill points again, by a tracer instead of a preloaded library: the stand-in where there is no C compiler.

With a compiler, `test_kill_points` kills before every call and inside every write; then one kind of call is enough here,
to show that the stand-in works.
"""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.conftest import RERAIL, Project

STRACE = shutil.which("strace")
COMPILER = shutil.which("cc") or shutil.which("gcc")
CALLS = (
    ["fdatasync"] if COMPILER else ["mkdir", "pwrite64", "fdatasync", "fsync", "rename", "linkat", "unlink", "ftruncate"]
)
FEWEST = {"fdatasync": 6, "pwrite64": 6, "fsync": 6}  # the others depend on how often a snapshot is due

PIPELINE = """\
steps:
  - {id: seed, run: 'echo seed >> "$LEDGER"; echo n=7 >> "$RERAIL_OUTPUT"'}
  - {id: left, needs: [seed], run: 'echo left >> "$LEDGER"; echo ${{ steps.seed.outputs.n }} > left.txt'}
  - {id: right, needs: [seed], retry: {attempts: 2, delay: 0.01}, run: 'echo right >> "$LEDGER"; mkdir once 2>/dev/null && exit 1; true'}
  - {id: join, needs: [left, right], run: 'echo join >> "$LEDGER"; cat left.txt > join.txt'}
"""
EXPECTED = {"seed": 1, "left": 1, "right": 2, "join": 1}


def acknowledged(text: str) -> set[str]:
    events = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return {event["step"] for event in events if event["event"] == "step-completed"}


def traced(project: Project, call: str, at: int) -> subprocess.CompletedProcess[str]:
    """A run that is killed when it makes this call for the nth time."""
    assert STRACE
    inject = [STRACE, "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={at}"]
    command = [*inject, *RERAIL, "run", "pipeline.yaml", "--id", "r", "--resume", "--parallel", "2", "--json"]
    return subprocess.run(command, cwd=project.root, env=project.env, capture_output=True, text=True)


@pytest.mark.skipif(STRACE is None and COMPILER is not None, reason="the preloaded library does all of this")
@pytest.mark.parametrize("call", CALLS)
def test_killed_at_any_call_of_a_kind_then_resumed_equals_never_killed(
    call: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert STRACE, "the kill tests need a C compiler or strace (Debian: apt-get install gcc)"
    at = 0
    while True:
        at += 1
        project = Project(tmp_path_factory.mktemp("traced"))
        project.pipeline(PIPELINE)
        life = traced(project, call, at)
        if life.returncode == 0 or (COMPILER and at > FEWEST[call]):
            break
        before = project.ledger()
        project.rerail("run", "pipeline.yaml", "--id", "r", "--resume", "--parallel", "2", check=0)

        after = project.ledger()
        assert life.returncode in (-9, 137), life.stderr
        assert not acknowledged(life.stdout) & set(after[len(before) :])
        assert 0 <= len(after) - sum(EXPECTED.values()) <= 2, (at, after)
        assert set(after) == set(EXPECTED)
        assert (project.root / "join.txt").read_text() == "7\n"
    assert at > FEWEST.get(call, 0)
