"""Planted bugs: every one of them must make a test fail."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.figures import figure
from tests.crash.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent.parent
FAILED = 1  # what pytest exits with if tests failed, and not something else


@pytest.mark.sweep(2)
@pytest.mark.skipif("RERAIL_MUTANT" in os.environ, reason="this is a mutant itself")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant, tmp_path: Path) -> None:
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("*.egg-info"))  # with what is compiled
    for file, old, new in ((mutant.file, mutant.old, mutant.new), *mutant.also):
        path = source / "rerail" / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} has changed: write the bug anew"
        path.write_text(text.replace(old, new), encoding="utf-8")
        Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)
    pytest_quietly = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=line"]
    env = {**os.environ, "PYTHONPATH": str(source), "RERAIL_MUTANT": str(source), "PYTHONDONTWRITEBYTECODE": ""}
    for variable in [name for name in env if name.startswith(("PYTEST_", "RERAIL_SAMPLE", "RERAIL_SEED"))]:
        del env[variable]  # it is not one of our workers, and runs its tests in full

    try:
        done = subprocess.run([*pytest_quietly, *mutant.tests], cwd=ROOT, env=env, capture_output=True, text=True)
    finally:
        end_all_of(source)

    assert done.returncode == FAILED, f"{mutant.name} survives: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    figure("T7", "planted bugs, all found", 1)


def end_all_of(source: Path) -> None:
    """A broken rerail leaves processes behind: that is what some of the bugs are."""
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and f"RERAIL_MUTANT={source}\0".encode() in Path(f"/proc/{entry}/environ").read_bytes():
                os.kill(int(entry), signal.SIGKILL)


def test_there_are_enough_of_them_and_no_two_are_the_same() -> None:
    assert len(MUTANTS) >= 20
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)
