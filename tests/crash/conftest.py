"""The laboratory: one process with the shim preloaded, asked for one experiment at a time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.reference import standing_still

__all__ = ["standing_still"]

HERE = Path(__file__).parent


class Lab:
    """Orders in, results out."""

    def __init__(self, shim: Path) -> None:
        # ASan-like tools and coverage may preload something of their own: ours comes first.
        preload = f"{shim} {os.environ.get('LD_PRELOAD', '')}".strip()
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "lab.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_PRELOAD": preload, "LAB_SHIM": str(shim)},
        )

    def ask(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the kill tests need a C compiler (Debian: apt-get install gcc)"
    target = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(target), str(HERE / "shim.c"), "-ldl"], check=True)
    return target


@pytest.fixture(scope="session")
def lab(shim: Path) -> Iterator[Lab]:
    laboratory = Lab(shim)
    yield laboratory
    laboratory.close()


@pytest.fixture
def memory() -> Iterator[Path]:
    """A scratch directory that costs no disk."""
    shared = "/dev/shm"
    path = Path(tempfile.mkdtemp(prefix="rerail-explorer-", dir=shared if os.access(shared, os.W_OK) else None))
    yield path
    shutil.rmtree(path, ignore_errors=True)
