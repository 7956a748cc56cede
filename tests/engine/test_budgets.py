"""A budget holds through crashes and resumes; what it costs is counted once. The meter is outside."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time

import pytest

from tests.conftest import RERAIL, Project, eventually
from tests.sweeps import part
from tests.wrong_clock import SetClock

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


KILLS = part(8, 50)
DOLLARS = part(6, 24)


METERED = """
budget: {cost_usd: %s}
steps:
  - id: m
    map: {over: {lines: list.txt}, parallel: 4}
    steps:
      - run: |
          echo '{"cost_usd": 0.07, "input_tokens": 10}' >> "$RERAIL_METRICS"
          echo "${{ item }} $RERAIL_ATTEMPT 7" >> "$LEDGER"
          echo '{"cost_usd": 0.02}' >> "$RERAIL_METRICS"
          echo "${{ item }} $RERAIL_ATTEMPT 2" >> "$LEDGER"
"""


@pytest.mark.sweep(1)
def test_after_fifty_kills_the_ledger_is_the_meter_to_the_cent_and_the_budget_held(project: Project) -> None:
    """What an attempt pays it says first and then puts on the meter: what is on the meter could be known."""
    dice = random.Random(1)
    listed(project, 400)
    project.pipeline(METERED % DOLLARS)
    command = [*RERAIL, "run", "pipeline.yaml", "--id", "r", "--resume", "-q"]
    kills = 0
    while True:
        grown = len(on_meter(project)) + dice.randrange(1, 9) if kills < KILLS else 10**9
        process = subprocess.Popen(
            command, cwd=project.root, env=project.env, stderr=subprocess.DEVNULL, start_new_session=True
        )
        while process.poll() is None and len(on_meter(project)) < grown:
            time.sleep(0.001)
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert (process.returncode, kills) == (5, KILLS)

    meter: dict[tuple[str, int], int] = {}
    for item, attempt, paid in on_meter(project):
        meter[item, int(attempt)] = meter.get((item, int(attempt)), 0) + int(paid)
    said = project.json("cost", "r")
    ledger = {(one["item"], one["attempt"]): round(one["metrics"].get("cost_usd", 0) * 100) for one in said["attempts"]}
    assert None not in {item for item, _ in ledger}, "the map itself is no attempt"
    assert len(ledger) == len(said["attempts"]), "an attempt is counted once"
    for one, cents in meter.items():
        # One that was killed between saying it and the meter has said more by one instalment.
        assert ledger[one] == cents or ledger[one] == cents + 2 < 10, (one, ledger[one], cents)
    unmetered = [cents for one, cents in ledger.items() if one not in meter]
    assert set(unmetered) <= {0, 7}, "killed before it paid, or before it was on the meter"
    assert len(unmetered) <= KILLS * WIDTH
    total = sum(ledger.values())
    assert round(said["total"]["cost_usd"] * 100) == total == round(project.json("show", "r")["total_cost_usd"] * 100)
    assert DOLLARS * 100 <= total <= DOLLARS * 100 + WIDTH * 9, "exceeded by more than what was under way"


def on_meter(project: Project) -> list[list[str]]:
    lines = project.ledger_file.read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if line.count(" ") == 2]


SPEND = 'echo "{\\"cost_usd\\": %s}" >> "$RERAIL_METRICS"'


@pytest.mark.parametrize("how", ["finish", "stop"])
def test_a_step_has_a_budget_of_its_own_and_others_go_on(project: Project, how: str) -> None:
    listed(project, 12)
    text = f"""
steps:
  - {{id: free, needs: [], run: 'sleep 0.3; echo free >> "$LEDGER"'}}
  - id: m
    needs: []
    budget: {{cost_usd: 0.30, on_exceed: {how}}}
    map: {{over: {{lines: list.txt}}, parallel: 2}}
    steps: [{{run: '{SPEND % 0.1}; echo ${{{{ item }}}} >> "$LEDGER"; test -e on || test "$RERAIL_ITEM" != "\\"i3\\"" || sleep 9'}}]
"""
    if how == "finish":
        text = text.replace("sleep 9", "true")
    project.pipeline(text)
    paused = project.rerail("run", "pipeline.yaml", "--id", "r", check=5)

    assert "75 % of the budget of m is spent" in paused.stderr or "50 % of the budget of m is spent" in paused.stderr
    assert "paused (budget): the budget of m is spent: $0." in paused.stderr
    assert "raise that budget in the pipeline file, then rerail resume r" in paused.stderr
    spent = [item for item in project.ledger() if item != "free"]
    assert 3 <= len(spent) <= 4
    assert "free" in project.ledger(), "what costs nothing goes on"
    again = project.rerail("resume", "r", check=5)
    assert "the budget of m is spent" in again.stderr
    assert [item for item in project.ledger() if item != "free"] == spent, "it went on without money"
    (project.root / "on").touch()
    project.pipeline(text.replace("0.30", "30"))
    project.rerail("resume", "r", check=0)
    assert set(project.ledger()) == {"free", *(f"i{n}" for n in range(12))}
    assert project.ledger().count("free") == 1


def test_an_item_has_a_budget_and_does_not_hold_the_others_up(project: Project) -> None:
    text = f"""
steps:
  - id: m
    map: {{over: [a, b, c], parallel: 1, item_budget: {{cost_usd: 0.25}}}}
    steps:
      - {{id: think, run: '{SPEND % 0.1}; echo think-${{{{ item }}}} >> "$LEDGER"'}}
      - {{id: write, retry: {{attempts: 9, delay: 0}}, run: '{SPEND % 0.1}; echo ${{{{ item }}}} >> "$LEDGER"; test ${{{{ item }}}} != b || test -e ok'}}
"""
    project.pipeline(text)
    paused = project.rerail("run", "pipeline.yaml", "--id", "r", check=5)

    assert "the budget of m[b] is spent: $0.30 of $0.25" in paused.stderr
    assert project.ledger() == ["think-a", "a", "think-b", "b", "b", "think-c", "c"]
    project.rerail("resume", "r", check=5)
    assert len(project.ledger()) == 7
    (project.root / "ok").touch()
    project.pipeline(text.replace("0.25", "1"))
    project.rerail("resume", "r", check=0)
    assert project.ledger()[7:] == ["b"]


def test_what_a_long_step_had_done_and_cost_survives_a_power_cut(project: Project) -> None:
    project.pipeline("""
checkpoint: {interval: 0.2s}
steps:
  - id: long
    run: |
      test ! -e ok || exit 0
      echo '{"cost_usd": 0.42, "model": "m1"}' >> "$RERAIL_METRICS"; echo '{"done": 7, "total": 18}' >> "$RERAIL_PROGRESS"
      dirname "$RERAIL_METRICS" > channel; sleep 60
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")

    def saved() -> bool:
        return (project.root / "channel").exists() and "progress" in project.json("show", "r")["steps"][0]

    eventually(saved, "it is saved while it runs")
    process.kill()
    process.communicate()
    shutil.rmtree((project.root / "channel").read_text().strip())  # the memory of a machine that lost its power

    shown = project.rerail("show", "r", check=0).stdout
    assert "7 of 18, $0.42" in shown
    assert "plus $0.42 by attempts in flight" in shown
    assert project.json("cost", "r")["total"]["cost_usd"] == 0.42, "the last known figure"
    assert "7 of 18, $0.42" in project.rerail("resume", "r", "--dry-run", check=0).stderr
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)
    said = project.json("cost", "r", "--by", "model")
    assert [(row["name"], row["cost_usd"]) for row in said["rows"]] == [("m1", 0.42)]
    assert said["attempts"][0]["seconds"] >= 1


def test_the_budget_of_a_step_counts_what_a_killed_attempt_cost_and_so_does_a_mark(project: Project) -> None:
    project.pipeline(f"""
steps: [{{id: a, budget: {{cost_usd: 1}}, run: 'echo x >> "$LEDGER"; {SPEND % 5}; echo y >> "$LEDGER"; sleep 60'}}]
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["x", "y"], "it has spent")
    process.kill()
    process.communicate()
    project.rerail("resume", "r", check=5)
    assert project.ledger() == ["x", "y"], "the next life did not know what was spent"

    process = project.spawn("run", "pipeline.yaml", "--id", "other")
    eventually(lambda: len(project.ledger()) == 4, "it has spent")
    process.kill()
    process.communicate()
    project.rerail("mark", "other", "a", "pending", check=0)
    assert project.json("cost", "other")["total"]["cost_usd"] == 5


def test_so_does_the_budget_of_a_step(project: Project) -> None:
    text = f"""
checkpoint: {{interval: 0.2s}}
steps:
  - {{id: greedy, needs: [], budget: {{cost_usd: 1, on_exceed: stop}}, run: 'echo x >> "$LEDGER"; {SPEND % 2}; test -e ok || sleep 60'}}
  - {{id: other, needs: [], run: 'sleep 0.5; echo other >> "$LEDGER"'}}
"""
    project.pipeline(text)
    paused = project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "2", check=5)

    assert "the budget of greedy is spent: $2.00 of $1.00" in paused.stderr
    assert project.ledger() == ["x", "other"]
    (project.root / "ok").touch()
    project.pipeline(text.replace("cost_usd: 1,", "cost_usd: 9,"))
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["x", "other", "x"]


def test_a_budget_sees_what_a_running_attempt_has_spent(project: Project) -> None:
    project.pipeline(f"""
checkpoint: {{interval: 0.2s}}
budget: {{cost_usd: 1, on_exceed: stop}}
steps: [{{id: greedy, run: 'echo x >> "$LEDGER"; {SPEND % 2}; sleep 60'}}, {{id: next, run: echo next >> "$LEDGER"}}]
""")
    paused = project.rerail("run", "pipeline.yaml", "--id", "r", check=5)

    assert "the budget is spent: $2.00 of $1.00 ($1.00 over" in paused.stderr
    assert project.ledger() == ["x"]
    assert project.json("show", "r")["total_cost_usd"] == 2


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
        assert "next: raise that budget in the pipeline file" in paused.stderr
    assert project.ledger() == []


def test_max_runtime_pauses_and_the_next_life_has_its_own(project: Project) -> None:
    project.pipeline(
        'steps: [{id: a, run: "echo a >> $LEDGER; sleep 0.4"}, {id: b, run: "echo b >> $LEDGER; test -e ok || sleep 60"}]'
    )
    paused = project.rerail("run", "pipeline.yaml", "--id", "r", "--max-runtime", "1s", check=5)

    assert "--max-runtime 1 s is reached" in paused.stderr
    assert project.ledger() == ["a", "b"]
    (project.root / "ok").touch()
    project.rerail("resume", "r", "--max-runtime", "1m", check=0)
    assert project.ledger() == ["a", "b", "b"]


def test_a_budget_that_stops_stops_when_it_is_seen_and_says_what_was_spent_in_the_end(project: Project) -> None:
    project.pipeline("""
budget: {cost_usd: 0.10, on_exceed: stop}
checkpoint: {interval: 2s}
steps:
  - {id: a, run: 'while :; do echo "{\\"cost_usd\\": 0.03}" >> "$RERAIL_METRICS"; sleep 0.1; done'}
""")
    said = project.rerail("run", "pipeline.yaml", "--id", "r", check=5).stderr
    spent = project.json("cost", "r")["total"]["cost_usd"]
    progressed = [one for one in project.json("history", "r") if one["event"] == "step-progressed"]

    assert f"the budget is spent: ${spent:.2f} of $0.10 (${spent - 0.10:.2f} over" in said
    assert [one["metrics"]["cost_usd"] > 0.10 for one in progressed].count(True) == 1, "it is not looked at twice first"


def test_a_pipeline_that_is_a_step_keeps_its_budget(project: Project) -> None:
    spend = 'echo "{\\"cost_usd\\": 0.10}" >> "$RERAIL_METRICS"; echo ${{ steps_name }} >> "$LEDGER"'
    one, two = (f"{{id: {name}, run: '{spend.replace('${{ steps_name }}', name)}'}}" for name in ("one", "two"))
    (project.root / "inner.yaml").write_text(f"budget: {{cost_usd: 0.05}}\nsteps: [{one}, {two}]\n", encoding="utf-8")
    project.pipeline("steps: [{id: sub, pipeline: inner.yaml}]")
    said = project.rerail("run", "pipeline.yaml", "--id", "r", check=5).stderr

    assert "the budget of sub is spent: $0.10 of $0.05 ($0.05 over" in said
    assert project.ledger() == ["one"]
    (project.root / "inner.yaml").write_text(f"budget: {{cost_usd: 1}}\nsteps: [{one}, {two}]\n", encoding="utf-8")
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["one", "two"]


def test_what_an_attempt_left_behind_is_known_before_anybody_resumes_and_wherever_that_is(project: Project) -> None:
    """Killed before anything of it was saved; resumed by who has another environment."""
    text = """
checkpoint: {interval: 1h}
steps:
  - id: a
    run: |
      if test -e again; then exit 0; fi
      echo '{"cost_usd": 4}' >> "$RERAIL_METRICS"; echo '{"done": 2, "total": 9}' >> "$RERAIL_PROGRESS"
      echo a >> "$LEDGER"; sleep 60
"""
    project.pipeline(text)
    here, there = project.root / "here", project.root / "there"
    for place in (here, there):
        place.mkdir()
    process = subprocess.Popen(
        [*RERAIL, "run", "pipeline.yaml", "--id", "r", "-q"],
        cwd=project.root,
        env={**project.env, "XDG_RUNTIME_DIR": str(here)},
    )
    eventually(lambda: project.ledger() == ["a"], "it has paid")
    process.kill()
    process.wait()
    project.env["XDG_RUNTIME_DIR"] = str(there)

    shown = project.rerail("show", "r", check=0).stdout
    assert "$4.00" in shown
    assert "2 of 9" in shown
    assert project.json("cost", "r")["total"]["cost_usd"] == 4
    (project.root / "again").touch()
    project.rerail("resume", "r", check=0)
    assert project.json("cost", "r")["total"]["cost_usd"] == 4
    assert not [*here.iterdir(), *there.iterdir()], "nothing raw stays behind"


@pytest.mark.parametrize("amount", ["nan", "inf", "0", "-1", "1e10"])
def test_a_budget_that_is_no_amount_is_refused(project: Project, amount: str) -> None:
    project.pipeline("steps: [{id: a, run: 'echo a >> $LEDGER'}]")
    project.rerail("run", "pipeline.yaml", "--budget-usd", amount, check=2)
    assert project.ledger() == []


@pytest.mark.parametrize("how", ["mkdir", "ln -s /etc/passwd"])
def test_a_channel_of_metrics_that_is_no_file_fails_nothing(project: Project, how: str) -> None:
    project.pipeline(f"""steps: [{{id: a, run: '{how} "$RERAIL_METRICS"'}}]""")
    said = project.rerail("run", "pipeline.yaml", "--id", "r", check=0).stderr
    assert "metrics cannot be read" in said


def test_two_budgets_of_one_step_count_everything_once(project: Project) -> None:
    steps = """[{id: x, run: 'echo "{\\"cost_usd\\": 3}" >> "$RERAIL_METRICS"'}, {id: y, run: 'echo y >> "$LEDGER"'}]"""
    (project.root / "inner.yaml").write_text(f"budget: {{cost_usd: 10}}\nsteps: {steps}\n", encoding="utf-8")
    project.pipeline("steps: [{id: s, pipeline: inner.yaml, budget: {cost_usd: 5}}]")
    said = project.rerail("run", "pipeline.yaml", "--id", "r", check=0).stderr

    assert project.ledger() == ["y"]
    assert "$6" not in said


def test_what_is_lost_is_not_called_saved(project: Project) -> None:
    spend = 'echo "{\\"cost_usd\\": 1}" >> "$RERAIL_METRICS"'
    steps = f"[{{id: x, run: '{spend}'}}, {{id: y, run: '{spend}; kill -9 $PPID; sleep 60'}}]"
    (project.root / "inner.yaml").write_text(f"steps: {steps}\n", encoding="utf-8")
    project.pipeline("steps: [{id: s, pipeline: inner.yaml}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=-9)
    project.rerail("resume", "r", check=-9)  # it is recorded now what the first y has cost
    planned = project.rerail("resume", "r", "--dry-run").stderr

    assert re.search(r"saves (\S+ s and )?\$1\.00\n", planned)
    assert project.json("cost", "r")["total"]["cost_usd"] == 3


@pytest.mark.parametrize("how", ["mkdir", "ln -s /etc/passwd", "mkfifo"])
def test_a_channel_that_is_no_file_does_not_stop_the_next_life(project: Project, how: str) -> None:
    project.pipeline(f"""
checkpoint: {{interval: 0.1s}}
steps:
  - {{id: a, run: '{how} "$RERAIL_METRICS"; exec 3<>"$RERAIL_METRICS" || true; sleep 1.3; test -e on || kill -9 $PPID'}}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=-9)
    (project.root / "on").touch()
    project.rerail("resume", "r", check=0)


def test_time_in_which_people_think_is_not_the_runs_own(project: Project, set_clock: SetClock) -> None:
    project.pipeline("budget: {time: 10m}\nsteps: [{id: ok, approve: sure?}, {id: a, run: 'true'}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    driven = project.json("show", "r")["active_seconds"]
    set_clock(86400)
    project.rerail("approve", "r", "ok", check=0)

    project.rerail("resume", "r", check=0)
    assert 0 < driven < project.json("show", "r")["active_seconds"] < 600


def test_time_that_a_killed_life_lasted_counts(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'echo a >> \"$LEDGER\"; sleep 300'}]")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a"], "a runs")
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > 1.2, "more than the budget to come")
    process.kill()
    process.communicate()
    before = project.json("cost", "r")["attempts"][0]
    project.pipeline("budget: {time: 1s}\nsteps: [{id: a, run: 'echo a >> \"$LEDGER\"; sleep 300'}]")
    paused = project.rerail("resume", "r", check=5)

    assert "the budget is spent" in paused.stderr
    assert project.ledger() == ["a"]
    after = project.json("cost", "r")["attempts"][0]
    assert after["status"] == before["status"] == "interrupted"
    assert after["seconds"] == before["seconds"] > 1.2


def test_a_budget_speaks_up_while_a_step_spends_it_and_when_it_is_overspent(project: Project) -> None:
    project.pipeline("""
checkpoint: {interval: 0.1s}
steps:
  - id: a
    budget: {cost_usd: 1}
    run: |
      for cents in 60 20 40; do
        echo "{\\"cost_usd\\": 0.$cents}" >> "$RERAIL_METRICS"
        until grep -q "cost_usd.:$(cat so-far 2>/dev/null)" $RERAIL_RUN_DIR/journal-0001.jsonl; do sleep 0.05; done
        sleep 1.3
      done
""")
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert "50 % of the budget of a is spent: $0.60 of $1.00" in done.stderr
    assert "the budget of a is spent: $1.20 of $1.00" in done.stderr
