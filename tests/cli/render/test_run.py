"""A run as text: its questions, times and long lines."""

from __future__ import annotations

import re

from tests.cli.screen import screen
from tests.conftest import Project


def test_long_lines_are_broken_at_words(project: Project) -> None:
    project.pipeline(
        "steps:\n" + "".join(f"  - {{id: s{n}, needs: [], allow_failure: true, run: 'exit {n % 2}'}}\n" for n in range(4))
    )
    text = screen(project, "run", "pipeline.yaml", "--id", "r", columns=44).end()
    said = text[text.index("rerail: run r completed") :]
    assert re.sub(r"\s*\n\s*", " ", said).startswith("rerail: run r completed in")
    assert "2 failed (allowed)" in re.sub(r"\s*\n\s*", " ", said)
    assert all(len(line) <= 44 for line in said.splitlines())


def test_a_pending_question_is_shown_with_its_values(project: Project) -> None:
    project.env["TOKEN"] = "sesame-open"
    project.pipeline("""
params: {topic: sun}
secrets: [TOKEN]
steps:
  - {id: a, run: 'echo n=3 >> "$RERAIL_OUTPUT"'}
  - {id: ok, approve: 'Publish ${{ params.topic }} ${{ steps.a.outputs.n }} ${{ env.TOKEN }}?'}
  - {id: later, approve: 'And ${{ steps.ok.outputs.by }}?'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    text = project.rerail("show", "r", check=0).stdout
    assert "waiting for approval: Publish sun 3 ***?" in text
    assert "${{" not in text


def test_times_are_those_of_one_zone_which_is_named(project: Project) -> None:
    project.env["TZ"] = "Europe/Oslo"
    project.pipeline("steps: [{id: a, run: 'true'}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    shown = project.rerail("show", "r", check=0).stdout
    created = re.search(r"created +(\S+ \d\d:\d\d)\S* CES?T", shown)
    assert created, shown
    assert shown.count(created[1][:13]) >= 2  # the hour of the invocation is the same
    assert re.match(r"  SEQ  TIME \(CES?T\)", project.rerail("history", "r", check=0).stdout)


def test_a_plan_has_a_header_always(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}]")
    planned = project.rerail("run", "pipeline.yaml", "--dry-run", check=0).stderr
    assert re.match(r"  ORDER +PLAN +STEP +COMMAND\n", planned), planned
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    planned = project.rerail("resume", "r", "--from", "a", "--dry-run", check=0).stderr
    assert "  PLAN   STEP  REASON\n" in planned, planned


def test_a_group_alone_prints_its_help(project: Project) -> None:
    text = project.rerail("dlq", check=2).stderr
    assert text.startswith("Usage: rerail dlq")
