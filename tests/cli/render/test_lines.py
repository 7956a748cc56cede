"""One line per event, and groups where CI folds them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from rerail.cli.render.lines import LineReporter
from rerail.cli.render.terminal import Terminal
from rerail.core import events as ev
from rerail.core.state import RunState
from tests.conftest import Project

AT = datetime(2026, 11, 18, tzinfo=UTC)
PLAIN = Terminal(unicode=False)


@pytest.mark.scenario("J16")
def test_github_gets_groups_and_annotations_and_no_commands_from_steps(project: Project) -> None:
    project.pipeline(
        "steps:\n  - {id: a, run: 'echo hello; echo ::set-output name=x::y'}\n  - {id: b, run: 'echo 50% >&2; exit 3'}\n"
    )
    project.env |= {"CI": "true", "GITHUB_ACTIONS": "true"}
    lines = project.rerail("run", "pipeline.yaml", check=1).stderr.splitlines()

    start = next(at for at, line in enumerate(lines) if line.startswith("::group::") and "completed    a" in line)
    assert lines[start + 1].startswith("::stop-commands::")
    assert lines[start + 2 : start + 4] == ["hello", "::set-output name=x::y"]
    assert lines[start + 4] == f"::{lines[start + 1].removeprefix('::stop-commands::')}::"
    assert lines[start + 5] == "::endgroup::"
    assert (
        "::error title=step b failed,file=pipeline.yaml,line=3::"
        f"exited with code 3%0A  50%25%0Anext: rerail logs {lines[0].split()[2][:-1]} b"
    ) in lines
    assert sum("completed    a" in line for line in lines) == 1  # in the title of its group


@pytest.mark.scenario("J16")
def test_lines_about_items_are_one_line_each(project: Project) -> None:
    (project.root / "l.json").write_text(json.dumps(["x\n::error::y"]))
    project.env["CI"] = "1"
    project.pipeline("steps: [{id: m, map: {over: {json: l.json}, max_failures: 1}, steps: [{run: 'exit 1'}]}]")
    done = project.rerail("run", "pipeline.yaml", "--id", "r", "-v", check=0)

    assert not [line for line in done.stderr.splitlines() if line.startswith("::")]


def test_where_output_is_printed_an_attempt_of_an_item_that_is_repeated_is_told(project: Project) -> None:
    project.pipeline(
        "steps: [{id: m, map: {over: [one]}, steps: [{id: a, run: 'echo $RERAIL_ATTEMPT; test $RERAIL_ATTEMPT = 2',"
        " retry: {attempts: 2, delay: 0}}, {id: b, run: 'true'}]}]"
    )
    quiet = project.rerail("run", "--fresh", check=0).stderr
    shown = project.rerail("run", "--fresh", "--output", "live", check=0).stderr

    assert "m/a[one]" not in quiet
    of_item = [line.partition("m/a[one]")[2] for line in shown.splitlines() if "m/a[one]" in line]
    assert sorted(of_item) == [" | 1", " | 2", ": exited with code 1; attempt 2 of 2 in 0.0 s"]


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
