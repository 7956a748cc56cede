"""`rerail show`: the names that scripts read."""

from __future__ import annotations

import json

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
        "active_seconds",
        "items_done",
        "items_total",
        "dead_letters",
        "paused_for",
        "paused_until",
    }
    assert (listed[0]["steps_completed"], listed[0]["steps_total"]) == (1, 2)
