"""A budget holds through crashes and resumes; what it costs is counted once. The meter is outside."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time

import pytest

from tests.conftest import RERAIL, Project, eventually

WIDTH = 4
PRICE = 7  # cents an attempt
PIPELINE = """
budget: {cost_usd: %s}
steps:
  - id: m
    map: {over: {lines: list.txt}, parallel: 4}
    steps:
      - run: |
          echo "{\\"cost_usd\\": 0.07, \\"input_tokens\\": 10, \\"output_tokens\\": 1, \\"model\\": \\"m1\\"}" >> "$RERAIL_METRICS"
          echo "${{ item }}" >> "$LEDGER"
"""


def listed(project: Project, items: int) -> None:
    (project.root / "list.txt").write_text("".join(f"i{number}\n" for number in range(items)))


def cost(project: Project) -> int:
    """What the ledger of rerail says, in cents."""
    return round(float(project.json("cost", "r")["total"]["cost_usd"]) * 100)


def test_a_spent_budget_pauses_and_more_money_goes_on(project: Project) -> None:
    listed(project, 20)
    project.pipeline(PIPELINE % "0.50")
    paused = project.rerail("run", "pipeline.yaml", "--id", "r", check=5)

    assert "50 % of the budget is spent" in paused.stderr
    assert "run r is paused (budget): the budget is spent" in paused.stderr
    assert "rerail resume r --budget-usd " in paused.stderr
    meter = len(project.ledger()) * PRICE
    assert 50 <= meter <= 50 + WIDTH * PRICE
    assert cost(project) == meter
    again = project.rerail("resume", "r", check=5)
    assert "the budget is spent" in again.stderr
    assert len(project.ledger()) * PRICE == meter, "it went on without money"
    project.rerail("resume", "r", "--budget-usd", "100", check=0)
    assert sorted(set(project.ledger())) == sorted(f"i{number}" for number in range(20))
    assert cost(project) == len(project.ledger()) * PRICE


def test_the_budget_given_once_holds_for_later_lives(project: Project) -> None:
    listed(project, 20)
    project.pipeline(PIPELINE % "100")
    project.rerail("run", "pipeline.yaml", "--id", "r", "--budget-usd", "0.30", check=5)

    project.rerail("resume", "r", check=5)
    assert len(project.ledger()) * PRICE <= 30 + WIDTH * PRICE


def test_after_many_kills_the_ledger_is_the_meter_and_the_budget_held(project: Project) -> None:
    dice = random.Random(1)
    listed(project, 150)
    project.pipeline(PIPELINE % "9.00")
    command = [*RERAIL, "run", "pipeline.yaml", "--id", "r", "--resume", "-q"]
    kills = 0
    while True:
        grown = len(project.ledger()) + dice.randrange(1, 12) if kills < 15 else 10**9
        process = subprocess.Popen(
            command, cwd=project.root, env=project.env, stderr=subprocess.DEVNULL, start_new_session=True
        )
        while process.poll() is None and len(project.ledger()) < grown:
            time.sleep(0.001)
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert process.returncode == 5

    meter = len(project.ledger()) * PRICE
    # Whoever is on the meter has said before what it costs; who was killed in between is not on the meter.
    assert meter <= cost(project) <= meter + kills * WIDTH * PRICE
    assert meter <= 900 + (kills + 1) * WIDTH * PRICE
    assert cost(project) >= 900


@pytest.mark.parametrize("how", ["finish", "stop"])
def test_what_runs_when_the_budget_is_spent_finishes_or_is_stopped(project: Project, how: str) -> None:
    project.pipeline(f"""
budget: {{cost_usd: 1, on_exceed: {how}}}
steps:
  - {{id: dear, needs: [], run: 'echo "{{\\"cost_usd\\": 2}}" >> "$RERAIL_METRICS"'}}
  - {{id: slow, needs: [], run: 'sleep 0.5; echo slow >> "$LEDGER"'}}
  - {{id: next, run: echo next >> "$LEDGER"}}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "2", check=5)

    assert project.ledger() == (["slow"] if how == "finish" else [])


def test_tokens_and_time_are_budgets_too(project: Project) -> None:
    text = 'budget: {%s}\nsteps:\n  - {id: a, run: \'echo "{\\"input_tokens\\": 60, \\"output_tokens\\": 40}" >> "$RERAIL_METRICS"; sleep 0.3\'}\n  - {id: b, run: echo b >> "$LEDGER"}\n'
    for number, budget in enumerate(("tokens: 100", "time: 0.2s")):
        project.pipeline(text % budget)
        paused = project.rerail("run", "pipeline.yaml", "--id", f"r{number}", check=5)
        assert "the budget is spent" in paused.stderr
    assert project.ledger() == []


def test_max_runtime_pauses_and_the_next_life_has_its_own(project: Project) -> None:
    project.pipeline(
        'steps: [{id: a, run: "echo a >> $LEDGER; sleep 0.4"}, {id: b, run: "echo b >> $LEDGER; test -e ok || sleep 60"}]'
    )
    paused = project.rerail("run", "pipeline.yaml", "--id", "r", "--max-runtime", "1s", check=5)

    assert "--max-runtime 1 s is over" in paused.stderr
    assert project.ledger() == ["a", "b"]
    (project.root / "ok").touch()
    project.rerail("resume", "r", "--max-runtime", "1m", check=0)
    assert project.ledger() == ["a", "b", "b"]


def test_the_ledger_counts_what_failed_and_what_was_killed(project: Project) -> None:
    spend = 'echo "{\\"cost_usd\\": 0.1, \\"model\\": \\"m1\\"}" >> "$RERAIL_METRICS"'
    project.pipeline(f"""
steps:
  - {{id: flaky, retry: {{attempts: 3, delay: 0.01}}, run: '{spend}; echo x >> "$LEDGER"; test $(wc -l < "$LEDGER") -ge 3'}}
  - {{id: hangs, run: '{spend}; echo y >> "$LEDGER"; test -e ok || sleep 60'}}
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: len(project.ledger()) == 4, "the last one hangs")
    process.kill()
    process.communicate()
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)

    said = project.json("cost", "r")
    assert {row["name"]: (row["attempts"], row["failed"], row["cost_usd"]) for row in said["rows"]} == {
        "flaky": (3, 2, 0.3),
        "hangs": (2, 1, 0.2),
    }
    assert said["total"]["cost_usd"] == 0.5
    assert project.json("show", "r")["total_cost_usd"] == 0.5
    by_model = json.loads(project.rerail("cost", "--by", "model", "--json", check=0).stdout)
    assert [(row["name"], row["cost_usd"]) for row in by_model["rows"]] == [("m1", 0.5)]
    assert "flaky" in project.rerail("cost", "r", check=0).stdout
