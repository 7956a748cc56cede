"""Sessions in a pseudo-terminal: run, Ctrl-C, resume, at widths from 40 to 200."""

from __future__ import annotations

import re
import signal

import pytest

from tests.cli.screen import screen
from tests.conftest import Project


def test_a_run_is_drawn_while_it_goes_on_and_its_failure_is_framed(loop: Project) -> None:
    shown = screen(loop, "run", "pipeline.yaml", "--id", "r")
    text = shown.until(lambda text: "compiling module 5" in text and "✓ tests" in text, "both branches")

    assert re.search(r"build-loop  r  2/5 steps  [\d.]+ s  \$0\.42", text)
    assert re.search(r"✓ tests +[\d.]+ s  attempt 2 of 3", text)
    assert re.search(r"build +[\d.]+ s  ██████░░░░ 5/8  ETA [\d.]+ s", text)
    assert re.search(r"· review +waiting for build", text)
    assert re.search(r"· ship +waiting for review", text)
    (loop.root / "go").touch()
    last = shown.end()
    assert shown.process.returncode == 1
    assert "4/5 steps" not in last.splitlines()[0] or "failed" in last
    for words in ("✗ review", "╭─ step review failed: exited with code 1", "test -e fixed", "no such thing",
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
    assert re.search(r"PLAN +STEP +REASON .*COST", text)
    assert re.search(r"reuse  scout   completed +([\d.]+ s +)?\$0\.42", text)
    assert re.search(r"rerun  build   interrupted during attempt 1", text)
    assert "; saves" in text
    assert re.search(r"✓ build-loop  r  5/5 steps .* completed", text)
    assert loop.ledger() == ["build", "build"]


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
