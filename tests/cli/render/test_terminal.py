"""How to look where the output goes: live or in lines, in colour or not."""

from __future__ import annotations

import os

import pytest

from rerail.cli.render.terminal import look
from tests.conftest import Project


def test_colour_and_quiet(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}]")
    project.env["FORCE_COLOR"] = "1"
    assert "\033[32m" in project.rerail("run", "pipeline.yaml", check=0).stderr
    assert "\033[32m" in project.rerail("list", check=0).stdout
    project.env["NO_COLOR"] = "1"
    assert "\033" not in project.rerail("run", "pipeline.yaml", check=0).stderr + project.rerail("list").stdout
    assert project.rerail("run", "pipeline.yaml", "-q", check=0).stderr == ""
    assert "run started by process" in project.rerail("run", "pipeline.yaml", "-v", check=0).stderr
    assert os.environ.get("LEDGER") is None


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
