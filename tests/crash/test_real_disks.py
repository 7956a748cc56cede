"""Real file systems whose power is really cut, whose disk really fails, fills up, freezes or turns read-only.

Layer 3 of the laboratory. It needs root, loop devices and a kernel with ext4, XFS and btrfs. Where they are missing the
tests say so and are skipped; with RERAIL_REQUIRE_ALL=1 that is a failure.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Project, eventually
from tests.crash import volumes
from tests.crash.conftest import Lab
from tests.crash.figures import figure
from tests.crash.test_kill_points import starts
from tests.crash.volumes import Volume
from tests.sweeps import Sample

STATE_ERROR = 6
pytestmark = pytest.mark.needs_root("to mount file systems")


@pytest.fixture(autouse=True)
def _real_file_systems() -> None:
    reason = volumes.why_not()
    if reason:
        pytest.skip(f"real file systems cannot be had: {reason}")


def on(volume: Volume, tmp_path: Path) -> Project:
    """A project on that file system; its ledger is elsewhere."""
    project = Project(tmp_path)
    project.root.rmdir()
    project.root = Path(volume.path) / "project"
    project.root.mkdir()
    return project


@pytest.fixture(params=["ext4", "xfs"])
def volume(request: pytest.FixtureRequest) -> Iterator[Volume]:
    with Volume(request.param) as mounted:
        yield mounted


# Cutting the power


@pytest.mark.scenario("B1", "B4", "B5", "B6", "B12", "B14")
@pytest.mark.parametrize("kind", volumes.KINDS)
def test_the_power_is_cut_at_any_call(lab: Lab, kind: str, sample: Sample) -> None:
    at, further = sample.points(10)
    cuts = 0
    while True:
        result = lab.ask(kind="power-cut", volume=kind, at=at, everywhere=True)
        met = result["lives"][0]
        if met["code"] == 0:
            break
        assert met["code"] == -signal.SIGKILL, result
        check(result)
        at, cuts = at + further, cuts + 1
    figure("T4", f"cuts on {kind}", cuts)
    assert at > 60


def check(result: dict[str, Any]) -> None:
    """What was acknowledged before the power failed is done and is not done again; what it made is there."""
    met, *_, last = result["lives"]
    assert last["code"] == 0, result
    assert "rerail repair" not in result["messages"], result
    assert result["files"] == {"out/b.txt": "1\n", "c.txt": "1\n1\n"}, result
    again = {unit for unit, _, _ in starts(result["ledger"][met["ledger"] :])}
    assert not again & set(met["acked"]), f"acknowledged, and ran again: {result}"
    assert {unit for unit, _, _ in starts(result["ledger"])} == {"a", "b", "c"}, result


# A disk that fails


@pytest.mark.scenario("D2", "B10")
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_disk_that_really_cannot_write_is_never_believed(tmp_path: Path, kind: str) -> None:
    """What is below the file system has no room left, which nobody notices before data is written back.

    A second sync would succeed then, with the data gone: nothing may be built on it.
    """
    backing = tmp_path / "backing"
    backing.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "none", backing], check=True)
    try:
        with Volume(kind) as volume:
            volume.unmount()
            image = backing / "image"
            subprocess.run(["cp", "--sparse=always", volume.image, image], check=True)
            volume.image = str(image)
            volume.mount()
            project = on(volume, tmp_path)
            project.pipeline(
                """
steps:
  - {id: a, run: echo a >> "$LEDGER"}
  - {id: fill, run: 'echo fill >> "$LEDGER"; head -c 9000000 /dev/urandom > data; echo up >> "$LEDGER"', artifacts: [data]}
  - {id: c, run: echo c >> "$LEDGER"}
"""
            )
            project.rerail("run", "pipeline.yaml", "--id", "r", "--until", "a", check=0)
            volume.sync()
            used = int(subprocess.check_output(["du", "-k", image]).split()[0])
            subprocess.run(["mount", "-o", f"remount,size={used + 1024}k", backing], check=True)

            failed = project.rerail("resume", "r")

            assert failed.returncode in (STATE_ERROR, 1), failed.stderr
            assert "c" not in project.ledger(), "it went on as if all was well"
            subprocess.run(["mount", "-o", "remount,size=400m", backing], check=True)
            volume.unmount()
            volume.mount()
            project.rerail("resume", "r", check=0)
            assert project.ledger() == ["a", "fill", "up", "fill", "up", "c"]
            assert (project.root / "data").stat().st_size == 9_000_000
    finally:
        subprocess.run(["umount", "--lazy", backing], check=True)


WAITING = """
steps:
  - {id: a, run: 'echo a >> "$LEDGER"; read line < "$LEDGER.go"; %s'}
  - {id: b, run: echo b >> "$LEDGER"}
"""


def started(project: Project, script: str = "true", *options: str) -> subprocess.Popen[str]:
    """A run whose first step waits for us."""
    project.pipeline(WAITING % script)
    os.mkfifo(f"{project.ledger_file}.go")
    runner = project.spawn("run", "pipeline.yaml", "--id", "r", *options)
    eventually(lambda: project.ledger() == ["a"])
    return runner


def go_on(project: Project) -> None:
    Path(f"{project.ledger_file}.go").write_text("go\n", encoding="ascii")


def resumed_to_the_end(project: Project, ledger: list[str]) -> None:
    Path(f"{project.ledger_file}.go").unlink()
    go_on(project)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ledger


@pytest.mark.scenario("D8")
def test_the_file_system_turns_read_only(tmp_path: Path) -> None:
    with Volume("ext4") as volume:
        project = on(volume, tmp_path)
        runner = started(project)
        volume.sync()
        volume.break_down()
        go_on(project)
        _, told = runner.communicate(timeout=120)

        assert runner.returncode == STATE_ERROR, told
        assert "Read-only file system" in told or "Input/output error" in told
        assert "then: rerail resume r" in told
        volume.unmount()
        volume.mount()
        resumed_to_the_end(project, ["a", "a", "b"])


@pytest.mark.scenario("D10")
def test_a_disk_that_does_not_answer_for_a_while_loses_nothing(volume: Volume, tmp_path: Path) -> None:
    """Two Ctrl-C while a write hangs: once the disk answers again the run has stopped, whole."""
    project = on(volume, tmp_path)
    runner = started(project)
    volume.freeze()
    try:
        go_on(project)
        eventually(lambda: Path(f"/proc/{runner.pid}/stat").read_text().split()[2] == "D", "it waits for the disk")
        for _ in range(2):
            runner.send_signal(signal.SIGINT)
    finally:
        volume.thaw()
    _, told = runner.communicate(timeout=120)

    assert runner.returncode in (130, 0), told
    Path(f"{project.ledger_file}.go").unlink()
    go_on(project)
    project.rerail("resume", "r", check=0)
    assert project.ledger() in (["a", "b"], ["a", "b", "b"])  # the next step may have begun when the signals were heard


FILL = """\
head -c 150000 /dev/zero | tr "\\0" x > text; echo "x=$(cat text)" >> "$RERAIL_OUTPUT"
      for turn in 1 2 3 4 5 6; do cat /dev/zero >> fill 2> /dev/null || sync -f .; done\
"""


@pytest.mark.scenario("C1", "C2", "C4")
def test_the_disk_is_full(tmp_path: Path) -> None:
    """A step fills it to the last byte, and hands out more than there is room for in the journal.

    That it ended is recorded all the same, in space that was set aside, and nothing new starts. (XFS gives a file that
    grows some room in advance, so there it would fit.)
    """
    with Volume("ext4") as volume:
        project = on(volume, tmp_path)
        project.pipeline(f"""
steps:
  - id: a
    run: |
      echo a >> "$LEDGER"
      {FILL}
  - {{id: b, run: echo b >> "$LEDGER"}}
""")

        full = project.rerail("run", "pipeline.yaml", "--id", "r")

        assert full.returncode == STATE_ERROR, full.stderr
        assert "the disk is full" in full.stderr
        assert project.ledger() == ["a"]
        (project.root / "fill").unlink()
        project.rerail("resume", "r", check=0)
        assert project.ledger() == ["a", "b"]


@pytest.mark.scenario("C3")
def test_there_are_no_inodes_left(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=60", "none", place], check=True)
    try:
        project = Project(tmp_path)
        project.root = place / "project"
        project.root.mkdir()
        runner = started(project, "for n in $(seq 100); do : > $n.tmp || break; done 2> /dev/null; true")
        go_on(project)
        _, told = runner.communicate(timeout=120)

        assert runner.returncode in (STATE_ERROR, 0), told
        for path in project.root.glob("*.tmp"):
            path.unlink()
        if runner.returncode:
            assert "No space left on device" in told
            project.rerail("resume", "r", check=0)
        assert project.ledger()[-1] == "b"
        assert project.json("show", "r")["status"] == "completed"
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
