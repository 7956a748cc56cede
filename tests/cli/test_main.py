"""The command line: exit codes, help, finding runs, what scripts read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from rerail.cli.main import COMMANDS, cli
from tests.conftest import Project

FAILING = "steps: [{id: a, run: 'echo n=1 >> $RERAIL_OUTPUT'}, {id: b, run: exit 1}]"
SHOW_NAMES = [
    "run_id",
    "pipeline",
    "pipeline_path",
    "pipeline_type",
    "work_dir",
    "worktree_path",
    "labels",
    "params",
    "status",
    "state",
    "reason",
    "created_at",
    "started_at",
    "updated_at",
    "finished_at",
    "duration_seconds",
    "steps",
    "last_completed_step",
    "next_step",
    "total_cost_usd",
    "total_tokens",
    "error",
    "resumable",
    "owner",
]
STEP_NAMES = [
    "id",
    "index",
    "status",
    "attempts",
    "command",
    "started_at",
    "finished_at",
    "duration_seconds",
    "output",
    "outputs",
    "metrics",
    "artifacts",
    "error",
]
ERROR_NAMES = [
    "type",
    "message",
    "step",
    "item",
    "command",
    "exit_code",
    "signal",
    "retryable",
    "stderr_tail",
    "traceback",
    "at",
    "variables",
]


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
        (("run",), 2, "Missing argument"),
        (("run", "p.yaml", "--parallel", "0"), 2, "--parallel"),
        (("run", "p.yaml", "--id", "../x"), 2, "cannot be a run id"),
        (("run", "p.yaml", "--id", "last"), 2, "reserved"),
        (("run", "p.yaml", "-p", "x"), 2, "not NAME=VALUE"),
        (("run", "p.yaml", "-p", "x=1"), 2, "no param `x`"),
        (("run", "nothing.yaml"), 2, "No such file"),
        (("run", "p.yaml", "--store", "gopher://x"), 2, "scheme `gopher:`"),
        (("run", "p.yaml", "--resume", "--fresh"), 2, "contradict"),
        (("show",), 2, "Missing argument 'RUN'"),
        (("show", "x"), 3, "no run 'x'"),
        (("resume",), 3, "there are no runs"),
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


def test_a_run_is_found_by_id_prefix_and_last(project: Project) -> None:
    project.pipeline(FAILING)
    for run_id in ("alpha-1", "alpha-2", "beta"):
        project.rerail("run", "pipeline.yaml", "--id", run_id, check=1)

    assert project.json("show", "last")["run_id"] == "beta"
    assert project.json("show", "b")["run_id"] == "beta"
    assert "it matches 2 runs" in project.rerail("show", "alpha", check=3).stderr
    assert "did you mean alpha-1 or alpha-2" in project.rerail("show", "alhpa-1", check=3).stderr


def test_scripts_find_every_promised_name(project: Project) -> None:
    project.pipeline(FAILING)
    project.rerail("run", "pipeline.yaml", "--id", "r", "--label", "team=docs", check=1)
    shown = project.json("show", "r")
    saved = json.loads((project.run_dir("r") / "checkpoint.json").read_text())

    assert set(SHOW_NAMES) <= set(shown)
    assert set(SHOW_NAMES) - {"owner"} | {"version", "journal", "integrity_hash"} <= set(saved)
    assert all(set(STEP_NAMES) <= set(step) for step in shown["steps"])
    assert set(ERROR_NAMES) <= set(shown["error"])
    assert set(shown["error"]) == set(saved["error"])
    assert shown["labels"] == {"team": "docs"}
    assert shown["owner"]["alive"] is False
    listed = project.json("list")
    assert set(listed[0]) <= set(SHOW_NAMES) | {
        "steps_completed",
        "steps_total",
        "items_done",
        "items_total",
        "dead_letters",
        "paused_for",
        "paused_until",
    }
    assert (listed[0]["steps_completed"], listed[0]["steps_total"]) == (1, 2)


def test_what_only_rerail_reads_is_apart_in_checkpoint_json_and_not_shown(project: Project) -> None:
    """Every other member is named by docs/reference/checkpoint.md."""
    page = (Path(__file__).parent.parent.parent / "docs/reference/checkpoint.md").read_text()
    project.pipeline(
        "steps:\n"
        "- {id: a, run: 'echo x > a.txt', artifacts: [a.txt]}\n"
        "- {id: m, map: {over: [1, 2]}, steps: [{id: i, run: 'true'}]}\n"
        "- {id: z, run: 'false'}\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    saved = json.loads((project.run_dir("r") / "checkpoint.json").read_text())
    shown = project.json("show", "r")

    by_id = {step["id"]: step for step in saved["steps"]}
    records = (saved, *saved["steps"], by_id["a"]["artifacts"][0], by_id["m"]["items"])
    assert all("internal" in record for record in records)
    assert {"seq", "pipeline_sha256"} <= set(saved["internal"])
    assert {"started_seq", "fingerprint"} <= set(by_id["a"]["internal"])
    assert {"stamp", "kept"} <= set(by_id["a"]["artifacts"][0]["internal"])
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", page))))
    assert {name for record in records for name in record} <= named
    assert '"internal"' not in json.dumps(shown)


def test_the_integrity_hash_is_what_the_format_says(project: Project) -> None:
    """With the member taken out of the text, as docs/reference/checkpoint.md tells anybody to do."""
    import hashlib

    project.pipeline(FAILING)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    text = (project.run_dir("r") / "checkpoint.json").read_text()
    before, _, after = text.partition(',\n  "integrity_hash": "')
    assert hashlib.sha256((before + "\n}").encode()).hexdigest() == after.removesuffix('"\n}\n')


@pytest.mark.scenario("K3")
def test_lists_are_newest_first_and_filtered(project: Project) -> None:
    project.pipeline(FAILING)
    project.pipeline("steps: [{run: 'true'}]", "other.yaml")
    project.rerail("run", "pipeline.yaml", "--id", "one", check=1)
    project.rerail("run", "other.yaml", "--id", "two", "--label", "team=docs", check=0)

    assert [run["run_id"] for run in project.json("list")] == ["two", "one"]
    assert [run["run_id"] for run in project.json("list", "--status", "failed")] == ["one"]
    assert [run["run_id"] for run in project.json("list", "--pipeline", "other")] == ["two"]
    assert [run["run_id"] for run in project.json("list", "--resumable")] == ["one"]
    assert [run["run_id"] for run in project.json("list", "--label", "team=docs")] == ["two"]
    assert [run["run_id"] for run in project.json("list", "--limit", "1")] == ["two"]
    assert [event["seq"] for event in project.json("history", "one")] == [6, 5, 4, 3, 2, 1]


@pytest.mark.scenario("M2")
def test_the_next_command_works_from_where_it_is_printed(project: Project) -> None:
    (project.root / "sub").mkdir()
    project.pipeline(FAILING, "sub/p.yaml")
    failed = project.rerail("run", "sub/p.yaml", "--id", "r", check=1)
    hint = failed.stderr.split("next: rerail ")[1].split("\n")[0]

    assert "no run" not in project.rerail(*hint.split(), check=1).stderr


def test_hooks_are_not_counted_as_steps(project: Project) -> None:
    project.pipeline(
        "steps: [{id: a, run: exit 1, on_failure: [{run: 'true'}]}]\nfinally: [{run: 'true'}, {run: 'true'}]"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    row = project.json("list")[0]

    assert (row["steps_completed"], row["steps_total"], row["last_completed_step"]) == (0, 1, None)
    assert "no matching run in" in project.rerail("list", "--status", "crashed", check=0).stderr


@pytest.mark.scenario("V2")
@pytest.mark.parametrize(
    "steering",
    [
        "\\033]0;title\\007\\033[2J",  # the title, and an empty screen
        "\\033]52;c;cm0gLXJm\\007",  # what is pasted next
        "\\033]8;;http://x\\033\\\\link",  # a link that says something else
        "\\033Pq#0\\033\\\\",  # a device control string
        "\\302\\233 2J",  # the same control in one character
        "\\r\\033[A\\033[K",  # the line above, written anew
        "\\342\\200\\256",  # from right to left
    ],
)
def test_what_a_step_prints_cannot_steer_the_terminal(project: Project, steering: str) -> None:
    (project.root / "steer").write_text(f"{steering}pwned", encoding="utf-8")
    project.pipeline("steps: [{id: a, run: 'printf \"$(cat steer)\" >&2; exit 1'}]")
    failed = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    shown = [failed.stderr, *(project.rerail(*command, "r").stdout for command in (["show"], ["history"]))]

    for text in shown:
        assert not set("\x1b\x9b\x07\r\u202e") & set(text), text
    assert "pwned" in failed.stderr


def test_bugs_are_told_without_a_traceback_unless_asked(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from rerail.cli import main

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(main.cli, "main", broken)
    assert main.call(["list"]) == 70
    with pytest.raises(ZeroDivisionError):
        main.call(["--debug", "list"])
