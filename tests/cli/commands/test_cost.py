"""`rerail cost`: every attempt counts once."""

from __future__ import annotations

import json
import re
import signal

import pytest

from tests.conftest import Project, eventually
from tests.pipelines import dollars, note, pipeline, step


def cost(project: Project) -> int:
    """What the ledger of rerail says, in cents."""
    return round(float(project.json("cost", "r")["total"]["cost_usd"]) * 100)


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
    assert "0 tokens" not in project.rerail("show", "r", check=0).stdout
    by_model = json.loads(project.rerail("cost", "--by", "model", "--json", check=0).stdout)
    assert [(row["name"], row["cost_usd"]) for row in by_model["rows"]] == [("m1", 0.5)]
    text = project.rerail("cost", "r", check=0).stdout
    assert "flaky" in text
    assert "LOST: attempts that failed or were interrupted" in text


def test_rows_add_up_to_the_total_or_it_is_said_why(project: Project) -> None:
    spend = 'echo "{\\"cost_usd\\": 0.1, \\"model\\": \\"m1\\"}" >> "$RERAIL_METRICS"'
    project.pipeline(f"steps: [{{id: paid, run: '{spend}'}}, {{id: free, run: 'true'}}, {{id: too, run: 'true'}}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    by_step = project.rerail("cost", "r", check=0).stdout
    assert "free" not in by_step
    assert "not shown: 2 steps without cost or tokens (2 attempts)" in by_step
    assert "2 attempts reported nothing" in project.rerail("cost", "r", "--by", "model", check=0).stdout


def test_a_map_a_loop_and_a_pipeline_cost_what_is_in_them(project: Project) -> None:
    spend = 'echo "{\\"cost_usd\\": 0.10}" >> "$RERAIL_METRICS"'
    (project.root / "inner.yaml").write_text(f"steps: [{{id: i, run: '{spend}'}}]", encoding="utf-8")
    project.pipeline(f"""
steps:
  - id: m
    map: {{over: [1, 2], parallel: 1}}
    steps: [{{id: a, run: '{spend}'}}, {{id: b, run: 'test -e on || kill -9 $PPID; test -e on'}}]
  - {{id: l, needs: [m], loop: {{max_iterations: 2}}, steps: [{{id: x, run: '{spend}'}}]}}
  - {{id: sub, pipeline: inner.yaml}}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "1", check=-9)
    planned = project.rerail("resume", "r", "--dry-run").stderr
    assert project.json("cost", "r")["total"]["cost_usd"] == 0.1
    assert "reusing 0 of 3 steps, continuing 1" in planned
    assert re.search(r"saves (\S+ s and )?\$0\.10\n", planned)
    (project.root / "on").touch()
    project.rerail("resume", "r", check=0)
    costs = {one["id"]: one["metrics"]["cost_usd"] for one in project.json("show", "r")["steps"] if "item" not in one}
    shown = project.rerail("show", "r", check=0).stdout

    assert costs["m"] == costs["l"] == 0.2
    assert costs["sub"] == 0.1
    assert shown.count("$0.20") == 2
    assert project.json("show", "r")["total_cost_usd"] == 0.5


def test_attempts_that_reported_nothing_are_attempts(project: Project) -> None:
    spend = 'echo "{\\"cost_usd\\": 0.10}" >> "$RERAIL_METRICS"'
    project.pipeline(f"""
steps:
  - {{id: a, retry: {{attempts: 3, delay: 0}}, run: 'test "$RERAIL_ATTEMPT" = 3 && {spend}'}}
  - {{id: free, run: 'true'}}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    said = project.json("cost", "r")

    assert [(row["name"], row["attempts"], row["failed"]) for row in said["rows"]] == [("a", 3, 2), ("free", 1, 0)]


def test_days_are_those_of_this_machine(project: Project) -> None:
    project.pipeline("""steps: [{id: a, run: 'echo "{\\"cost_usd\\": 1}" >> "$RERAIL_METRICS"'}]""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    days = set()
    for zone in ("Etc/GMT+12", "Etc/GMT-14"):  # there is always a day between them
        project.env["TZ"] = zone
        days |= {row["name"] for row in project.json("cost", "r", "--by", "day")["rows"]}
    assert len(days) == 2
    assert project.json("cost", "r", "--since", "999999d")["total"]["cost_usd"] == 1


@pytest.mark.parametrize(("zone", "day"), [("Etc/GMT+12", "9999-12-31T23:00"), ("Etc/GMT-14", "0001-01-01T01:00")])
def test_a_day_that_no_calendar_here_reaches_is_none(project: Project, zone: str, day: str) -> None:
    project.env["TZ"] = zone
    assert "neither a day such as " in project.rerail("cost", "--since", day, check=2).stderr


DEAR = 'echo "{\\"cost_usd\\": 5}" >> "$RERAIL_METRICS"; echo paid >> "$LEDGER"'


def test_the_command_of_a_map_costs_what_it_reports(project: Project) -> None:
    project.pipeline(f"""
budget: {{cost_usd: 3}}
steps:
  - id: m
    map: {{over: {{command: '{DEAR}; echo x'}}}}
    steps: [{{run: 'echo ran >> "$LEDGER"'}}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)

    assert project.ledger() == ["paid"]
    assert dollars(project) == 5
    project.rerail("resume", "r", "--budget-usd", "20", check=0)
    assert project.ledger() == ["paid", "ran"]  # the list was made once
    assert dollars(project) == 5


def kill_in(project: Project, name: str, *arguments: str) -> None:
    """Run until that step has said so in the ledger once more, and kill."""
    before = project.ledger().count(name)
    process = project.spawn(*arguments)
    eventually(lambda: project.ledger().count(name) == before + 1, f"{name} runs")
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_money_is_counted_whatever_happens(project: Project) -> None:
    spend = """echo '{"cost_usd": 5}' >> $RERAIL_METRICS\n"""
    project.pipeline(
        pipeline(
            step("cut", spend + note("test -e go || sleep 60")),
            step("bad-output", spend + "echo nonsense >> $RERAIL_OUTPUT", allow_failure="true"),
            step("huge", "echo '{\"cost_usd\": 1e308}' >> $RERAIL_METRICS\n" * 2 + spend),
            step("fails", spend + "exit 1", retry="{attempts: 2, delay: 0}", allow_failure="true"),
        )
    )
    kill_in(project, "cut", "run", "pipeline.yaml", "--id", "r")
    (project.root / "go").touch()
    done = project.rerail("resume", "r", check=0)

    assert project.json("show", "r")["total_cost_usd"] == 30
    assert "huge: $RERAIL_METRICS line 1: cost_usd is not a number that can be counted" in done.stderr
    (project.run_dir("r") / "checkpoint.json").unlink()
    assert project.json("show", "r")["total_cost_usd"] == 30
