"""Letters are there until what they say is recorded."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from rerail.core.events import ApprovalGiven
from rerail.stores import inbox
from tests.conftest import Project
from tests.patched import life

DIES_BEFORE_IT_RECORDS = """
import os
from rerail.engine.recorder import Recorder
Recorder.flush = lambda self: os._exit(9)
import rerail.__main__
"""


def test_an_answer_is_there_until_it_is_recorded(project: Project) -> None:
    project.pipeline("steps: [{id: ok, approve: sure?}, {id: more, needs: [], approve: really?}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    for step in ("ok", "more"):  # as from beside a process that drives the run
        said = ApprovalGiven(at=datetime.now(UTC), step=step, approved=True, by="me")
        inbox.put(str(project.run_dir("r")), said)
    assert life(project, "resume", "r", patch=DIES_BEFORE_IT_RECORDS) == 9

    project.rerail("resume", "r", check=0)
    assert os.listdir(project.run_dir("r") / "inbox") == []


def test_a_letter_is_there_until_what_it_says_is_recorded(tmp_path: Path) -> None:
    """Whoever reads it may die before that, and may ask for more before that."""
    said = ApprovalGiven(at=datetime(2026, 1, 2, tzinfo=UTC), step="ok", approved=True, by="me")
    inbox.put(str(tmp_path), said)

    assert inbox.DirectoryInbox(str(tmp_path)).take() == [said]
    reader = inbox.DirectoryInbox(str(tmp_path))
    assert reader.take() == [said], "the one who read it first has died"
    assert reader.take() == []
    assert inbox.DirectoryInbox(str(tmp_path)).take() == [said], "it is not recorded yet"
    reader.clear()
    assert inbox.DirectoryInbox(str(tmp_path)).take() == []
