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
from tests.conftest import Project
from tests.patched import life

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


BLIND_ONCE = """
import errno
from rerail.executors.local import LocalExecutor
watch = LocalExecutor._watch
def blind(self, process):
    LocalExecutor._watch = watch
    raise OSError(errno.EMFILE, "Too many open files")
LocalExecutor._watch = blind
import rerail.__main__
"""


def test_a_process_that_cannot_be_watched_does_not_run_beside_the_next(project: Project) -> None:
    project.pipeline("""
steps:
  - id: a
    retry: {attempts: 2, delay: 0}
    run: |
      test $RERAIL_ATTEMPT = 2 || { echo $$ > first; sleep 300; }
      for _ in $(seq 50); do
        ! kill -0 $(cat first) || { echo beside >> "$LEDGER"; break; }
        sleep 0.02
      done
      echo end >> "$LEDGER"
""")
    assert life(project, "run", "pipeline.yaml", "--id", "r", patch=BLIND_ONCE) == 0
    assert project.ledger() == ["end"]
