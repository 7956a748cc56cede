"""checkpoint.json of runs that completed and failed."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

from rerail import testing
from rerail.core import events as ev
from rerail.core.checkpoint import checkpoint_of
from rerail.core.model import Pipeline, Run, Step
from rerail.core.state import fold
from tests.conftest import Project


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


AT = datetime(2026, 1, 1, tzinfo=UTC)


PIPELINE = Pipeline(
    name="p",
    steps=(Step(id="a", action=Run(script="make a")), Step(id="b", action=Run(script="make b"), needs=("a",))),
)


def test_the_checkpoint_of_a_completed_run() -> None:
    done: list[ev.Event] = [
        testing.started(),
        ev.StepStarted(at=AT, step="a", attempt=1),
        ev.StepCompleted(at=AT, step="a", attempt=1, duration=2.5, outputs={"n": 1}, output="ok"),
        ev.StepStarted(at=AT, step="b", attempt=1),
        ev.StepCompleted(at=AT, step="b", attempt=1, duration=1.0, metrics={"cost_usd": 1.5, "input_tokens": 10}),
        ev.RunFinished(at=AT, status="completed"),
    ]
    checkpoint = checkpoint_of(testing.header(), PIPELINE, fold(enumerate(done, 1)))

    assert checkpoint.status == "completed"
    assert (checkpoint.state.kind, checkpoint.state.step_index, checkpoint.reason) == ("completed", 1, "after_step")
    assert (checkpoint.last_completed_step, checkpoint.next_step, checkpoint.resumable) == ("b", None, False)
    assert (checkpoint.total_cost_usd, checkpoint.total_tokens) == (1.5, 10)
    assert checkpoint.steps[0].outputs == {"n": 1}


def test_the_checkpoint_of_a_failed_run_has_the_error_and_where_to_go_on() -> None:
    error = ev.Failure(
        type="ExitCode",
        message="exited with code 3",
        step="b",
        at=AT,
        exit_code=3,
        command="make b",
        stderr_tail="oh",
    )
    failed: list[ev.Event] = [
        testing.started(),
        ev.StepStarted(at=AT, step="a", attempt=1),
        ev.StepCompleted(at=AT, step="a", attempt=1, duration=2.5),
        ev.StepStarted(at=AT, step="b", attempt=1),
        ev.StepFailed(at=AT, step="b", attempt=1, duration=0.5, error=error),
        ev.RunFinished(at=AT, status="failed"),
    ]
    checkpoint = checkpoint_of(testing.header(), PIPELINE, fold(enumerate(failed, 1)))

    assert checkpoint.status == "failed"
    assert (checkpoint.state.kind, checkpoint.state.step_index, checkpoint.state.retryable) == ("failed", 1, True)
    assert checkpoint.reason == "step_failed"
    assert (checkpoint.last_completed_step, checkpoint.next_step, checkpoint.resumable) == ("a", "b", True)
    assert checkpoint.error == error


def test_the_type_of_a_pipeline_is_told(project: Project) -> None:
    project.pipeline("steps: [{id: m, map: {over: [1]}, steps: [{run: 'true'}]}]")
    project.pipeline("steps: [{id: l, loop: {max_iterations: 1}, steps: [{run: 'true'}]}]", "loop.yaml")
    project.pipeline("steps: [{run: 'true'}]", "plain.yaml")
    for name, kind in (("pipeline.yaml", "mapreduce"), ("loop.yaml", "iterative"), ("plain.yaml", "standard")):
        project.rerail("run", name, "--id", kind, check=0)
        checkpoint = json.loads((project.run_dir(kind) / "checkpoint.json").read_text())
        assert checkpoint["pipeline_type"] == kind
        assert project.json("show", kind)["pipeline_type"] == kind
