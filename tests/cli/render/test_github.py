"""Annotations and groups on GitHub Actions: at their line, ten at most, and no text is a command."""

from __future__ import annotations

import re

import pytest

from tests.conftest import Project

COMMAND = re.compile(r"^\s*::\w|##\[")


@pytest.fixture
def job(project: Project) -> Project:
    project.env |= {"CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(project.root)}
    return project


def commands(text: str) -> list[str]:
    """The commands that the runner finds: not those between stop-commands and its token."""
    found, stopped = [], ""
    for line in text.splitlines():
        if stopped:
            stopped = "" if line == f"::{stopped}::" else stopped
        elif COMMAND.search(line):
            stopped = line.removeprefix("::stop-commands::") if line.startswith("::stop-commands::") else ""
            found.append(line.partition("::stop-commands")[0] or "stop")
    return found


def test_a_failure_is_annotated_at_the_step_in_which_it_began(job: Project) -> None:
    job.pipeline("steps:\n  - {id: sub, pipeline: deep/inner.yaml}\n")
    (job.root / "deep").mkdir()
    job.pipeline(
        "steps:\n  - id: m\n    map: {over: [x]}\n    steps:\n      - {run: 'echo why >&2; exit 7'}\n", "deep/inner.yaml"
    )
    done = job.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    errors = [line for line in commands(done.stderr) if line.startswith("::error")]

    assert len(errors) == 1
    assert re.match(r"::error title=step sub failed,file=deep/inner\.yaml,line=[25]::", errors[0])
    assert "%0Ain sub/m[x]: exited with code 7%0A  why%0Anext: rerail dlq show r x" in errors[0]


def test_the_file_is_named_from_the_checkout(job: Project) -> None:
    job.env["GITHUB_WORKSPACE"] = str(job.root.parent)
    job.pipeline("steps: [{id: a, run: exit 1}]")
    for command in (["run", "pipeline.yaml", "--id", "r"], ["resume", "r"]):
        done = job.rerail(*command, check=1)
        assert "file=project/pipeline.yaml,line=1::" in done.stderr


def test_there_are_ten_annotations_and_a_line_about_the_others(job: Project) -> None:
    job.pipeline("steps:\n" + "".join(f"  - {{id: s{number}, needs: [], run: exit 1}}\n" for number in range(14)))
    done = job.rerail("run", "pipeline.yaml", "--id", "r", check=1)

    assert sum(line.startswith("::error") for line in commands(done.stderr)) == 10
    assert "rerail: 4 more failures not annotated (GitHub shows 10)\n  next: rerail show r" in done.stderr


def test_no_text_of_a_step_or_a_pipeline_is_a_command(job: Project) -> None:
    text = "x ##[error]no\\n::error::no\\n  ::set-output name=a::b"
    job.pipeline(
        f"""
secrets: []
steps:
  - {{id: a, run: 'printf "{text}\\n"'}}
  - {{id: b, python: 'boom:boom', allow_failure: true}}
  - {{id: m, map: {{over: ["##[add-mask]k"], max_failures: 1}}, steps: [{{run: 'printf "{text}\\n" >&2; exit 1'}}]}}
  - {{id: c, run: 'printf "{text}\\n" >&2; exit 1'}}
"""
    )
    (job.root / "boom.py").write_text(f'def boom():\n    raise ValueError("{text}")\n')
    for mode in ("grouped", "live", "failed"):
        process = job.spawn("run", "pipeline.yaml", "--output", mode)
        found = commands(process.communicate()[1])  # with a traceback of the step's own at the margin
        assert {line.split("::")[1].split()[0] if line != "stop" else line for line in found} <= {
            "group", "endgroup", "error", "stop", "warning",
        }, found  # fmt: skip
        assert not [line for line in found if "##[" in line]
        assert sum(line.startswith("::error") for line in found) == 1
        assert process.returncode == 1


def test_each_end_of_a_step_is_printed_once(job: Project) -> None:
    job.pipeline(
        "steps: [{id: a, run: echo said}, {id: b, run: 'true'}, {id: c, allow_failure: true, run: 'echo no; exit 1'}]"
    )
    lines = job.rerail("run", "pipeline.yaml", "--id", "r", check=0).stderr.splitlines()

    for words in ("started      a", "completed    a", "completed    b", "failed       c"):
        assert sum(words in line for line in lines) == 1, words
    assert [line.partition("  ")[2].split()[1] for line in lines if line.startswith("::group::")] == ["a", "c:"]


def test_a_warning_is_an_annotation_or_a_line_not_both(job: Project) -> None:
    job.pipeline("steps: [{id: m, map: {over: []}, steps: [{run: 'true'}]}]")
    lines = job.rerail("run", "pipeline.yaml", "--id", "r", check=0).stderr.splitlines()

    assert [line for line in lines if "no items" in line] == [
        "::warning::m: no items, so nothing of it runs; `min_items: 1` makes that a failure"
    ]


def test_the_text_of_an_error_is_no_command(job: Project) -> None:
    done = job.rerail("run", "##[add-mask]x.yaml", check=2)

    assert "add-mask" in done.stderr
    assert commands(done.stderr) == []
