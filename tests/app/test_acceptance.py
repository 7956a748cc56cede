"""An artifact that a person edited: restored, or kept with its new digest as proof."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest

from tests.conftest import Project

PIPELINE = """
steps:
  - {id: make, run: 'printf 0123456789 > m.txt; echo other > n.txt; echo make >> "$LEDGER"', artifacts: [m.txt, n.txt]}
  - {id: use, needs: [make], run: 'cp m.txt used.txt; echo use >> "$LEDGER"', artifacts: [used.txt]}
  - {id: read, needs: [make], inputs: [m.txt], run: 'cp m.txt read.txt; echo read >> "$LEDGER"', artifacts: [read.txt]}
  - {id: apart, needs: [], run: 'echo apart >> "$LEDGER"'}
  - {id: last, run: 'test -e go'}
"""


@pytest.fixture
def edited(project: Project) -> Project:
    """A run that failed at its end, and a person's edit of one of its artifacts."""
    project.pipeline(PIPELINE)
    project.rerail("run", "pipeline.yaml", "--id", "w", check=1)
    project.ledger_file.write_text("")
    (project.root / "m.txt").write_text("edited\n")
    return project


def ran(project: Project) -> list[str]:
    return sorted(project.ledger_file.read_text().split())


def test_a_file_is_changed_or_truncated_empty_or_missing(edited: Project) -> None:
    def told() -> str:
        return edited.rerail("plan", "w", check=0).stderr

    assert "m.txt was changed since step make wrote it (7 bytes, was 10)" in told()
    (edited.root / "m.txt").write_text("01234")
    assert "m.txt truncated (5 of 10 bytes)" in told()
    (edited.root / "m.txt").write_text("9876543210")
    assert "m.txt was changed since step make wrote it (10 bytes, as before)" in told()
    (edited.root / "m.txt").write_text("")
    assert "m.txt empty (was 10 bytes)" in told()
    (edited.root / "m.txt").unlink()
    assert "m.txt missing" in told()


def test_without_a_terminal_it_is_restored_and_the_line_tells_how_to_keep_it(edited: Project) -> None:
    told = edited.rerail("resume", "w", check=1).stderr

    assert (edited.root / "m.txt").read_text() == "0123456789"
    assert ran(edited) == []
    (command,) = re.findall(r"to keep the changed m.txt: (.*)", told)
    copy, _, mark = command.partition(" && ")
    subprocess.run(shlex.split(copy), cwd=edited.root, check=True)
    edited.rerail(*shlex.split(mark)[1:], check=0)
    edited.rerail("resume", "w", check=1)

    assert (edited.root / "m.txt").read_text() == "edited\n"
    assert ran(edited) == ["read", "use"]
    reasons = [sentence for one in edited.json("why", "w", "make")["invocations"] for sentence in one["sentences"]]
    assert any(sentence.startswith("accepted m.txt as changed by hand, by ") for sentence in reasons)


def test_keep_changes_keeps_what_was_edited_and_restores_what_is_missing(edited: Project) -> None:
    (edited.root / "n.txt").unlink()
    planned = {one["step"]: one for one in edited.json("resume", "w", "--keep-changes", "--dry-run")["decisions"]}
    assert (edited.root / "m.txt").read_text() == "edited\n"
    assert not (edited.root / "n.txt").exists(), "a dry run changes nothing"
    assert planned["use"]["because"] == {"kind": "result-changed", "step": "make"}
    assert planned["read"]["decision"] == "rerun"
    assert planned["apart"]["decision"] == "reuse"

    edited.rerail("resume", "w", "--keep-changes", check=1)

    assert (edited.root / "m.txt").read_text() == "edited\n"
    assert (edited.root / "n.txt").read_text() == "other\n"
    assert (edited.root / "used.txt").read_text() == (edited.root / "read.txt").read_text() == "edited\n"
    assert ran(edited) == ["read", "use"]
    (event,) = [one for one in edited.json("history", "w") if one["event"] == "artifacts-accepted"]
    assert event["step"] == "make"
    assert event["by"]
    assert event["at"]
    assert list(event["was"]) == ["m.txt"]
    assert f"by {event['by']}" in edited.rerail("history", "w", check=0).stdout
    edited.rerail("verify", "w", check=0)
    assert "keep" not in edited.rerail("plan", "w", check=0).stderr, "it is the product now"


def test_the_plan_says_what_is_kept(edited: Project) -> None:
    told = edited.rerail("plan", "w", "--keep-changes", check=0).stderr

    assert re.search(r"keep +make +m.txt changed \(7 bytes, was 10\)", told)
    assert re.search(r"rerun +use +result of make changed", told)


def test_mark_accepts_what_is_named_and_nothing_else(edited: Project) -> None:
    (edited.root / "n.txt").write_text("also edited\n")
    edited.rerail("mark", "w", "make", "completed", "--accept", "m.txt", check=0)
    edited.rerail("resume", "w", check=1)

    assert (edited.root / "m.txt").read_text() == "edited\n"
    assert (edited.root / "n.txt").read_text() == "other\n"
    assert ran(edited) == ["read", "use"]


def test_what_is_not_an_artifact_or_not_complete_is_refused(edited: Project) -> None:
    assert "no artifact of make" in edited.rerail("mark", "w", "make", "completed", "--accept", "x", check=2).stderr
    assert "failed" in edited.rerail("mark", "w", "last", "completed", "--accept", "m.txt", check=2).stderr
    (edited.root / "m.txt").unlink()
    assert "missing" in edited.rerail("mark", "w", "make", "completed", "--accept", "m.txt", check=2).stderr
    assert "--accept" in edited.rerail("mark", "w", "make", "failed", "--accept", "m.txt", check=2).stderr


def test_an_edited_file_of_an_item_is_kept_and_what_depends_on_the_map_runs_again(project: Project) -> None:
    project.pipeline(
        "steps:\n"
        "  - id: m\n"
        "    map: {over: [a, b]}\n"
        "    steps: [{id: i, run: 'echo ${{ item }} > ${{ item }}.txt; echo ${{ item }} >> \"$LEDGER\"',"
        " artifacts: ['${{ item }}.txt']}]\n"
        "  - {id: join, needs: [m], run: 'cat a.txt b.txt > all.txt; echo join >> \"$LEDGER\"', artifacts: [all.txt]}\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "w", check=0)
    project.ledger_file.write_text("")
    (project.root / "a.txt").write_text("mine, and longer\n")
    project.rerail("resume", "w", "--keep-changes", check=0)

    assert ran(project) == ["join"]
    assert (project.root / "all.txt").read_text() == "mine, and longer\nb\n"
