"""Patterns a user wrote, in bounded time."""

from __future__ import annotations

import pytest

from tests.conftest import Project


@pytest.mark.scenario("V4")
def test_outputs_are_taken_from_stdout(project: Project) -> None:
    project.pipeline(
        """
steps:
  - {id: a, run: 'printf "one\\ntwo\\n\\n"', outputs: {t: {from: stdout}, l: {from: stdout, as: lines}}}
  - {id: b, run: 'echo "[1, null]"', outputs: {j: {as: json}}}
  - {id: c, run: 'head -c 2000000 /dev/zero', outputs: {big: {from: stdout}}, allow_failure: true}
  - {id: d, run: 'echo not json', outputs: {j: {as: json}}, allow_failure: true}
"""
    )
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    steps = project.json("show", "r")["steps"]

    assert steps[0]["outputs"] == {"t": "one\ntwo", "l": ["one", "two"]}
    assert steps[1]["outputs"] == {"j": [1, None]}
    assert "output `big`: stdout has 2000000 bytes; 1000000 at most" in done.stderr
    assert "output `j`: stdout is not JSON" in done.stderr


@pytest.mark.scenario("J8")
def test_a_pattern_that_would_take_for_ever_is_given_up(project: Project) -> None:
    endless = "echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa! >&2; exit 1"
    project.pipeline(
        f"steps: [{{id: a, run: {endless!r}, retry: {{attempts: 3, delay: 0, on: ['(a+)+$', '(\\d+\\.)+\\d+']}}}}]"
    )
    failed = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)

    assert "a: `(a+)+$` takes too long to look for" in failed.stderr
    assert project.json("show", "r")["steps"][0]["attempts"] == 1
