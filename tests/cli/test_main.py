"""The command line: exit codes, help, what is said of mistakes and bugs."""

from __future__ import annotations

import os
import subprocess

import click
import pytest

from rerail.cli.main import COMMANDS, SYNONYMS, cli
from rerail.errors import UsageError
from tests.conftest import RERAIL, Project
from tests.pipelines import note, pipeline, step


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help_and_an_example(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.help
    assert (command.epilog or "").startswith("Example: rerail ")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_help_and_version_work_anywhere(project: Project) -> None:
    assert "resume" in project.rerail("--help", check=0).stdout
    assert project.rerail("--version", check=0).stdout.startswith("rerail, version ")
    for name in COMMANDS:
        assert "Example:" in project.rerail(name, "--help", check=0).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("resme",), 2, "did you mean `rerail resume`?"),
        (("frobnicate",), 2, "No such command"),
        (("run",), 2, "no pipeline.yaml"),
        (("run", "p.yaml", "--parallel", "0"), 2, "--parallel"),
        (("run", "p.yaml", "--id", "../x"), 2, "invalid run id"),
        (("run", "p.yaml", "--id", "last"), 2, "reserved"),
        (("run", "p.yaml", "-p", "x"), 2, "not NAME=VALUE"),
        (("run", "p.yaml", "-p", "x=1"), 2, "no param `x`"),
        (("run", "nothing.yaml"), 2, "no such file: nothing.yaml"),
        (("run", "p.yaml", "--store", "gopher://x"), 2, "unknown store `gopher`"),
        (("run", "p.yaml", "--resume", "--fresh"), 2, "exclude each other"),
        (("show",), 3, "no runs in"),
        (("show", "x"), 3, "no run 'x'"),
        (("resume",), 3, "no runs in"),
        (("resume", "../../etc"), 3, "no run"),
        (("history", "last"), 3, "no run 'last'"),
    ],
)
def test_mistakes_have_their_code_and_the_next_command(
    project: Project, arguments: tuple[str, ...], code: int, words: str
) -> None:
    project.pipeline("steps: [{run: 'true'}]", "p.yaml")
    refused = project.rerail(*arguments, check=code)

    assert words in refused.stderr
    assert "next: " in refused.stderr
    assert not (project.root / ".rerail").exists()


def test_commands_of_other_tools_lead_to_ours() -> None:
    words = "ls status ps rm clean lint validate retry continue cancel exec sessions resme"
    ours = "list show list delete prune check check resume resume stop run list resume"
    for word, command in zip(words.split(), ours.split(), strict=True):
        with pytest.raises(UsageError) as caught:
            cli.get_command(click.Context(cli), word)
        assert caught.value.message == f"no command {word!r}, did you mean `rerail {command}`?"
    assert set(SYNONYMS.values()) <= COMMANDS.keys()
    assert cli.get_command(click.Context(cli), "frobnicate") is None


def test_bugs_are_told_without_a_traceback_unless_asked(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from rerail.cli import main

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(main.cli, "main", broken)
    assert main.call(["list"]) == 70
    with pytest.raises(ZeroDivisionError):
        main.call(["--debug", "list"])


def test_bytes_that_are_no_text_are_refused_by_name(project: Project) -> None:
    project.pipeline(pipeline(step("a", note()), top="params: {x: ''}"))
    done = subprocess.run(
        [*(os.fsencode(word) for word in RERAIL), b"run", b"pipeline.yaml", b"-p", b"x=\xff"],
        cwd=project.root,
        env=project.env,
        capture_output=True,
        check=False,
    )

    assert done.returncode == 2
    assert b"must be UTF-8" in done.stderr
