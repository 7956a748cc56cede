"""A sample of the tests: by its seed alone, with every module, and with all there is where tests are named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sweeps import Sample

ROOT = Path(__file__).parent.parent


def collected(*arguments: str, **variables: str) -> list[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("RERAIL_SAMPLE", "RERAIL_SEED")}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-o", "addopts=-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, env={**env, **variables}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_a_sample_has_every_module_and_does_not_depend_on_what_else_is_run() -> None:
    every = collected(RERAIL_SAMPLE="1", RERAIL_SEED="5")
    part = collected("tests/crash/test_damage.py", "tests/e2e/test_hooks.py", RERAIL_SAMPLE="1", RERAIL_SEED="5")
    other = collected("tests/crash/test_damage.py", "tests/e2e/test_hooks.py", RERAIL_SAMPLE="1", RERAIL_SEED="6")
    full = collected("tests/crash/test_damage.py", "tests/e2e/test_hooks.py")

    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert {test.partition("::")[0] for test in every} == modules
    assert sorted(part) == sorted(
        test for test in every if test.startswith(("tests/crash/test_damage.py", "tests/e2e/test_hooks.py"))
    )
    assert sorted(part) != sorted(other)
    assert {*part, *other} < {*full}


def test_of_points_in_shards_a_sample_tries_one_of_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.sweeps.SEED", 1)
    monkeypatch.setattr("tests.sweeps.WHOLE", True)
    assert Sample("x").points(8, shard=1, shards=4) == (2, 4)
    assert Sample("x").of(range(9), 2) == list(range(9))

    monkeypatch.setattr("tests.sweeps.WHOLE", False)
    first, step = Sample("x").points(8, shard=1, shards=4)
    assert (first % 4, step) == (2, 32)
    assert first <= step
    assert Sample("x").of(range(9), 2) == Sample("x").of(range(9), 2) != Sample("y").of(range(9), 2)
