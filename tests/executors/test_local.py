"""The local executor keeps the contract that rerail.testing ships, in both ways it can run functions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rerail import durable
from rerail.core.masking import Mask
from rerail.executors.local import LocalExecutor
from rerail.testing import ExecutorContract

pytestmark = pytest.mark.privileges


@pytest.fixture(params=[True, False], ids=["in-place", "in-threads"])
def executor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalExecutor]:
    logs = tmp_path / "logs"
    logs.mkdir()
    invocation = f"invocation-{os.urandom(8).hex()}"
    made = LocalExecutor(
        lambda name: durable.open_log(str(logs / name)),
        inline=request.param,
        environ=os.environ,
        mask=Mask(()),
        invocation=invocation,
    )
    yield made
    if made._wake_write >= 0:
        made.close()


class TestLocalExecutor(ExecutorContract):
    pass
