"""Events for programs: the error of a failure says where it began and what to do next."""

from __future__ import annotations

import json

from tests.conftest import Project


def test_the_error_of_a_map_has_the_item_its_last_lines_its_command_and_the_next_one(project: Project) -> None:
    project.pipeline(
        "steps: [{id: m, map: {over: [a, b, c], parallel: 1}, steps: [{run: 'echo boom ${{ item }} >&2; exit 4'}]}]"
    )
    done = project.rerail("run", "pipeline.yaml", "--id", "r", "--json", check=1)
    failures = [row for row in map(json.loads, done.stdout.splitlines()) if row["event"] == "step-failed"]
    error = failures[-1]["error"]

    assert [row.get("item") for row in failures] == ["a", "b", "c", None]
    assert {key: error[key] for key in ("step", "item", "stderr_tail", "command", "next", "more")} == {
        "step": "m",
        "item": "a",
        "stderr_tail": "boom a",
        "command": "echo boom a >&2; exit 4",
        "next": "rerail dlq show r a",
        "more": "2 more items failed: rerail dlq list r",
    }
    assert error["message"].startswith("3 of 3 items failed")


def test_the_error_of_a_plain_step_has_them_too(project: Project) -> None:
    project.pipeline("steps: [{id: a, retry: {attempts: 2, delay: 0}, run: 'echo why >&2; exit 3'}]")
    done = project.rerail("run", "pipeline.yaml", "--id", "r", "--json", check=1)
    first, last = (row["error"] for row in map(json.loads, done.stdout.splitlines()) if row["event"] == "step-failed")

    assert "next" not in first  # another attempt follows
    assert (last["step"], last["item"], last["stderr_tail"]) == ("a", None, "why")
    assert (last["command"], last["next"]) == ("echo why >&2; exit 3", "rerail logs r a")
