"""`rerail demo`: kills and resumes."""

from __future__ import annotations

from tests.conftest import Project


def test_the_demo_kills_and_resumes(project: Project) -> None:
    done = project.rerail("demo", check=0)

    for words in ("kill -9", "rerun  build   interrupted during attempt 1", "build twice"):
        assert words in done.stderr
    assert "crashed" in done.stdout
    assert list(project.root.iterdir()) == []
