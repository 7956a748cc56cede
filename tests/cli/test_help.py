"""`--help` of the commands with many options: each option once, under a heading, with its default."""

from __future__ import annotations

import re

import click
import pytest

from rerail.cli.commands.dlq import retry
from rerail.cli.commands.fork import fork
from rerail.cli.commands.resume import resume
from rerail.cli.commands.run import run
from rerail.cli.help import OTHER, SECTIONS, SectionedCommand


def shown(command: click.Command, width: int = 80) -> dict[str, str]:
    """Return the text under each heading of a command's help."""
    text = command.get_help(click.Context(command, terminal_width=width, help_option_names=["-h", "--help"]))
    assert max(map(len, text.splitlines())) <= width
    parts = re.split(r"^(\w.*):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("command", [run, resume, fork, retry])
def test_every_option_stands_once_under_a_heading(command: click.Command) -> None:
    assert isinstance(command, SectionedCommand)
    sections = shown(command)

    assert list(sections) == [name for name in (*SECTIONS, OTHER) if name in sections]
    assert sections[OTHER].split()[:2] == ["-h,", "--help"]
    assert len(sections[OTHER].splitlines()) <= 3  # an option that is in no section would be here
    together = "\n".join(sections.values())
    for option in command.params:
        if isinstance(option, click.Option):
            found = re.findall(rf"^  .*(?<!\S){re.escape(option.opts[-1])}(?=[ ,]|$)", together, re.MULTILINE)
            assert len([line for line in found if re.match("  -", line)]) == (not option.hidden), option.opts


def test_the_help_says_the_defaults() -> None:
    of_run, of_resume = shown(run, 200), shown(resume, 200)

    assert "[default: number of processors]" in of_run["Limits"]
    assert "--parallel N" in of_resume["Limits"]
    assert "[default: as recorded]" in of_resume["Limits"]
    assert "refuse to continue.  [default: rerun]" in of_resume["What to run"]
    assert "[default: full]" in of_resume["Artifacts"]
    assert "x>=1" not in of_run["Limits"]
