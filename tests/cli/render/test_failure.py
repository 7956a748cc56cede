"""What is said of a failure: the item or step in which it began, its command, its last lines, and where to look."""

from __future__ import annotations

import pytest

from tests.cli.screen import screen
from tests.conftest import Project

MAP = """
params: {word: {default: "it's $HOME"}}
steps:
  - id: m
    map: {over: [a, b, c, d, -e], parallel: 1}
    steps:
      - run: 'case ${{ item }} in b|-e) echo boom on ${{ item }} >&2; echo ${{ params.word }}; exit 4;; esac'
"""
LOOP = """
steps:
  - id: lp
    loop: {max_iterations: 3}
    steps:
      - {id: one, run: 'true'}
      - {id: two, run: 'echo bad ${{ loop.iteration }} >&2; test ${{ loop.iteration }} = 1'}
"""
INNER = "name: inner\nsteps: [{id: deep, map: {over: [x]}, steps: [{id: in, run: 'echo deep down >&2; exit 7'}, {run: 'true'}]}]"


def said(text: str) -> list[str]:
    """The lines about the failure at the end."""
    lines = text.splitlines()
    return lines[max(at for at, line in enumerate(lines) if " failed: " in line and line.startswith("rerail: step")) :]


def test_a_failed_item_shows_its_command_its_last_lines_and_where_more_is(project: Project) -> None:
    project.pipeline(MAP)
    lines = said(project.rerail("run", "pipeline.yaml", "--id", "r", check=1).stderr)

    assert lines[1:] == [
        "  item: m[b]",
        """  command: case b in b|-e) echo boom on b >&2; echo 'it'"'"'s $HOME'; exit 4;; esac""",
        "  logs: rerail logs r m b",
        "  details: rerail dlq show r b",
        "  | boom on b",
        "  1 more item failed: rerail dlq list r",
        "  next: rerail resume r",
    ]
    assert "boom on b" in project.rerail(*lines[4].split()[2:], check=0).stdout
    assert "boom on b" in project.rerail(*lines[3].split()[2:], check=0).stdout


def test_the_box_on_a_terminal_has_the_same(project: Project) -> None:
    project.pipeline(MAP)
    text = screen(project, "run", "pipeline.yaml", "--id", "r").end()

    assert "│ item     m[b]" in text
    assert "│   boom on b" in text
    assert "│ details  rerail dlq show r b" in text
    assert "│ 1 more item failed: rerail dlq list r" in text


@pytest.mark.parametrize(
    ("pipeline", "unit", "line", "logs"),
    [
        (LOOP, "lp/two[2]", "bad 2", "rerail logs r lp/two 2"),
        ("steps: [{id: sub, pipeline: inner.yaml}]", "sub/deep/in[x]", "deep down", "rerail logs r sub/deep/in x"),
    ],
    ids=["a loop", "a map in a pipeline"],
)
def test_a_failure_inside_is_traced_to_the_step_in_which_it_began(
    project: Project, pipeline: str, unit: str, line: str, logs: str
) -> None:
    project.pipeline(pipeline)
    project.pipeline(INNER, "inner.yaml")
    lines = said(project.rerail("run", "pipeline.yaml", "--id", "r", check=1).stderr)

    assert f"  step: {unit}" in lines
    assert f"  logs: {logs}" in lines
    assert f"  | {line}" in lines
    assert line in project.rerail(*logs.split()[1:], check=0).stdout


def test_secrets_in_a_command_are_masked_before_it_is_cut(project: Project) -> None:
    secret = "s3cr3t-" + "x" * 60
    project.env["TOKEN"] = secret
    script = "a" * 1960 + "${{ env.TOKEN }}"
    project.pipeline(f"secrets: [TOKEN]\nsteps: [{{id: a, run: ': {script}; exit 1'}}]")
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    recorded = project.rerail("history", "r", "--json", check=0).stdout

    for text in (done.stderr, recorded):
        assert "s3cr3t" not in text
    assert "aaa'***'" in recorded
