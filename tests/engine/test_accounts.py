"""What attempts cost is known until it is durable elsewhere, whatever becomes of the life that ran them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rerail.app.traces import process_tag_in
from rerail.core.events import ApprovalGiven
from rerail.executors import channels
from rerail.stores import inbox
from rerail.stores.directory import DirectoryStore
from tests.conftest import Project, eventually
from tests.patched import life
from tests.pipelines import dollars
from tests.wrong_clock import SetClock

DEAR = 'echo "{\\"cost_usd\\": 5}" >> "$RERAIL_METRICS"; echo paid >> "$LEDGER"'


def kill_when(project: Project, process: subprocess.Popen[str], ledger: list[str]) -> None:
    eventually(lambda: project.ledger() == ledger, f"{ledger}")
    process.kill()
    process.communicate()


def test_a_step_whose_end_could_not_be_recorded_has_cost_what_it_cost(project: Project) -> None:
    project.pipeline(f"steps: [{{id: a, run: '{DEAR}; test -e fine || touch broken'}}]")
    assert life(project, "run", "pipeline.yaml", "--id", "r") == 6

    assert dollars(project) == 5
    assert life(project, "resume", "r") == 6  # it cannot record what the first one cost, either
    assert dollars(project) == 5
    (project.root / "broken").unlink()
    (project.root / "fine").touch()
    assert life(project, "resume", "r") == 0
    assert project.ledger() == ["paid", "paid"]
    assert dollars(project) == 10


def test_what_a_killed_step_cost_outlives_a_resume_that_cannot_write(project: Project) -> None:
    project.pipeline(f"steps: [{{id: a, run: '{DEAR}; test -e fine || sleep 300'}}]")
    kill_when(project, project.spawn("run", "pipeline.yaml", "--id", "r"), ["paid"])
    (project.root / "broken").touch()

    assert life(project, "resume", "r") == 6
    assert dollars(project) == 5
    (project.root / "broken").unlink()
    (project.root / "fine").touch()
    assert life(project, "resume", "r") == 0
    assert dollars(project) == 10


def test_an_attempt_that_was_never_launched_is_none(project: Project) -> None:
    wait = f"{DEAR}; sleep 300"
    project.pipeline(f"steps: [{{id: a, run: touch broken-once}}, {{id: b, run: '{wait}'}}]")
    assert life(project, "run", "pipeline.yaml", "--id", "r") == 6
    assert [one["step"] for one in project.json("cost", "r")["attempts"]] == ["a"]
    kill_when(project, project.spawn("resume", "r"), ["paid"])

    told = project.json("cost", "r")
    assert told["total"]["cost_usd"] == 5
    assert [(one["step"], one["status"]) for one in told["attempts"]] == [("a", "completed"), ("b", "interrupted")]


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


def test_a_check_that_cannot_start_leaves_the_step_its_cost(project: Project) -> None:
    (project.root / "sub").mkdir()
    project.pipeline(f"steps: [{{id: a, cwd: sub, run: '{DEAR}; rmdir \"$PWD\"', checks: ['true']}}]")
    failed = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)

    assert "a check could not start" in failed.stderr
    assert dollars(project) == 5


@pytest.mark.scenario("E2")
def test_a_repair_keeps_what_was_saved_of_a_running_attempt(project: Project) -> None:
    project.pipeline(f"""
checkpoint: {{interval: 0.1s}}
steps: [{{id: a, run: '{DEAR}; test -e fine || sleep 300'}}]
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    journal = project.run_dir("r") / "journal-0001.jsonl"

    def saved() -> list[int]:
        data = journal.read_bytes() if journal.exists() else b""
        return [at for at, line in _lines(data) if b"step-progressed" in line and b"cost_usd" in line]

    eventually(lambda: len(saved()) >= 4, "progress is saved")
    process.kill()
    process.communicate()
    data = bytearray(journal.read_bytes())
    data[saved()[2] + 30] ^= 1
    journal.write_bytes(data)
    (project.run_dir("r") / "checkpoint.json").unlink()
    project.rerail("show", "r", check=6)
    project.rerail("repair", "r", check=0)

    assert dollars(project) == 5
    (project.root / "fine").touch()
    project.rerail("resume", "r", check=0)
    assert dollars(project) == 10


def _lines(data: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    for line in data.split(b"\n"):
        found.append((at, line))
        at += len(line) + 1
    return found


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


DIES_BEFORE_IT_RECORDS = """
import os
from rerail.engine.recorder import Recorder
Recorder.flush = lambda self: os._exit(9)
import rerail.__main__
"""


def test_an_answer_is_there_until_it_is_recorded(project: Project) -> None:
    project.pipeline("steps: [{id: ok, approve: sure?}, {id: more, needs: [], approve: really?}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    for step in ("ok", "more"):  # as from beside a process that drives the run
        said = ApprovalGiven(at=datetime.now(UTC), step=step, approved=True, by="me")
        inbox.put(str(project.run_dir("r")), said)
    assert life(project, "resume", "r", patch=DIES_BEFORE_IT_RECORDS) == 9

    project.rerail("resume", "r", check=0)
    assert os.listdir(project.run_dir("r") / "inbox") == []


def test_an_answer_may_be_changed_while_its_step_waits_for_a_budget(project: Project) -> None:
    project.pipeline("""
steps:
  - id: outer
    loop: {max_iterations: 1}
    budget: {cost_usd: 1}
    steps:
      - {id: pay, run: 'echo "{\\"cost_usd\\": 2}" >> "$RERAIL_METRICS"; echo paid >> "$LEDGER"'}
      - {id: ok, approve: sure?}
  - {id: other, needs: [], approve: really?}
  - {id: long, needs: [], run: 'until test -e go; do sleep 0.05; done'}
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--parallel", "3")
    eventually(lambda: project.ledger() == ["paid"], "the budget is spent")
    for verdict in ("approve", "reject"):
        project.rerail(verdict, "r", "outer/ok[1]", check=0)
        eventually(lambda: os.listdir(project.run_dir("r") / "inbox") == [], "it is taken up")
    (project.root / "go").touch()
    _, said = process.communicate()

    assert "internal error" not in said
    assert process.returncode in (1, 5), said


def test_what_waits_in_an_item_is_not_forgotten_with_one_whose_name_is_shorter(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: ["10", "1"], parallel: 1}
    steps:
      - id: l
        loop: {max_iterations: 1}
        steps:
          - {id: pre, run: 'echo ${{ item }} >> "$LEDGER"'}
          - {id: ok, when: "item == '10'", approve: "ok ${{ item }}?"}
""")
    paused = project.rerail("run", "pipeline.yaml", "--id", "r", check=5)

    assert project.ledger() == ["10", "1"]
    assert "m/l/ok[10::1] waits for approval" in paused.stderr
    project.rerail("approve", "r", "m/l/ok[10::1]", check=0)
    project.rerail("resume", "r", check=0)


BLIND_ONCE = """
import errno
from rerail.executors.local import LocalExecutor
watch = LocalExecutor._watch
def blind(self, process):
    LocalExecutor._watch = watch
    raise OSError(errno.EMFILE, "Too many open files")
LocalExecutor._watch = blind
import rerail.__main__
"""


def test_a_process_that_cannot_be_watched_does_not_run_beside_the_next(project: Project) -> None:
    project.pipeline("""
steps:
  - id: a
    retry: {attempts: 2, delay: 0}
    run: |
      test $RERAIL_ATTEMPT = 2 || { echo $$ > first; sleep 300; }
      for _ in $(seq 50); do
        ! kill -0 $(cat first) || { echo beside >> "$LEDGER"; break; }
        sleep 0.02
      done
      echo end >> "$LEDGER"
""")
    assert life(project, "run", "pipeline.yaml", "--id", "r", patch=BLIND_ONCE) == 0
    assert project.ledger() == ["end"]


@pytest.mark.scenario("J4")
def test_a_secret_in_what_a_killed_attempt_counted_is_never_told(project: Project) -> None:
    secret = "sk-very-secret-0123456789"
    project.pipeline("""
secrets: [TOKEN]
steps:
  - id: a
    run: |
      printf '{"cost_usd": 5, "model": "%s", "n-%s": 1}\\n' "$TOKEN" "$TOKEN" >> "$RERAIL_METRICS"
      echo paid >> "$LEDGER"
      sleep 300
""")
    project.env["TOKEN"] = secret
    kill_when(project, project.spawn("run", "pipeline.yaml", "--id", "r"), ["paid"])
    asked = [("cost", "r", "--by", "model"), ("cost", "r", "--json"), ("show", "r", "--json"), ("plan", "r")]
    told = [project.rerail(*one) for one in asked]
    del project.env["TOKEN"]  # who only looks need not have it
    told += [project.rerail(*one) for one in asked]
    assert dollars(project) == 5
    project.rerail("mark", "r", "a", "completed", check=0)

    assert not [one.args for one in told if secret in one.stdout + one.stderr]
    assert dollars(project) == 5
    for path in project.run_dir("r").rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def test_clean_up_comes_before_what_comes_last_although_the_budget_is_spent(project: Project) -> None:
    text = f"""
budget: {{cost_usd: 1}}
steps:
  - {{id: a, run: '{DEAR}; exit 1', on_failure: [{{run: 'echo undo >> "$LEDGER"'}}, {{run: 'echo more >> "$LEDGER"'}}]}}
"""
    project.pipeline(text)
    failed = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    assert project.ledger() == ["paid", "undo", "more"]
    assert "next: rerail resume r --budget-usd 10" in failed.stderr

    project.pipeline(text + "finally: [{run: 'echo last >> \"$LEDGER\"'}]\n")
    project.rerail("run", "pipeline.yaml", "--id", "s", check=1)
    assert project.ledger()[3:] == ["paid", "undo", "more", "last"]


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


def test_hints_name_a_store_that_is_elsewhere(project: Project) -> None:
    project.pipeline("steps: [{id: ok, approve: sure?}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    store = str(project.root / ".rerail")
    here = project.root.parent
    project.root = here
    shown = project.rerail("show", "r", "--store", store, check=0)
    answered = project.rerail("approve", "r", "ok", "--store", store, check=0)

    assert f"rerail approve r ok --store {store}" in shown.stdout
    assert f"next: rerail resume r --store {store}" in answered.stderr


def test_a_quota_is_remembered_when_the_time_of_a_life_is_over_before_it(project: Project) -> None:
    project.pipeline("""
steps: [{id: a, run: 'echo "429 Too Many Requests, retry after 3 hours" >&2; exit 1'}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    before = project.json("list")[0]["paused_until"] if isinstance(project.json("list"), list) else None
    paused = project.rerail("resume", "r", "--wait", "--max-runtime", "1s", check=5)

    assert "paused (quota) until" in paused.stderr
    assert "next: rerail resume r --wait" in paused.stderr
    shown = project.json("show", "r")
    assert shown["paused_for"] == "quota"
    assert json.dumps(before or shown["paused_until"])


def test_the_time_limit_that_got_nowhere_is_raised_by_every_hint(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: sleep 300}]")
    paused = project.rerail("run", "pipeline.yaml", "--id", "r", "--max-runtime", "1s", check=5)

    assert "next: rerail resume r --max-runtime 2s" in paused.stderr
    assert "rerail resume r --max-runtime 2s" in project.rerail("show", "r", check=0).stdout


COSTLY = """
steps:
  - run: |
      echo '{"cost_usd": 5}' >> "$RERAIL_METRICS"
      test -e again || { touch again; kill -9 $PPID; sleep 60; }
"""


@pytest.mark.parametrize("how", ["copied", "copied and the original deleted", "moved"])
def test_the_money_of_a_killed_attempt_follows_the_run(project: Project, how: str) -> None:
    """What it had counted is in memory-backed storage, found by the invocation that the journal names."""
    project.pipeline(COSTLY)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=-9)
    other = project.root.parent / "other"
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    if how == "moved":
        project.root.rename(other)
    else:
        shutil.copytree(project.root, other, symlinks=True)
    if how == "copied and the original deleted":
        shutil.rmtree(project.root)
    original, project.root = project.root, other

    project.rerail("resume", "r", check=0)

    assert project.json("show", "r")["total_cost_usd"] == 10
    if how == "copied":  # the original has its own to count still
        project.root = original
        project.rerail("resume", "r", check=0)
        assert project.json("show", "r")["total_cost_usd"] == 10
    mine = {entry for entry in before if (Path("/dev/shm") / entry / "origin").is_file()}
    assert not any(str(project.root.parent) in (Path("/dev/shm") / entry / "origin").read_text() for entry in mine)


def test_money_that_nobody_can_know_of_is_said(project: Project) -> None:
    project.pipeline("budget: {cost_usd: 100}\n" + COSTLY)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=-9)
    store = DirectoryStore(str(project.root / ".rerail"))
    channels.wipe(process_tag_in(store, "r"))  # as a restart of the machine does
    done = project.rerail("resume", "r", check=0)
    assert "when it was killed is known only up to the last save" in done.stderr
