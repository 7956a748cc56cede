"""Sessions in a pseudo-terminal: run, Ctrl-C, resume, watch, logs -f, at widths from 40 to 200."""

from __future__ import annotations

import re
import signal

import pytest

from rerail.cli.render.terminal import look
from tests.cli.screen import screen
from tests.conftest import Project, eventually


def test_a_run_is_drawn_while_it_goes_on_and_its_failure_is_framed(loop: Project) -> None:
    shown = screen(loop, "run", "pipeline.yaml", "--id", "r")
    text = shown.until(lambda text: "compiling module 5" in text and "✓ tests" in text, "both branches")

    assert re.search(r"build-loop  r  2/5 steps  [\d.]+ s  \$0\.42", text)
    assert re.search(r"✓ tests +[\d.]+ s  attempt 2 of 3", text)
    assert re.search(r"build +[\d.]+ s  ██████░░░░ 5/8  ETA [\d.]+ s", text)
    assert re.search(r"· review +waits for build", text)
    assert re.search(r"· ship +waits for review", text)
    (loop.root / "go").touch()
    last = shown.end()
    assert shown.process.returncode == 1
    assert "4/5 steps" not in last.splitlines()[0] or "failed" in last
    for words in ("✗ review", "╭─ step review failed: exited with code 1", "exit code 1", "no such thing",
                  "rerail logs r review", "╰─ next: rerail resume r"):  # fmt: skip
        assert words in last
    assert b"\033]0;owned" not in shown.raw


@pytest.mark.scenario("G11")
def test_ctrl_c_then_resume_shows_the_plan_and_goes_on(loop: Project) -> None:
    first = screen(loop, "run", "pipeline.yaml", "--id", "r")
    first.until(lambda text: "compiling module 5" in text and "✓ tests" in text, "build runs")
    first.type(b"\x03")
    text = first.end()
    assert first.process.returncode == 130
    assert "stopped by SIGINT" in text
    assert "next: rerail resume r" in text
    (loop.root / "go").touch()
    (loop.root / "fixed").touch()
    again = screen(loop, "resume")
    text = again.end()

    assert again.process.returncode == 0
    assert re.search(r"PLAN +STEP +REASON +SAVED +COST", text)
    assert re.search(r"reuse  scout   completed +[\d.]+ s +\$0\.42", text)
    assert re.search(r"rerun  build   interrupted during attempt 1", text)
    assert "; saves" in text
    assert re.search(r"✓ build-loop  r  5/5 steps .* completed", text)
    assert loop.ledger() == ["build", "build"]


APPROVE = "steps: [{id: a, run: 'true'}, {id: ok, approve: Shall we?}, {id: b, run: echo b >> $LEDGER}]"


def test_a_person_at_the_terminal_is_asked(project: Project) -> None:
    project.pipeline(APPROVE)
    shown = screen(project, "run", "pipeline.yaml", "--id", "r")
    shown.until(lambda text: "? Shall we?" in text and text.endswith("  >"), "the question")
    shown.type(b"perhaps\n")
    shown.until(lambda text: text.count("[y]es") == 2, "it asks again")
    assert project.ledger() == []
    shown.type(b"y fine by me\n")
    shown.end()
    assert shown.process.returncode == 0
    assert project.ledger() == ["b"]
    said = next(event for event in project.json("history", "r") if event["event"] == "approval-given")
    assert (said["approved"], said["reason"]) == (True, "fine by me")


@pytest.mark.scenario("A10")
@pytest.mark.parametrize(("keys", "code"), [(b"n no\n", 1), (b"\n", 5), (b"\x04", 5), (b"\x03", 130)])
def test_other_answers(project: Project, keys: bytes, code: int) -> None:
    project.pipeline(APPROVE)
    shown = screen(project, "run", "pipeline.yaml", "--id", "r")
    shown.until(lambda text: "? Shall we?" in text and text.endswith("  >"), "the question")
    shown.type(keys)
    shown.end()
    assert shown.process.returncode == code
    assert project.ledger() == []
    project.rerail("approve", "r", "ok", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["b"]


def test_a_question_does_not_outlast_the_time_a_life_may_take(project: Project) -> None:
    project.pipeline(APPROVE)
    shown = screen(project, "run", "pipeline.yaml", "--id", "r", "--max-runtime", "1s")
    shown.until(lambda text: "? Shall we?" in text, "the question")
    last = shown.end()
    assert shown.process.returncode == 5
    assert "--max-runtime 1 s is over" in last


@pytest.mark.scenario("A10")
def test_a_kill_while_a_person_is_asked_loses_nothing(project: Project) -> None:
    project.pipeline(APPROVE)
    shown = screen(project, "run", "pipeline.yaml", "--id", "r")
    shown.until(lambda text: "? Shall we?" in text, "the question")
    shown.process.kill()
    shown.end()
    project.rerail("resume", "r", check=5)
    project.rerail("approve", "r", "ok", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["b"]


def test_a_fork_is_drawn_like_any_run(loop: Project) -> None:
    for name in ("go", "fixed"):
        (loop.root / name).touch()
    loop.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    shown = screen(loop, "fork", "r", "--from", "review", "--id", "f")
    text = shown.end()

    assert shown.process.returncode == 0
    assert "live view broke" not in text
    assert re.search(r"✓ build-loop  f  5/5 steps .* completed", text)


@pytest.mark.parametrize(("columns", "lines"), [(40, 10), (80, 24), (200, 50)])
def test_no_line_is_wider_than_the_terminal(loop: Project, columns: int, lines: int) -> None:
    shown = screen(loop, "run", "pipeline.yaml", "--id", "r", columns=columns, lines=lines)
    text = shown.until(lambda text: "✓ tests" in text and "build" in text, "the board")
    (loop.root / "go").touch()
    (loop.root / "fixed").touch()
    last = shown.end()

    assert all(line.startswith(" ") for line in text.splitlines()[1:6])  # nothing went on in the next line
    assert shown.process.returncode == 0
    assert "✓ ship" in last


def test_many_steps_fit_a_low_terminal_and_it_may_be_resized(project: Project) -> None:
    steps = "".join(
        f"  - {{id: s{n}, run: 'test {n} != 20 || while ! test -e go; do sleep 0.02; done'}}\n" for n in range(40)
    )
    project.pipeline("steps:\n" + steps)
    shown = screen(project, "run", "pipeline.yaml", "--id", "r", columns=80, lines=12)
    text = shown.until(lambda text: "20/40 steps" in text and "more steps" in text, "half of them")
    assert re.search(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] s20", text)
    shown.resize(60, 30)
    shown.until(lambda text: len(text.splitlines()) > 20 and "· s38" in text, "more of them")
    (project.root / "go").touch()

    shown.end()
    assert shown.process.returncode == 0


def test_watch_draws_a_run_of_another_process_and_leaves_it_alone(loop: Project) -> None:
    process = loop.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: loop.ledger() == ["build"], "build runs")
    watched = screen(loop, "watch", "r")
    watched.until(lambda text: "5/8" in text and "compiling module 5" in text and "✓ scout" in text, "the board")
    watched.type(b"\x03")
    assert "run r goes on" in watched.end()
    second = screen(loop, "watch", "r")
    second.until(lambda text: "5/8" in text, "the board again")
    (loop.root / "go").touch()
    (loop.root / "fixed").touch()
    text = second.end()
    process.communicate()

    assert process.returncode == 0
    assert second.process.returncode == 0
    assert "run r is completed" in text
    assert "✓ ship" in text


@pytest.mark.scenario("V2")
def test_logs_follow_a_live_run(loop: Project) -> None:
    process = loop.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: loop.ledger() == ["build"], "build runs")
    followed = screen(loop, "logs", "r", "-f")
    followed.until(lambda text: "build | compiling module 5 of 8" in text, "what was printed")
    (loop.root / "go").touch()
    text = followed.end()
    process.communicate()

    assert "review | no such thing" in text
    assert followed.process.returncode == 0
    assert b"\033]0;owned" not in followed.raw


def test_delete_asks(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    asked = screen(project, "delete", "r")
    asked.until(lambda text: "delete run r (completed" in text, "the question")
    asked.type(b"n\n")
    asked.end()
    assert project.run_dir("r").exists()
    asked = screen(project, "delete", "r")
    asked.until(lambda text: "delete run r" in text, "the question")
    asked.type(b"y\n")
    asked.end()

    assert not project.run_dir("r").exists()


@pytest.mark.parametrize(
    ("variables", "words"),
    [({"TERM": "dumb"}, "started      scout"), ({"CI": "true"}, "started      scout")],
)
def test_lines_where_nothing_can_be_drawn(loop: Project, variables: dict[str, str], words: str) -> None:
    (loop.root / "go").touch()
    (loop.root / "fixed").touch()
    done = loop.rerail("run", "pipeline.yaml", check=0)
    assert words in done.stderr
    assert "\033" not in done.stderr
    tty = {"tty": True, "width": 80}
    assert not look({"TERM": "xterm", **variables}, **tty).live  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environ", "tty", "live", "colour", "unicode", "ci"),
    [
        ({"TERM": "xterm"}, True, True, True, True, ""),
        ({"TERM": "xterm"}, False, False, False, True, ""),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, True, False, True, ""),
        ({"TERM": "xterm", "FORCE_COLOR": "1"}, False, False, True, True, ""),
        ({"TERM": "xterm", "FORCE_COLOR": "1", "NO_COLOR": "1"}, True, True, False, True, ""),
        ({"TERM": "dumb"}, True, False, False, True, ""),
        ({"TERM": "xterm", "CI": "true"}, True, False, True, True, "plain"),
        ({"TERM": "xterm", "CI": "true", "GITHUB_ACTIONS": "true"}, False, False, False, True, "github"),
        ({"TERM": "xterm", "LC_ALL": "C"}, True, True, True, False, ""),
        ({"TERM": "xterm", "LANG": "de_DE.ISO-8859-1"}, True, True, True, False, ""),
    ],
)  # fmt: skip
def test_how_output_looks(environ: dict[str, str], tty: bool, live: bool, colour: bool, unicode: bool, ci: str) -> None:
    made = look(environ, tty=tty, width=80)

    assert (made.live, made.colour, made.unicode, made.ci) == (live, colour, unicode, ci)


@pytest.mark.scenario("M4")
def test_without_unicode_nothing_but_ascii_is_drawn(loop: Project) -> None:
    loop.env["LC_ALL"] = "C"
    (loop.root / "go").touch()
    (loop.root / "fixed").touch()
    shown = screen(loop, "run", "pipeline.yaml", "--id", "r")
    text = shown.end()

    assert "+ scout" in text
    assert text.isascii()


@pytest.mark.scenario("G5")
def test_a_terminal_that_vanishes_does_not_end_the_run_unseen(loop: Project) -> None:
    shown = screen(loop, "run", "pipeline.yaml", "--id", "r")
    shown.until(lambda text: "✓ tests" in text, "the board")
    shown.process.send_signal(signal.SIGHUP)
    text = shown.end()

    assert shown.process.returncode == 129
    assert "next: rerail resume r" in text
