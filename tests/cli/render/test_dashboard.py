"""Pictures that a person is left with: after a question, after a kill, with long names, in one time zone."""

from __future__ import annotations

import re
import time

from rerail.cli.render import live
from tests.cli.screen import screen
from tests.conftest import Project, eventually

PAID = 'echo "{\\"cost_usd\\": 0.5}" >> "$RERAIL_METRICS"'


def test_the_last_row_is_there_after_a_question_that_waited_long(project: Project) -> None:
    """Longer than the time after which the view takes the screen for another program's."""
    project.pipeline(
        "steps:\n  - {id: ok, approve: 'Really?'}\n  - {id: publish, run: 'true'}\nfinally: [{id: tell, run: 'true'}]\n"
    )
    shown = screen(project, "run", "pipeline.yaml", "--id", "r")
    shown.until(lambda text: "Approve ok?" in text, "the question")
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > live.AWAY_SECONDS + 0.5, "a person reads")
    shown.type(b"y\r")
    text = shown.end()

    after = text.partition("> y")[2]
    assert re.search(r"✓ pipeline +r +2/2 steps.*completed\n ✓ ok .*\n ✓ publish .*\n ✓ tell ", after), text


def test_what_is_printed_after_a_kill_stands_below_the_picture(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'touch there; sleep 60'}, {id: b, run: 'true'}]")
    shown = screen(project, "run", "pipeline.yaml", "--id", "r")
    shown.until(lambda text: "waiting for a" in text and (project.root / "there").exists(), "the view")
    shown.process.kill()
    shown.end()
    assert shown.screen.cursor.x == 0  # a shell writes here


def test_a_completed_map_keeps_its_cost_while_its_items_are_open(project: Project) -> None:
    project.pipeline(f"""
steps:
  - id: m
    map: {{over: [a, b]}}
    steps: [{{run: '{PAID}; echo x > ${{{{ item }}}}.txt', artifacts: ["${{{{ item }}}}.txt"]}}]
""")
    text = screen(project, "run", "pipeline.yaml", "--id", "r").end()
    assert re.search(r"✓ m +[\d.]+ s +█+ 2/2 +\$1\.00", text), text


def test_interruptions_are_not_attempts_of_the_policy(project: Project) -> None:
    project.pipeline(
        "defaults: {retry: {attempts: 3, delay: 0.1s}}\n"
        "steps: [{id: a, run: 'echo x >> $LEDGER; test -e go || sleep 60'}, {id: ok, approve: 'Really?'}]"
    )
    for times in (1, 2, 3):
        process = project.spawn("run", "pipeline.yaml", "--id", "r", "--resume")
        eventually(lambda least=times: len(project.ledger()) >= least, "it runs")  # type: ignore[misc]
        process.terminate()
        process.communicate()
    (project.root / "go").touch()
    shown = screen(project, "resume", "r")
    shown.until(lambda text: "Approve ok?" in text, "the question")
    shown.type(b"n no\r")
    text = shown.end()
    assert "attempt 4" in text
    assert " of 3" not in text


def test_names_have_the_room_that_there_is(project: Project) -> None:
    name = "a-step-with-a-name-of-fifty-characters-in-all-xxxx"
    project.pipeline(f"steps: [{{id: {name}, run: 'true'}}, {{id: b, run: 'exit 3'}}]")
    wide = screen(project, "run", "pipeline.yaml", "--id", "r", columns=120).end()
    assert f"✓ {name} " in wide
    narrow = screen(project, "show", "r", columns=80).end()
    assert "exited with code 3" in narrow
