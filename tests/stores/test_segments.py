"""A journal that is lost, torn, or read while it is written."""

from __future__ import annotations

import signal

import pytest

from tests.conftest import Project, eventually
from tests.pipelines import note, pipeline, step


def kill_in(project: Project, name: str, *arguments: str) -> None:
    """Run until that step has said so in the ledger once more, and kill."""
    before = project.ledger().count(name)
    process = project.spawn(*arguments)
    eventually(lambda: project.ledger().count(name) == before + 1, f"{name} runs")
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.scenario("E5")
def test_a_journal_that_is_lost_with_its_checkpoint_is_missed(project: Project) -> None:
    until_seen = """until grep -qs '"last_completed_step": "a"' .rerail/runs/r/%s; do sleep 0.02; done"""
    saved, kept = until_seen % "checkpoint.json", until_seen % "history/*"
    project.pipeline(
        pipeline(step("a", note()), step("b", note(saved)), step("c", note(kept)), step("d", note("exit 1")))
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    for path in (*project.run_dir("r").glob("journal-*"), project.run_dir("r") / "checkpoint.json"):
        path.unlink()

    assert "repair" in project.rerail("resume", "r", check=6).stderr
    project.rerail("repair", "r", check=0)
    project.rerail("resume", "r", check=1)
    assert project.ledger().count("a") == 1


@pytest.mark.scenario("F15")
def test_reading_beside_a_busy_owner_never_reports_damage(project: Project) -> None:
    from rerail.stores.directory import DirectoryStore

    many = [step(f"s{number}", "exit 0") for number in range(150)]
    project.pipeline(pipeline(*many))
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "-q")
    store = DirectoryStore(str(project.root / ".rerail"))
    eventually((project.run_dir("r") / "checkpoint.json").exists, "the run is there, and its first snapshot")
    reads = 0
    while process.poll() is None:
        assert store.read("r").notices == ()
        list(store.history("r"))
        reads += 1
    process.communicate()

    assert reads > 20


def test_the_torn_end_of_a_journal_is_told_once(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("test -e go || sleep 60")), step("b", note("exit 1"))))
    kill_in(project, "a", "run", "pipeline.yaml", "--id", "r")
    journal = project.run_dir("r") / "journal-0001.jsonl"
    data = journal.read_bytes()
    end = len(data.rstrip(b"\n"))
    journal.write_bytes(data[: end + 1] + b'{"sum":"half a rec' + data[end + 19 :])
    (project.root / "go").touch()

    assert "incomplete" in project.rerail("resume", "r", check=1).stderr
    later = project.rerail("resume", "r", check=1).stderr
    assert "incomplete" not in later
    assert "ignored" not in later
