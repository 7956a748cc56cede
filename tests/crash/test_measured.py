"""What is measured in passing, for the table of figures. Nothing here asserts a time: that would test the machine."""

from __future__ import annotations

import os
import signal
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

from rerail.core.events import StepCompleted, StepStarted
from rerail.stores.directory import DirectoryStore
from rerail.testing import header, started
from tests.conftest import Project, eventually
from tests.crash.figures import figure

AT = datetime(2026, 1, 2, tzinfo=UTC)
STEPS = 400


def test_what_an_acknowledgement_costs(tmp_path: Path) -> None:
    log = DirectoryStore(str(tmp_path / "state")).create(header(), b"")
    log.append([started()])
    spent, floor = [], []
    fd = os.open(tmp_path / "floor", os.O_WRONLY | os.O_CREAT)
    os.pwrite(fd, b"\n" * (1 << 20), 0)
    os.fsync(fd)
    for number in range(STEPS):
        began = time.perf_counter()
        log.append([StepStarted(at=AT, step=f"s{number}", attempt=1)])
        log.append([StepCompleted(at=AT, step=f"s{number}", attempt=1, duration=0.5)])
        between = time.perf_counter()
        for half in range(2):
            os.pwrite(fd, b"x" * 160, 160 * (2 * number + half))
            os.fdatasync(fd)
        floor.append(time.perf_counter() - between)
        spent.append(between - began)
    os.close(fd)
    log.close()

    assert len(list(DirectoryStore(str(tmp_path / "state")).history("r1"))) == 1 + 2 * STEPS
    figure("T10", "ms for two records, the 99th percentile", sorted(spent)[STEPS * 99 // 100] * 1000)
    figure(
        "T10",
        "times what two bare synced writes take here (medians)",
        statistics.median(spent) / statistics.median(floor),
    )


def test_how_long_it_takes_to_stop(project: Project) -> None:
    project.pipeline('steps: [{id: a, run: "echo up >> $LEDGER; exec sleep 60"}]')
    runner = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["up"])
    began = time.perf_counter()
    runner.send_signal(signal.SIGTERM)
    runner.communicate()
    spent = time.perf_counter() - began

    assert runner.returncode == 128 + signal.SIGTERM
    assert project.json("show", "r")["status"] == "interrupted"
    figure("T11", "s from the signal to the end of the process, with a step that ends when asked", spent)
