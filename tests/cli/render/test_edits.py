"""The question about an edited artifact at a terminal."""

from __future__ import annotations

import pytest

from tests.cli.screen import screen
from tests.conftest import Project

PIPELINE = """
steps:
  - {id: make, run: 'printf 0123456789 > m.txt', artifacts: [m.txt]}
  - {id: use, run: 'test -e go; cat m.txt'}
"""


@pytest.fixture
def edited(project: Project) -> Project:
    project.pipeline(PIPELINE.replace("; cat", " && cat"))
    project.rerail("run", "pipeline.yaml", "--id", "w", check=1)
    (project.root / "m.txt").write_text("edited\n")
    (project.root / "go").touch()
    return project


@pytest.mark.parametrize(("key", "content"), [("k", "edited\n"), ("r", "0123456789"), ("", "0123456789")])
def test_a_person_is_asked_and_the_answer_holds(edited: Project, key: str, content: str) -> None:
    terminal = screen(edited, "resume", "w")
    terminal.until(lambda text: "m.txt was changed since step make wrote it (7 bytes, was 10)" in text, "the question")
    terminal.until(lambda text: "[k]eep mine" in text, "the answers")
    terminal.type(key.encode() + b"\n")
    told = terminal.end()

    assert (edited.root / "m.txt").read_text() == content
    assert ("  keep  " in told) == (key == "k"), told
    assert "w completed" in told


def test_the_difference_is_shown_before_the_answer(edited: Project) -> None:
    terminal = screen(edited, "resume", "w")
    terminal.until(lambda text: "[k]eep mine" in text, "the question")
    terminal.type(b"d\n")
    told = terminal.until(lambda text: text.count("[k]eep mine") == 2, "the question again")
    terminal.type(b"k\n")
    terminal.end()

    assert "-0123456789" in told
    assert "+edited" in told
