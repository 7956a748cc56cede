"""`rerail check`: finds what `rerail run` would refuse, and warns of what would fail later."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.artifacts.pipelines import producer
from tests.conftest import Project
from tests.pipelines import pipeline

ROOT = Path(__file__).parent.parent.parent.parent


def diagnostics(project: Project, *arguments: str, check: int) -> list[dict[str, Any]]:
    found = json.loads(project.rerail("check", *arguments, "--json", check=check).stdout)
    assert isinstance(found, list)
    return found


def test_check_finds_what_run_would_refuse(project: Project) -> None:
    for wrong in (
        "[../x.txt]",
        "[.rerail/x]",
        "[{path: x.json, schema: none.json}]",
        "[{path: x.json, schema: pipeline.yaml}]",
    ):
        project.pipeline(pipeline(producer("a", "true", f"artifacts: {wrong}")))
        checked = project.rerail("check", "pipeline.yaml", check=2).stderr
        assert checked.splitlines()[0] == project.rerail("run", "pipeline.yaml", check=2).stderr.splitlines()[0]
        assert re.match(r"pipeline.yaml:\d+:\d+: error: step `a`", checked)
    assert project.ledger() == []


def test_many_files_are_checked_at_once(project: Project) -> None:
    project.pipeline("steps: [{run: x}]", "good.yaml")
    project.pipeline("steps: [{runn: x}]", "bad.yaml")
    project.pipeline("", "empty.yaml")
    checked = project.rerail("check", "good.yaml", "bad.yaml", "empty.yaml", "gone.yaml", check=2).stderr

    assert "bad.yaml:1:10: error: unknown key `runn`" in checked
    assert "empty.yaml:1:1: error: the file is empty" in checked
    assert "rerail: error: no such file: gone.yaml" in checked
    assert "good.yaml: OK (1 step, 0 params)" in checked
    assert checked.splitlines()[-1] == "  next: rerail check good.yaml bad.yaml empty.yaml"
    assert [one["file"] for one in diagnostics(project, "good.yaml", "bad.yaml", check=2)] == ["bad.yaml"]
    assert diagnostics(project, "good.yaml", check=0) == []
    assert not (project.root / ".rerail").exists()


def test_a_diagnostic_is_whole_as_json(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: x}, {run: x, needs: [aa]}]", "p.yaml")

    assert diagnostics(project, "p.yaml", check=2) == [
        {
            "file": "p.yaml",
            "line": 1,
            "column": 43,
            "end": 45,
            "severity": "error",
            "code": "unknown-step",
            "message": "unknown step `aa`",
            "help": "did you mean `a`?",
        }
    ]


def test_warnings_do_not_fail_unless_they_are_to(project: Project) -> None:
    project.pipeline(
        "params: {topic: x}\nsteps:\n"
        "  - {id: a, run: 'echo {{ params.topic }} $params.topic'}\n"
        "  - {id: b, when: \"steps.a.status == 'failure'\", run: 'true'}\n"
        "  - {id: c, when: \"steps.a.outputs.go == 'true'\", run: 'true'}\n"
        "  - {id: d, when: \"steps.e.outputs.go == 'true'\", needs: [e], run: 'true'}\n"
        "  - {id: e, run: 'echo true', outputs: {go: {from: stdout, as: text}}, needs: [c]}\n",
        "p.yaml",
    )
    found = diagnostics(project, "p.yaml", check=0)

    assert [(one["line"], one["code"], one["severity"]) for one in found] == [
        (3, "foreign-expression", "warning"),
        (3, "foreign-expression", "warning"),
        (4, "unknown-status", "warning"),
        (5, "quoted-value", "warning"),
    ]
    assert diagnostics(project, "--strict", "p.yaml", check=2) == found
    shown = project.rerail("check", "p.yaml", check=0).stderr
    assert re.search(r"^p.yaml:4:\d+: warning: the status of step `a` is never `failure`$", shown, re.MULTILINE)
    assert "4 warnings in p.yaml\n" in shown
    assert "p.yaml: OK (5 steps, 1 param)\n" in shown


@pytest.mark.privileges
def test_scripts_that_cannot_be_started_are_warned_about(project: Project) -> None:
    scripts = {"fine.sh": b"#!/bin/sh\n", "crlf.sh": b"#!/bin/sh\r\n", "odd.sh": b"#!/no/such\n", "plain.sh": b"echo\n"}
    for name, content in scripts.items():
        (project.root / name).write_bytes(content)
        (project.root / name).chmod(0o644 if name == "plain.sh" else 0o755)
    project.pipeline(
        "steps:\n  - run: ./fine.sh && ./crlf.sh\n  - run: ./odd.sh; ./plain.sh\n  - run: ./made.sh\n"
        "  - {run: cp fine.sh made.sh, artifacts: [made.sh]}\n  - run: |\n      cp fine.sh own.sh\n      ./own.sh\n"
        "  - {map: {over: [1]}, steps: [{run: ./fune.sh}]}\n  - {run: ./fine.sh, cwd: sub}\n",
        "p.yaml",
    )
    found = [
        (one["line"], one["message"].partition(": ")[2], one["help"]) for one in diagnostics(project, "p.yaml", check=0)
    ]

    assert [(line, message) for line, message, _ in found] == [
        (2, "./crlf.sh has Windows line endings"),
        (3, "the interpreter /no/such of ./odd.sh does not exist"),
        (3, "./plain.sh is not executable"),
        (9, "./fune.sh does not exist"),
        (10, "./fine.sh does not exist"),
    ]
    assert found[2][2] == "chmod +x ./plain.sh"
    assert found[3][2] == "did you mean `./fine.sh`?"


def test_a_step_that_cannot_start_its_script_says_why_and_is_not_retried(project: Project) -> None:
    (project.root / "plain.sh").write_text("echo\n")
    project.pipeline(
        "steps:\n  - {id: a, run: 'echo a >> $LEDGER; ./plain.sh', retry: {attempts: 3, delay: 0}}\n"
        "  - {id: b, needs: [], run: 'echo b >> $LEDGER; exit 127', retry: {attempts: 2, delay: 0, on: [127]}}\n"
    )
    shown = project.rerail("run", "pipeline.yaml", check=1).stderr

    assert "exited with code 126: ./plain.sh is not executable (chmod +x ./plain.sh)" in shown
    assert sorted(project.ledger()) == ["a", "b", "b"]


@pytest.mark.scenario("V1")
@pytest.mark.parametrize("wrong", ["", "\n   - x: [", "\n\t"])
def test_no_secret_is_shown_in_a_line_of_the_file(project: Project, wrong: str) -> None:
    project.env["TOKEN"] = "s3cr3t-t0ken-value"
    project.pipeline(f"secrets: [TOKEN]\nsteps: [{{runn: x, env: {{A: s3cr3t-t0ken-value}}}}]{wrong}\n", "p.yaml")
    shown = project.rerail("check", "p.yaml", check=2)
    as_json = project.rerail("check", "p.yaml", "--json", check=2)

    assert "s3cr3t" not in shown.stdout + shown.stderr + as_json.stdout + as_json.stderr
    assert wrong or "env: {A: ***}" in shown.stderr


def test_the_hook_of_pre_commit_checks_the_files_of_a_commit(project: Project) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    names = ["pipeline.yaml", "ci/rerail.yml", "docs.pipeline.yaml", "values.yaml", "pipeline.txt"]
    chosen = [name for name in names if re.search(hook["files"], name)]
    assert chosen == names[:3]
    (project.root / "ci").mkdir()
    for name in chosen:
        project.pipeline("steps: [{run: x}]", name)
    program, *arguments = shlex.split(hook["entry"])

    assert program == "rerail"
    project.rerail(*arguments, *chosen, check=0)
    project.pipeline("steps: [{}]", "ci/rerail.yml")
    assert "ci/rerail.yml:1:9: error: " in project.rerail(*arguments, *chosen, check=2).stderr
