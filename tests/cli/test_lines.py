"""The reporter of lines: which events are worth one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rerail.cli.render.lines import LineReporter
from rerail.cli.render.terminal import Terminal
from rerail.core import events as ev
from rerail.core.state import RunState

AT = datetime(2026, 11, 18, tzinfo=UTC)
PLAIN = Terminal(unicode=False)


def lines(capfd: pytest.CaptureFixture[str], *elapsed: float, verbose: bool = False) -> list[str]:
    reporter = LineReporter("r", PLAIN, quiet=False, verbose=verbose)
    for seq, seconds in enumerate(elapsed):
        reporter.show(seq, ev.StepProgressed(at=AT, step="a", attempt=1, elapsed=seconds), RunState())
    return [line.partition("a: ")[2] for line in capfd.readouterr().err.splitlines()]


def test_progress_of_a_short_step_is_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert lines(capfd, 1.3) == []
    assert lines(capfd, 1.3, verbose=True) == ["1.3 s"]


def test_progress_of_a_long_step_is_a_line_now_and_then(capfd: pytest.CaptureFixture[str]) -> None:
    assert lines(capfd, 1, 30, 31, 50, 51) == ["30.0 s", "50.0 s"]
