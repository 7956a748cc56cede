"""Every example is run, killed at every step, and resumed: what was acknowledged stays, the result is the same."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Project

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
STEPS = {
    "context-foundry": (["scout", "planner", "builder", "reviewer"], ".buildloop/review-report.md", []),
    "implement-spec": (["branch", "implement", "test"], "merged.log", ["-p", "spec=123"]),
    "sequential": (["branch", "implement", "test", "review", "merge"], "merged.log", ["-p", "feature=login"]),
    "mapreduce": (["setup", "fix/change[debt-17]", "fix/check[debt-05]", "reduce"], "summary.txt", []),
    "iterative": (["draft", "polish/edit[1]", "polish/review[2]", "polish/edit[3]", "publish"], "published.md", []),
    "lessons": (["seed", "sow", "lessons[7]", "report"], "course/course_c84775.md", ["-p", "subject=physics"]),
}


SCORES = sorted(((number * 7 % 20, number) for number in range(1, 25) if number * 7 % 20 >= 5), key=lambda one: one[1])
WHOLE = {  # what they come to, however often they were killed
    "iterative": "".join(f"round {n}, after a score of {(n - 1) * 30}\n" for n in (1, 2, 3)) + "content after 3 rounds\n",
    "mapreduce": "".join(f"fixed debt-{number:02d}, which scored {score}\n" for score, number in SCORES)
    + f"{len(SCORES)} of {len(SCORES)} fixed, gain {sum(score for score, _ in SCORES)}\n",
}


@pytest.fixture
def example(project: Project, request: pytest.FixtureRequest) -> Project:
    shutil.copytree(EXAMPLES / request.param, project.root, dirs_exist_ok=True)
    project.env |= {"PACE": "0.05", "MODEL_PACE": "0.05", "GIT_CONFIG_GLOBAL": os.devnull}
    if request.param == "implement-spec":
        for command in ("init -q", "add .", "-c user.name=x -c user.email=x@y commit -qm first"):
            subprocess.run(["git", *command.split()], cwd=project.root, env=project.env, check=True)
    return project


def unit_of(event: dict[str, Any]) -> str:
    return event["step"] if event.get("item") is None else f"{event['step']}[{event['item']}]"


def kill_when_started(project: Project, step: str, arguments: list[str]) -> set[str]:
    """Start a run and kill it once that step has started; the steps the world was told are done."""
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--json", *arguments)
    acknowledged = set()
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "step-completed":
            acknowledged.add(unit_of(event))
        if event["event"] == "step-started" and unit_of(event) == step:
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    return acknowledged


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("example", "name", "step"),
    [(name, name, step) for name, (steps, _, _) in STEPS.items() for step in steps],
    indirect=["example"],
)
def test_an_example_that_is_killed_goes_on(example: Project, name: str, step: str) -> None:
    _, result, arguments = STEPS[name]
    acknowledged = kill_when_started(example, step, arguments)
    resumed = example.rerail("resume", "r", "--json", check=0)
    started = {
        unit_of(event) for line in resumed.stdout.splitlines() if (event := json.loads(line))["event"] == "step-started"
    }

    assert not acknowledged & started
    if name in WHOLE:
        assert (example.root / result).read_text() == WHOLE[name]
    assert (example.root / result).stat().st_size > 0
    assert example.json("show", "r")["status"] == "completed"


@pytest.mark.parametrize("example", ["lessons"], indirect=True)
def test_the_lessons_cost_what_the_model_took_and_the_list_tells(example: Project) -> None:
    meter = example.root.parent / "meter"
    example.env |= {"MODEL_METER": str(meter), "MODEL_FAILS": "0.2", "MODEL_PER_S": "30", "MODEL_SEED": "3"}
    for run_id, subject, level in (("20260109_143022", "mathematics", "national_5"), ("r2", "physics", "higher")):
        example.rerail(
            "run", "pipeline.yaml", "--id", run_id, "-p", f"subject={subject}", "-p", f"level={level}", check=0
        )
    listed = [line.split() for line in example.rerail("list", check=0).stdout.splitlines()]

    assert listed[0][:6] == ["RUN", "PIPELINE", "SUBJECT", "LEVEL", "STATUS", "STEPS"]
    assert listed[2][:7] == ["20260109_143022", "lessons", "mathematics", "national_5", "✓", "completed", "4/4"]
    paid = meter.read_text().count(" paid ")
    assert round(example.json("cost", "--by", "pipeline")["total"]["cost_usd"] * 100) == paid > 2 * 190
    (run,) = [row for row in example.json("list") if row["run_id"] == "r2"]
    assert run["total_tokens"] > 0
    assert f"${run['total_cost_usd']:.2f}" in listed[1]


@pytest.mark.parametrize("example", ["implement-spec"], indirect=True)
def test_a_step_that_forgets_to_commit_has_failed_and_is_retried_alone(example: Project) -> None:
    (example.root / "forget-to-commit").touch()
    failed = example.rerail("run", "pipeline.yaml", "--id", "r", "-p", "spec=123", check=1)
    assert "commit_required, but no commit was created; changed and not committed:" in failed.stderr
    assert not (example.root / "feature.txt").exists()  # the clean-up discarded it
    (example.root / "forget-to-commit").unlink(missing_ok=True)
    planned = example.rerail("resume", "r", check=0)

    assert "reuse  branch" in planned.stderr
    assert (example.root / "merged.log").read_text() == "Implement spec 123\n"


@pytest.mark.scenario("M9")
@pytest.mark.parametrize("example", ["context-foundry"], indirect=True)
@pytest.mark.parametrize("copies", [True, False], ids=["with copies", "without copies"])
def test_the_cascade_of_the_build_loop(example: Project, copies: bool) -> None:
    """Planner's and builder's reports are gone, the scout's is intact: healed, or rerun from the planner, line by line."""
    kill_when_started(example, "reviewer", [])
    reports = example.root / ".buildloop"
    before = {path.name: path.read_text() for path in reports.iterdir() if path.name != "review-report.md"}
    (reports / "build-claims.md").unlink()
    (reports / "current-plan.md").unlink()
    if not copies:
        shutil.rmtree(example.root / ".rerail" / "objects")

    resumed = example.rerail("resume", "r", "--json", "--verbose", check=0)

    lines = [line for line in resumed.stderr.splitlines() if line.startswith("[")]
    done = "restored from the content store" if copies else "rerunning {}"
    assert lines == [
        "[info] .buildloop/scout-report.md intact",
        f"[warn] .buildloop/current-plan.md missing -- {done.format('planner')}",
        f"[warn] .buildloop/build-claims.md missing -- {done.format('builder')}",
    ]
    events = [json.loads(line) for line in resumed.stdout.splitlines()]
    started = [event["step"] for event in events if event["event"] == "step-started"]
    assert started == (["reviewer"] if copies else ["planner", "builder", "reviewer"]) + ["tell"]
    saved = "reusing 1 of 4 steps, restoring 2, rerunning 1" if copies else "reusing 1 of 4 steps, rerunning 3"
    assert any(line.startswith(f"rerail: {saved}") for line in resumed.stderr.splitlines())
    assert {name: (reports / name).read_text() for name in before} == before


@pytest.mark.parametrize("example", ["approval"], indirect=True)
def test_the_example_with_an_approval_waits_for_it_and_publishes_once(example: Project) -> None:
    example.rerail("run", "pipeline.yaml", "--id", "r", "-p", "version=1.4", check=5)
    assert not (example.root / "published-1.4.md").exists()
    example.rerail("resume", "r", check=5)
    example.rerail("approve", "r", "ok", check=0)
    example.rerail("resume", "r", check=0)

    assert (example.root / "published-1.4.md").read_text().startswith("# Release 1.4\n")


def test_every_example_is_in_the_index() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == set(
        re.findall(r"\(([\w-]+)/pipeline.yaml\)", text)
    )
