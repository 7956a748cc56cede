"""How attempts end: checks that do not pass, cannot start, and failures that are named."""

from __future__ import annotations

import pytest

from tests.conftest import Project
from tests.pipelines import dollars, note, pipeline, step

DEAR = 'echo "{\\"cost_usd\\": 5}" >> "$RERAIL_METRICS"; echo paid >> "$LEDGER"'


def test_a_check_that_cannot_start_leaves_the_step_its_cost(project: Project) -> None:
    (project.root / "sub").mkdir()
    project.pipeline(f"steps: [{{id: a, cwd: sub, run: '{DEAR}; rmdir \"$PWD\"', checks: ['true']}}]")
    failed = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)

    assert "a check could not start" in failed.stderr
    assert dollars(project) == 5


def test_a_step_has_failed_if_a_check_does_not_pass(project: Project) -> None:
    project.pipeline(
        """
steps:
  - id: a
    run: echo hello > a.txt
    checks: [test -s a.txt, "grep -q ${{ 'goodbye' }} a.txt"]
  - {id: b, write: {path: b.txt, content: x}, checks: ['grep -q x b.txt', 'echo checked >> $LEDGER']}
"""
    )
    failed = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    assert "check exited with code 1: grep -q ${{ 'goodbye' }} a.txt" in failed.stderr
    assert project.json("show", "r")["error"]["type"] == "CheckFailed"
    project.pipeline((project.root / "pipeline.yaml").read_text().replace("goodbye", "hello"))
    project.rerail("resume", check=0)

    assert project.ledger() == ["checked"]


@pytest.mark.parametrize(
    ("on", "script", "attempts"),
    [
        ("[rate_limit]", "echo 'HTTP 429 Too Many Requests' >&2; exit 1", 3),
        ("[rate_limit]", "echo other >&2; exit 1", 1),
        ("[7]", "exit 7", 3),
        ("[7]", "exit 8", 1),
        ("['connection (reset|refused)']", "echo connection refused >&2; exit 1", 3),
        ("[timeout]", "sleep 9", 3),
    ],
)
def test_only_what_retry_on_names_is_repeated(project: Project, on: str, script: str, attempts: int) -> None:
    retry = f"{{attempts: 3, delay: 0, on: {on}}}"
    project.pipeline(pipeline(step("a", note(script), retry=retry, timeout="0.2s" if "sleep" in script else "9s")))
    project.rerail("run", "pipeline.yaml", check=1)

    assert len(project.ledger()) == attempts
