"""The local executor keeps the contract that rerail.testing ships, in both ways it can run functions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rerail import durable
from rerail.core.masking import Mask
from rerail.core.unit_id import UnitId
from rerail.executors.local import LocalExecutor
from rerail.ports import ProcessWork
from rerail.testing import ExecutorContract
from rerail.testing.executor_contract import attempt, gathered, script
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


class Listener:
    """Listener that writes down what it is told."""

    def __init__(self) -> None:
        self.heard: dict[tuple[UnitId, int, str], list[bytes]] = {}

    def take(self, unit: UnitId, attempt: int, stream: str, data: bytes) -> None:
        self.heard.setdefault((unit, attempt, stream), []).append(data)


def test_a_listener_is_told_what_is_logged_and_where_it_ends(tmp_path: Path) -> None:
    listener = Listener()
    executor = LocalExecutor(
        lambda name: durable.open_log(str(tmp_path / name)),
        inline=True, environ=os.environ, mask=Mask(("hush-9f3a",)), invocation="invocation-x", listener=listener,
    )  # fmt: skip
    try:
        check = ProcessWork(argv=("/bin/sh", "-c", "echo checked"), label="check")
        executor.start(
            attempt("a", tmp_path, checks=(check,)),
            script("printf hush-; sleep 0.05; echo 9f3a; echo oh >&2; printf end"),
        )
        executor.start(attempt("b", tmp_path, number=2), script("exit 3"))
        gathered(executor, 2)
    finally:
        executor.close()
    heard = {key: b"".join(pieces) for key, pieces in listener.heard.items()}

    assert heard == {
        (UnitId("a"), 1, "out"): (tmp_path / "a.1.out").read_bytes(),
        (UnitId("a"), 1, "err"): b"oh\n",
        (UnitId("b"), 2, "out"): b"",
        (UnitId("b"), 2, "err"): b"",
    }
    assert heard[UnitId("a"), 1, "out"] == b"***\nendchecked\n"
    assert all(pieces[-1] == b"" and b"" not in pieces[:-1] for pieces in listener.heard.values())


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
