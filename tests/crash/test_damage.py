"""Every byte of journal and checkpoint flipped, every truncation: the right result or exit 6, never a silent loss.

The state comes from real runs that failed, or were killed and resumed and killed again.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rerail.core.events import StepCompleted
from rerail.core.state import RunState
from rerail.errors import StateDamaged
from rerail.stores.directory import DirectoryStore
from rerail.testing import header, started
from tests.conftest import Project, eventually
from tests.crash.figures import figure
from tests.sweeps import Sample, part

PIPELINE = """\
steps:
  - id: one
    run: echo one >> $LEDGER; echo n=1 >> "$RERAIL_OUTPUT"
  - id: two
    run: echo two >> $LEDGER
  - id: three
    run: |
      echo three >> $LEDGER
      while ! test -e go; do sleep 0.02; done
  - id: four
    run: echo four >> $LEDGER; test -e fixed
"""


def kill_in_three(project: Project, lives: int) -> None:
    """Run until step three hangs, and kill; again for every further life."""
    for life in range(lives):
        process = project.spawn("run", "pipeline.yaml", "--id", "r", "--resume")
        expected = life + 1

        def started(expected: int = expected) -> bool:
            return project.ledger().count("three") == expected

        eventually(started, "three started")
        process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.fixture(params=["failed", "killed", "killed-twice", "killed-failed"])
def damaged_run(request: pytest.FixtureRequest, project: Project) -> Project:
    project.pipeline(PIPELINE)
    kind = request.param
    if kind != "failed":
        kill_in_three(project, 2 if kind == "killed-twice" else 1)
    if kind in ("failed", "killed-failed"):
        (project.root / "go").touch()
        project.rerail("run", "pipeline.yaml", "--id", "r", "--resume", check=1)
    return project


class Subject:
    """One state file, to be damaged and put back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.both = path.suffix == ".jsonl"  # of the truth two bits of every byte, of a cache one
        self.good = path.read_bytes()

    def flips(self) -> Iterator[tuple[str, bytes]]:
        for at, byte in enumerate(self.good.rstrip(b"\n") + b"\n"):
            for mask in (0x01, 0x80) if self.both else (1 << at % 8,):
                yield f"byte {at} ^ {mask:#x}", self.good[:at] + bytes([byte ^ mask]) + self.good[at + 1 :]

    def cuts(self) -> Iterator[tuple[str, bytes]]:
        for length in range(len(self.good.rstrip(b"\n")) + 1):
            yield f"cut to {length}", self.good[:length]
            if length % 16 == 0:
                yield f"zeros from {length}", self.good[:length] + b"\0" * (len(self.good) - length)


def read(store: DirectoryStore) -> tuple[RunState, tuple[str, ...]] | None:
    try:
        recording = store.read("r")
    except StateDamaged as error:
        assert error.exit_code == 6
        assert error.hint.startswith("rerail repair")
        return None
    return recording.state, recording.notices


@pytest.mark.scenario("B3", "B7", "B8", "E2", "E3", "E13")
def test_no_damage_to_the_journal_is_taken_for_the_truth(damaged_run: Project, sample: Sample) -> None:
    directory = damaged_run.run_dir("r")
    store = DirectoryStore(str(damaged_run.root / ".rerail"))
    truth, _ = read(store) or pytest.fail("unreadable before any damage")
    segments = sorted(directory.glob("journal-*.jsonl"))
    covered = store._load("r").chain.covered
    assert covered
    refused = kept = forgiven = 0
    for path in segments:
        subject = Subject(path)
        for what, bad in sample.of((*subject.flips(), *subject.cuts()), 300):
            path.write_bytes(bad)
            found = read(store)
            if found is None:
                refused += 1
                continue
            state, notices = found
            if state == truth:
                kept += 1
                continue
            # The one thing that may be missing is the end of the last segment, not known to any checkpoint, and
            # then it is said.
            assert path == segments[-1], (what, path)
            assert any("incomplete" in notice for notice in notices), (what, notices)
            assert state.seq < truth.seq
            forgiven += 1
        path.write_bytes(subject.good)
    figure(
        "T5",
        "flips and cuts of journals: refused, forgiven at the end and said, or without effect",
        refused + kept + forgiven,
    )
    assert refused > part(100, 1000)
    assert read(store) == (truth, store.read("r").notices)


@pytest.mark.parametrize("damaged_run", ["failed", "killed-twice"], indirect=True)
@pytest.mark.scenario("B6", "E1", "E3")
def test_damage_to_the_checkpoint_is_said_and_changes_nothing(damaged_run: Project, sample: Sample) -> None:
    store = DirectoryStore(str(damaged_run.root / ".rerail"))
    subject = Subject(damaged_run.run_dir("r") / "checkpoint.json")
    count = 0
    truth, _ = read(store) or pytest.fail("unreadable before any damage")

    for what, bad in sample.of((*subject.flips(), *subject.cuts()), 300):
        subject.path.write_bytes(bad)
        found = read(store)
        assert found is not None, what
        assert found[0] == truth, what
        assert any("checkpoint.json" in notice for notice in found[1]), what
        count += 1
    figure("T5", "flips and cuts of checkpoint.json, each said and without effect", count)


@pytest.mark.scenario("E2")
def test_a_flip_in_the_middle_is_refused_and_changes_nothing_then_repaired(project: Project, sample: Sample) -> None:
    project.pipeline(PIPELINE)
    (project.root / "go").touch()
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "fixed").touch()
    pristine = project.root.parent / "pristine"
    shutil.copytree(project.root / ".rerail", pristine)
    ledger = project.ledger()
    size = len((project.run_dir("r") / "journal-0001.jsonl").read_bytes())
    for at in sample.of(range(40, size - 1, size // 8), 2):
        shutil.rmtree(project.root / ".rerail")
        shutil.copytree(pristine, project.root / ".rerail")
        journal = project.run_dir("r") / "journal-0001.jsonl"
        data = bytearray(journal.read_bytes())
        data[at] ^= 0x04
        journal.write_bytes(data)
        before = project.state_digest()

        refused = project.rerail("resume", "r", check=6)
        assert "journal-0001.jsonl" in refused.stderr
        assert "damaged at byte" in refused.stderr
        assert "next: rerail repair r" in refused.stderr
        assert project.rerail("list", check=0).stdout.count("damaged") == 1
        project.rerail("resume", "--dry-run", check=6)
        assert project.state_digest() == before
        repaired = project.rerail("repair", "r", check=0)
        assert "evidence" in repaired.stderr
        evidence = next(project.run_dir("r").glob("evidence-*"))
        assert (evidence / "journal-0001.jsonl").read_bytes() == bytes(data)
        project.rerail("resume", "r", check=0)
        # checkpoint.json knew all that had completed: only the failed step ran again.
        assert project.ledger() == [*ledger, "four"]
        ledger = project.ledger()


def test_a_journal_that_ends_before_its_checkpoint_is_refused(project: Project) -> None:
    """Cut between two records nothing about it is torn: only the checkpoint knows that there were more."""
    project.pipeline(PIPELINE)
    (project.root / "go").touch()
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    path = project.run_dir("r") / "journal-0001.jsonl"
    lines = path.read_bytes().rstrip(b"\n").split(b"\n")
    for count in range(2, len(lines)):
        path.write_bytes(b"\n".join(lines[:count]) + b"\n")
        with pytest.raises(StateDamaged, match="the journal ends at record"):
            DirectoryStore(str(project.root / ".rerail")).read("r")


@pytest.mark.scenario("B7")
def test_the_journal_is_lost_but_the_checkpoint_is_good(project: Project) -> None:
    project.pipeline(PIPELINE)
    (project.root / "go").touch()
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "fixed").touch()
    (project.run_dir("r") / "journal-0001.jsonl").unlink()

    lost = project.rerail("resume", "r", check=6)
    assert "checkpoint.json knows" in lost.stderr
    assert "rerail repair r" in lost.stderr
    project.rerail("repair", "r", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["one", "two", "three", "four", "four"]
    assert project.json("show", "r")["steps"][0]["outputs"] == {"n": 1}


@pytest.mark.scenario("E5")
def test_nothing_can_be_proved(project: Project) -> None:
    project.pipeline(PIPELINE)
    (project.root / "go").touch()
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    directory = project.run_dir("r")
    for path in (directory / "checkpoint.json", *directory.glob("history/*")):
        path.write_bytes(b"{}")
    journal = directory / "journal-0001.jsonl"
    journal.write_bytes(b"x" + journal.read_bytes()[1:])

    before = project.state_digest()
    project.rerail("resume", "r", check=6)
    refused = project.rerail("repair", "r", check=6)
    assert "nothing changed" in refused.stderr
    assert project.state_digest() == before


@pytest.mark.scenario("B6", "E1")
def test_the_bad_checkpoint_is_kept_and_a_new_one_written(project: Project) -> None:
    project.pipeline(PIPELINE)
    (project.root / "go").touch()
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "fixed").touch()
    checkpoint = project.run_dir("r") / "checkpoint.json"
    checkpoint.write_text("{ not json")

    resumed = project.rerail("resume", "r", check=0)
    assert "checkpoint.json is damaged" in resumed.stderr
    kept = list(project.run_dir("r").glob("checkpoint.json.bad-*"))
    assert [path.read_text() for path in kept] == ["{ not json"]
    assert project.json("show", "r")["status"] == "completed"
    assert '"status": "completed"' in checkpoint.read_text()


@pytest.mark.scenario("L2")
def test_a_newer_format_is_refused_by_name(project: Project) -> None:
    project.pipeline(PIPELINE)
    (project.root / "go").touch()
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    # The honest way to a newer journal: the same writer, with a newer number.
    code = (
        "import rerail.core.formats as f, rerail.stores.writer as r, sys; r.JOURNAL = f.Format('journal', 99);"
        "from rerail.cli.main import call; sys.exit(call(['resume', 'r']))"
    )

    subprocess.run([sys.executable, "-c", code], cwd=project.root, env=project.env, capture_output=True, check=False)
    before = project.state_digest()

    refused = project.rerail("resume", "r", check=6)
    assert "format 99" in refused.stderr
    assert "upgrade" in refused.stderr
    project.rerail("repair", "r", check=6)
    assert project.state_digest() == before


AT = datetime(2026, 1, 2, tzinfo=UTC)


TWO = 'steps: [{id: a, run: echo a >> "$LEDGER"}, {id: b, run: "test -e ok && echo b >> $LEDGER"}]'


@pytest.mark.scenario("E10")
def test_a_journal_that_tells_the_impossible_is_refused_and_can_be_repaired(project: Project) -> None:
    """Its sums are right: it was written by our own writer, with an event that the engine would never have recorded."""
    log = DirectoryStore(str(project.root / ".rerail")).create(header("r"), b"steps: [{run: 'true'}]")
    log.append([started()])
    log.append([StepCompleted(at=AT, step="a", attempt=1, duration=1.0)])
    log.close()

    for command in ("resume", "show", "verify"):
        refused = project.rerail(command, "r", check=6)
        assert "contradicts itself" in refused.stderr + refused.stdout
        assert "rerail repair r" in refused.stderr + refused.stdout
    project.rerail("repair", "r", check=0)
    assert project.json("show", "r")["status"] in ("running", "interrupted", "crashed")


PAY = """
steps:
  - {id: a, run: 'echo a | tee -a "$LEDGER"'}
  - {id: pay, idempotent: false, run: 'echo pay | tee -a "$LEDGER"; kill -9 $PPID; sleep 60'}
"""


def flip(path: Path, words: bytes, beyond: int) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(words) + beyond] ^= 1
    path.write_bytes(data)


@pytest.mark.scenario("E2")
@pytest.mark.parametrize("at", [b'"step-completed"', b'{"sum":"', b'"seq":3'])
def test_rot_in_what_was_written_last_is_no_tear(project: Project, at: bytes) -> None:
    """The end of one step and the start of the next are one write: what is wrong before something whole was not torn."""
    project.pipeline(PAY)
    project.rerail("run", "pipeline.yaml", "--id", "r", "-q", check=-signal.SIGKILL)
    journal = project.run_dir("r") / "journal-0001.jsonl"
    lines = journal.read_bytes().split(b"\n")
    before = b"\n".join(lines[:3])  # the opening, the run's start, the start of a
    data = bytearray(journal.read_bytes())
    data[data.index(at, len(before)) + 12] ^= 1
    journal.write_bytes(data)
    (project.run_dir("r") / "checkpoint.json").unlink()

    project.rerail("resume", "r", check=6)
    project.rerail("verify", "r", check=6)
    assert project.ledger() == ["a", "pay"]


@pytest.mark.scenario("E5")
@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize("witness", ["logs", "begun"])
def test_a_run_whose_records_are_all_gone_is_not_started_over(project: Project, emptied: bool, witness: str) -> None:
    project.pipeline(PAY)
    project.rerail("run", "pipeline.yaml", "--id", "r", "-q", check=-signal.SIGKILL)
    place = project.run_dir("r")
    shutil.rmtree(place / "history")
    (place / "checkpoint.json").unlink(missing_ok=True)
    (place / "journal-0001.jsonl").unlink()
    if emptied:
        (place / "journal-0001.jsonl").touch()
    if witness == "logs":
        (place / "begun").unlink()
    else:
        shutil.rmtree(place / "logs")

    refused = project.rerail("resume", "r", check=6)
    assert witness in refused.stderr or "its first line is damaged" in refused.stderr
    project.rerail("verify", "r", check=6)
    assert project.ledger() == ["a", "pay"]


@pytest.mark.scenario("E2")
def test_rot_in_the_journal_of_an_earlier_life_is_noticed(project: Project) -> None:
    project.pipeline(TWO)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.rerail("resume", "r", check=1)
    flip(project.run_dir("r") / "journal-0001.jsonl", b'"step-completed"', 20)

    project.rerail("resume", "r", check=6)
