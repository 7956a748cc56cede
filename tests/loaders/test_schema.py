"""The published schema accepts what the loader accepts and refuses what it refuses by shape."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from rerail.loaders.document import parse
from rerail.loaders.schema import schema
from tests.conftest import Project

ROOT = Path(__file__).parent.parent.parent
GOOD = [
    "steps: [{run: x}]",
    "steps: [{id: a, python: 'm:f', with: {a: 1}}, {write: {path: a, content: b}, needs: a, when: true}]",
    """
name: x
params: {a: 1, b: {type: integer, choices: [1]}}
defaults: {timeout: 30m, retry: 2}
checkpoint: {interval: 5s, on_error: warn}
secrets: [A]
steps:
  - run: x
    retry: {attempts: 2, on: [rate_limit, 7]}
    outputs: {x: {from: stdout, as: json}, y: stdout}
    checks: [a]
    on_failure: [{run: y}]
    commit_required: true
finally: [{run: z}]
""",
    'steps: [{write: {path: a, mode: "0755"}, retry: {delay: 200ms}}]',
]
BAD = [
    "{}",
    "steps: []",
    "steps: [{}]",
    "steps: [{run: x, neds: [a]}]",
    "steps: [{run: x, python: 'a:b'}]",
    "steps: [{run: x, timeout: soon}]",
    "steps: [{run: x, retry: {attempts: 0}}]",
    "steps: [{python: nonsense}]",
    "steps: [{run: x, allow_failure: maybe}]",
    "stepps: [{run: x}]",
    "steps: [{id: a/b, run: x}]",
    "steps: [{run: x, outputs: {a: {as: xml}}}]",
    "steps: [{run: x, outputs: {a: stderr}}]",
    "steps: [{write: {path: a, mode: 755}}]",
]


def examples() -> list[str]:
    """Every pipeline in the README."""
    return re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize("text", [*GOOD, *examples()])
def test_good_files_are_accepted(project: Project, text: str) -> None:
    jsonschema.validate(parse(text).plain(), schema(), jsonschema.Draft7Validator)
    project.pipeline(text)
    project.rerail("check", "pipeline.yaml", check=0)


@pytest.mark.sweep("all")
@pytest.mark.parametrize("text", BAD)
def test_bad_files_are_refused_by_both(project: Project, text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(parse(text).plain(), schema(), jsonschema.Draft7Validator)
    project.pipeline(text)
    project.rerail("check", "pipeline.yaml", check=2)


def test_the_command_prints_a_valid_schema(project: Project) -> None:
    printed = json.loads(project.rerail("schema", check=0).stdout)

    jsonschema.Draft7Validator.check_schema(printed)
    assert printed == json.loads(json.dumps(schema()))
