"""Rate limits, quotas and people: what is waited for, by whom, and what is paused. The meter of the model is outside."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Project, eventually
from tests.wrong_clock import SetClock

MODEL = Path(__file__).parent.parent.parent / "examples" / "lessons" / "model"
WORKERS = 8


@pytest.fixture
def meter(project: Project) -> Callable[..., list[float]]:
    """The times at which something happened to the model."""
    shutil.copy(MODEL, project.root / "model")
    file = project.root.parent / "meter"
    project.env |= {"MODEL_METER": str(file), "MODEL_PACE": "0", "MODEL_CENTS": "1"}

    def read(what: str = "called") -> list[float]:
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [float(words[0]) for words in lines if what in words]

    return read


def test_a_storm_of_refusals_slows_all_workers_together_and_everything_gets_done(
    project: Project, meter: Callable[..., list[float]]
) -> None:
    project.env["MODEL_PER_S"] = "4"
    project.pipeline(f"""
steps:
  - id: calls
    map: {{over: {json.dumps([str(n) for n in range(24)])}, parallel: {WORKERS}}}
    steps:
      - retry: {{delay: 0.2s, max_delay: 2s}}
        run: ./model ${{{{ item }}}} && echo ${{{{ item }}}} >> "$LEDGER"
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert sorted(project.ledger(), key=int) == [str(n) for n in range(24)], "each item once"
    refused = meter("refused")
    assert len(refused) >= 2, "there was no storm"
    assert len(meter()) == 24 + len(refused)
    # Where everybody minds only his own refusals there are about 60 of them.
    assert len(refused) < 45, "they did not slow down together"


def test_when_the_time_has_come_one_tries_first(
    project: Project, meter: Callable[..., list[float]], set_clock: SetClock
) -> None:
    until = quota(project, 240)
    project.env |= {"MODEL_PACE": "0.3"}
    project.pipeline(f"""
checkpoint: {{interval: 0.1s}}
steps:
  - id: calls
    map: {{over: {json.dumps([str(n) for n in range(WORKERS)])}, parallel: {WORKERS}}}
    steps: [{{run: './model ${{{{ item }}}} && echo ${{{{ item }}}} >> "$LEDGER"'}}]
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: len(meter("refused")) == WORKERS, "all were refused")
    eventually(lambda: journal(project).count('"refused":"quota"') == WORKERS, "and wait")
    set_clock(241)
    _, said = process.communicate(timeout=120)

    assert process.returncode == 0, said
    assert sorted(project.ledger(), key=int) == [str(n) for n in range(WORKERS)]
    after = [at for at in meter() if at >= until]
    through = meter("paid")[0]
    assert len(after) == WORKERS
    assert sum(at < through for at in after) == 1, "a herd came when the gate opened"


def test_without_any_policy_a_rate_limit_is_no_failure(project: Project, meter: Callable[..., list[float]]) -> None:
    project.pipeline("""
steps:
  - id: b
    run: |
      if [ "$RERAIL_ATTEMPT" = 1 ]; then echo "HTTP 429 Too Many Requests: rate limit exceeded" >&2; exit 1; fi
      ./model b
""")
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert "refused      b: exited with code 1; attempt 2 in " in done.stderr
    assert " s: rate limit" in done.stderr
    assert "refusals" not in project.json("show", "r")["steps"][0], "it got through"
    assert len(meter()) == 1


def test_a_step_says_what_else_is_a_refusal_and_can_say_that_nothing_is(project: Project) -> None:
    project.pipeline("""
steps:
  - id: own
    rate_limit: {on: [9, "busy, come back"]}
    retry: {delay: 0.05s}
    run: |
      echo "$RERAIL_ATTEMPT" >> "$LEDGER"
      case $RERAIL_ATTEMPT in 1) exit 9;; 2) echo "we are busy, come back later" >&2; exit 1;; esac
  - {id: off, rate_limit: false, run: "echo rate limit exceeded >&2; echo off >> $LEDGER; exit 1"}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    assert project.ledger() == ["1", "2", "3", "off"]


def test_what_must_not_be_repeated_is_not_because_of_a_refusal(project: Project) -> None:
    project.pipeline(
        'steps: [{id: a, idempotent: false, run: "echo a >> $LEDGER; echo rate limit exceeded >&2; exit 1"}]'
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    assert project.ledger() == ["a"]


# Quota


def quota(project: Project, seconds: float) -> float:
    """The model refuses everything for so long; it tells whole seconds."""
    until = float(math.ceil(time.time() + seconds))
    (project.root / "quota").write_text(repr(until))
    project.env["MODEL_QUOTA"] = str(project.root / "quota")
    return until


LESSONS = """
checkpoint: {interval: 0.1s}
steps:
  - {id: other, needs: [], run: "echo other >> $LEDGER"}
  - id: lessons
    needs: []
    map: {over: [a, b, c], parallel: 2}
    steps: [{run: './model ${{ item }} && echo ${{ item }} >> "$LEDGER"'}]
  - {id: after, needs: [lessons, other], run: "echo after >> $LEDGER"}
"""


def paused_until(project: Project) -> float:
    (row,) = project.json("list")
    assert (row["status"], row["paused_for"]) == ("paused", "quota")
    return datetime.fromisoformat(row["paused_until"]).timestamp()


def live_at(project: Project, set_clock: SetClock, wall: str, zone: str = "UTC") -> int:
    """Have the project live at a time of day; by how many seconds its clock is wrong then."""
    project.env["TZ"] = zone
    wrong_by = int(datetime.fromisoformat(wall).timestamp() - time.time())
    set_clock(wrong_by)
    return wrong_by


@pytest.mark.parametrize(
    ("begins", "shown"),
    [("2026-11-16 12:00+00:00", "%H:%M"), ("2026-11-30 23:30+00:00", "%Y-%m-%d %H:%M")],
    ids=["at noon", "before midnight"],
)
def test_a_long_quota_pauses_the_run_until_then(
    project: Project, meter: Callable[..., list[float]], set_clock: SetClock, begins: str, shown: str
) -> None:
    wrong_by = live_at(project, set_clock, begins)
    until = quota(project, wrong_by + 3600)
    project.pipeline(LESSONS)
    paused = project.rerail("run", "pipeline.yaml", "--id", "r", check=5)

    assert "run r is paused (quota) until " in paused.stderr
    assert "quota of lessons" in paused.stderr
    assert "next: rerail resume r --wait" in paused.stderr
    assert until - 1 <= paused_until(project) <= until + 15
    until_then = f"paused (quota) until {datetime.fromtimestamp(paused_until(project), UTC).strftime(shown)} "
    assert until_then in project.rerail("list", check=0).stdout
    assert project.ledger() == ["other"], "whatever needs no model is done"
    calls = len(meter())
    assert calls <= 2

    set_clock(wrong_by + 1800)
    early = project.rerail("resume", "r", check=5)
    assert "paused (quota) until " in early.stderr
    assert len(meter()) == calls, "it was asked before its time"
    assert abs(paused_until(project) - until) < 20, "the time it waits for does not move"

    set_clock(wrong_by + 3640)
    project.rerail("resume", "r", check=0)
    assert sorted(project.ledger()) == ["a", "after", "b", "c", "other"]


def test_a_time_of_day_after_a_change_of_clocks_is_told_by_the_clocks_of_then(
    project: Project, set_clock: SetClock
) -> None:
    """In the evening before daylight saving time ends: nine o'clock is thirteen hours away, not twelve."""
    live_at(project, set_clock, "2026-10-24 19:00+00:00", zone="CET-1CEST,M3.5.0,M10.5.0/3")
    project.pipeline('steps: [{id: a, run: "echo usage limit reached, resets 9am >&2; exit 1"}]')
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)

    assert 0 <= paused_until(project) - datetime(2026, 10, 25, 8, tzinfo=UTC).timestamp() <= 60
    assert "paused (quota) until 2026-10-25 09:0" in project.rerail("list", check=0).stdout


def test_a_clock_that_was_set_back_makes_no_wait_longer(
    project: Project, meter: Callable[..., list[float]], set_clock: SetClock
) -> None:
    quota(project, 1000)
    project.pipeline(LESSONS)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    set_clock(-86400 * 30)
    project.rerail("resume", "r", check=5)

    assert paused_until(project) - (time.time() - 86400 * 30) <= 1000 * 1.1 + 60


@pytest.mark.parametrize("jump", [0, 86400], ids=["in time", "the clock is put forward"])
def test_resume_wait_goes_on_when_the_time_has_come(
    project: Project, meter: Callable[..., list[float]], set_clock: SetClock, jump: int
) -> None:
    until = quota(project, 3600)
    project.pipeline(LESSONS.replace("steps:", "defaults: {rate_limit: {pause_after: 0.1s}}\nsteps:", 1))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    calls = len(meter())
    set_clock(0 if jump else 3597)
    waiting = project.spawn("resume", "r", "--wait")
    if jump:
        eventually(lambda: [row for row in project.json("list") if row["status"] == "running"], "it waits")
        assert len(meter()) == calls
        set_clock(jump)
    _, said = waiting.communicate(timeout=120)

    assert waiting.returncode == 0, said
    assert min(meter()[calls:]) >= until, "it was asked before its time"
    assert sorted(project.ledger()) == ["a", "after", "b", "c", "other"]


def test_who_knows_better_need_not_wait(project: Project, meter: Callable[..., list[float]]) -> None:
    quota(project, 3600)
    project.pipeline(LESSONS)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    (project.root / "quota").unlink()
    project.rerail("resume", "r", "--no-wait", check=0)

    assert sorted(project.ledger()) == ["a", "after", "b", "c", "other"]


def test_a_kill_while_a_refusal_is_waited_for_loses_nothing_and_waits_for_the_rest(
    project: Project, meter: Callable[..., list[float]], set_clock: SetClock
) -> None:
    until = quota(project, 240)
    project.pipeline(LESSONS)
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: meter("refused") and '"refused":"quota"' in journal(project), "the refusal is durable")
    process.kill()
    process.communicate()
    set_clock(237)
    project.rerail("resume", "r", check=0)

    refused = len(meter("refused"))
    assert refused <= 2
    assert min(meter()[refused:]) >= until, "it was asked before its time"
    assert sorted(project.ledger()) == ["a", "after", "b", "c", "other"]


def test_what_was_parked_goes_on_if_the_time_comes_while_others_run(
    project: Project, meter: Callable[..., list[float]]
) -> None:
    quota(project, 2)
    text = LESSONS.replace("steps:", "defaults: {rate_limit: {pause_after: 0.1s}}\nsteps:", 1)
    long = '"echo other >> $LEDGER; until grep -q c $LEDGER; do sleep 0.05; done"'
    project.pipeline(text.replace('"echo other >> $LEDGER"', long))
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "4", check=0)

    assert sorted(project.ledger()) == ["a", "after", "b", "c", "other"]


def test_money_saved_is_told_also_of_a_map_under_way(project: Project, meter: Callable[..., list[float]]) -> None:
    project.env["MODEL_CENTS"] = "50"
    project.pipeline("""
steps:
  - {id: first, run: ./model first}
  - id: lessons
    map: {over: [a, b, c], parallel: 1}
    steps: [{run: 'test ${{ item }} != c || test -e ok; ./model ${{ item }}'}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()
    resumed = project.rerail("resume", "r", check=0)

    assert "saves " in resumed.stderr
    assert " and $1.50\n" in resumed.stderr, "the first step, and two items"
    assert " and $1.50" in project.rerail("history", "r", check=0).stdout
    assert "the last resume saved $1.50" in project.rerail("show", "r", check=0).stdout


def journal(project: Project) -> str:
    return "".join(path.read_text(errors="replace") for path in project.run_dir("r").glob("journal-*.jsonl"))


# Approval

APPROVE = """
steps:
  - {id: draft, run: echo draft >> $LEDGER}
  - {id: ok, approve: "Publish ${{ run.id }}?"}
  - {id: publish, run: "echo published by ${{ steps.ok.outputs.by }} >> $LEDGER"}
  - {id: side, needs: [draft], run: echo side >> $LEDGER}
"""


def judged(project: Project) -> list[dict[str, Any]]:
    return [event for event in project.json("history", "r") if event["event"] == "approval-given"]


def test_a_run_waits_for_a_person_and_everything_else_goes_on(project: Project) -> None:
    project.pipeline(APPROVE)
    paused = project.rerail("run", "pipeline.yaml", "--id", "r", check=5)

    assert "run r is paused (approval): ok waits for approval" in paused.stderr
    assert "next: rerail approve r ok  # or reject" in paused.stderr
    assert sorted(project.ledger()) == ["draft", "side"]
    assert "paused (approval)" in project.rerail("list", check=0).stdout
    project.rerail("resume", "r", check=5)
    assert sorted(project.ledger()) == ["draft", "side"], "nobody had answered"

    project.rerail("approve", "r", "ok", "-m", "looks good", check=0)
    (said,) = judged(project)
    assert (said["approved"], said["reason"]) == (True, "looks good")
    assert said["by"]
    assert datetime.fromisoformat(said["at"])
    project.rerail("resume", "r", check=0)
    assert project.ledger().count("published") == 1
    project.rerail("approve", "r", "ok", check=2)


def test_a_rejection_fails_the_step_and_can_be_taken_back(project: Project) -> None:
    project.pipeline(APPROVE)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    project.rerail("reject", "r", "ok", "-m", "chapter 3", check=0)
    failed = project.rerail("resume", "r", check=1)

    assert "rejected by " in failed.stderr
    assert ": chapter 3" in failed.stderr
    assert "published" not in project.ledger()
    project.rerail("approve", "r", "ok", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger().count("published") == 1


def test_an_answer_may_come_before_the_question_and_while_the_run_goes_on(project: Project) -> None:
    project.pipeline(
        APPROVE.replace(
            "echo side >> $LEDGER", '"echo side >> $LEDGER; until grep -q published $LEDGER; do sleep 0.05; done"'
        )
    )
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--parallel", "2")
    eventually(lambda: "side" in project.ledger(), "the other branch goes on")
    handed = project.rerail("approve", "r", "ok", check=0)
    _, said = process.communicate(timeout=120)

    assert "run r continues" in handed.stderr
    assert process.returncode == 0, said
    assert project.ledger().count("published") == 1
    assert len(judged(project)) == 1
    assert not list((project.run_dir("r") / "inbox").iterdir())


def test_items_are_approved_one_by_one(project: Project) -> None:
    project.pipeline("""
steps:
  - id: pages
    map: {over: [x, y, z], parallel: 1}
    steps:
      - {id: write, run: 'echo write-${{ item }} >> "$LEDGER"'}
      - {id: ok, approve: 'Is ${{ item }} good?'}
      - {id: put, run: 'echo put-${{ item }} >> "$LEDGER"'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    assert project.ledger() == ["write-x", "write-y", "write-z"], "one that waits does not hold the others up"

    project.rerail("approve", "r", "pages/ok[y]", check=0)
    project.rerail("resume", "r", check=5)
    assert project.ledger()[3:] == ["put-y"]
    for item in "xz":
        project.rerail("approve", "r", f"pages/ok[{item}]", check=0)
    project.rerail("resume", "r", check=0)
    assert sorted(project.ledger()[4:]) == ["put-x", "put-z"]


def test_one_that_waits_in_an_inner_pipeline_or_loop_of_an_item_holds_no_other_item_up(project: Project) -> None:
    project.pipeline("steps: [{id: ok, approve: Good?}, {id: put, run: echo put >> $LEDGER}]", "inner.yaml")
    project.pipeline("""
steps:
  - id: pages
    map: {over: [x, y, z], parallel: 1}
    steps:
      - {id: write, run: 'echo write-${{ item }} >> "$LEDGER"'}
      - {id: one, pipeline: inner.yaml}
      - id: again
        loop: {max_iterations: 1}
        steps: [{id: sure, approve: Really?}, {id: keep, run: 'echo keep >> "$LEDGER"'}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    assert project.ledger() == ["write-x", "write-y", "write-z"]
    for item in "xyz":
        project.rerail("approve", "r", f"pages/one/ok[{item}]", check=0)
    project.rerail("resume", "r", check=5)
    assert project.ledger()[3:] == ["put"] * 3
    for item in "xyz":
        project.rerail("approve", "r", f"pages/again/sure[{item}::1]", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger()[6:] == ["keep"] * 3


@pytest.mark.parametrize("step", ["draft", "nothing", "ok[x]"])
def test_only_what_waits_for_a_person_can_be_approved(project: Project, step: str) -> None:
    project.pipeline(APPROVE)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    before = project.state_digest()
    project.rerail("approve", "r", step, check=2)
    assert project.state_digest() == before


def test_the_last_word_counts_however_it_arrived(project: Project) -> None:
    project.pipeline(
        "steps: [{id: long, run: 'echo long >> $LEDGER; test -e go || sleep 60'}, {id: ok, approve: Go?}, {id: b, run: echo b >> $LEDGER}]"
    )
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["long"], "it runs")
    project.rerail("approve", "r", "ok", check=0)  # a letter nobody has read
    process.kill()
    process.communicate()
    project.rerail("reject", "r", "ok", check=0)
    (project.root / "go").touch()
    project.rerail("resume", "r", check=1)
    assert "b" not in project.ledger()


def test_letters_are_read_in_the_order_of_time_and_before_the_question_too(project: Project) -> None:
    project.pipeline(
        "steps: [{id: long, run: 'echo long >> $LEDGER; until test -e go; do sleep 0.02; done'}, {id: ok, approve: Go?}]"
    )
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["long"], "it runs")
    for answer in ("reject", "approve", "reject", "approve"):
        project.rerail(answer, "r", "ok", check=0)
    (project.root / "go").touch()
    process.communicate(timeout=120)
    assert process.returncode == 0, "the last word was yes"
    assert [event["approved"] for event in reversed(judged(project))] == [False, True, False, True]


def test_an_answer_is_about_what_was_asked(project: Project) -> None:
    project.pipeline(APPROVE)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    project.rerail("approve", "r", "ok", check=0)
    project.pipeline(APPROVE.replace("echo draft >>", "echo another draft >>"))
    project.rerail("resume", "r", check=5)
    assert "published" not in project.ledger()
    project.rerail("approve", "r", "ok", check=0)
    project.rerail("mark", "r", "ok", "pending", check=0)
    project.rerail("resume", "r", check=5)
    project.rerail("approve", "r", "ok", check=0)
    project.rerail("resume", "r", check=0)


def test_a_fork_with_other_params_asks_again(project: Project) -> None:
    project.pipeline("""
params: {target: staging}
steps: [{id: ok, approve: 'Deploy to ${{ params.target }}?'}, {id: deploy, run: 'echo ${{ params.target }} >> "$LEDGER"'}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    project.rerail("approve", "r", "ok", check=0)
    project.rerail("resume", "r", check=0)
    project.rerail("fork", "r", "--from", "deploy", "-p", "target=production", check=5)
    assert project.ledger() == ["staging"]


def test_a_rejected_item_of_a_completed_map_can_be_approved(project: Project) -> None:
    project.pipeline("""
steps:
  - id: pages
    map: {over: [x, y], max_failures: 2}
    steps: [{id: ok, approve: 'Is ${{ item }} good?'}, {id: put, run: 'echo ${{ item }} >> "$LEDGER"'}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    shown = project.rerail("show", "r", check=0).stdout
    assert "next   rerail approve r 'pages/ok[x]'  # or reject" in shown
    project.rerail("reject", "r", "pages/ok[x]", check=0)
    project.rerail("approve", "r", "pages/ok[y]", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["y"]
    project.rerail("approve", "r", "pages/ok[x]", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["y", "x"]


def test_a_rejection_is_taken_back_while_others_run(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: [x, z], parallel: 2}
    steps:
      - {id: ok, approve: 'Is ${{ item }} good?'}
      - {id: put, run: 'echo ${{ item }} >> "$LEDGER"'}
  - {id: slow, needs: [], run: 'echo slow >> "$LEDGER"; until test -e go; do sleep 0.02; done'}
  - {id: ok, needs: [], allow_failure: true, approve: Fine?}
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--parallel", "4")
    eventually(lambda: project.ledger() == ["slow"], "it runs")
    for unit in ("m/ok[x]", "ok"):
        project.rerail("reject", "r", unit, check=0)
        eventually(lambda unit=unit: said_to_fail(project, unit), "it has failed")  # type: ignore[misc]
        project.rerail("approve", "r", unit, check=0)
    project.rerail("approve", "r", "m/ok[z]", check=0)
    eventually(lambda: "z" in project.ledger(), "the map goes on")
    (project.root / "go").touch()
    _, said = process.communicate(timeout=120)

    assert sorted(project.ledger()) == ["slow", "x", "z"], "the item whose rejection was taken back"
    assert process.returncode == 5, said
    assert "ok was answered again" in said
    project.rerail("resume", "r", check=0)
    assert project.json("show", "r")["steps"][2]["outputs"]["approved"] is True


def test_a_run_goes_on_when_its_rejection_is_taken_back_while_others_run(project: Project) -> None:
    project.pipeline("""
steps:
  - {id: ok, approve: Go on?, on_failure: [{run: 'echo clean >> "$LEDGER"'}]}
  - {id: then, run: 'echo then >> "$LEDGER"'}
  - {id: slow, needs: [], run: 'echo slow >> "$LEDGER"; until test -e go; do sleep 0.02; done'}
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["slow"], "it runs")
    project.rerail("reject", "r", "ok", check=0)
    eventually(lambda: project.ledger() == ["slow", "clean"], "it has failed")
    project.rerail("approve", "r", "ok", check=0)
    eventually(lambda: project.ledger() == ["slow", "clean", "then"], "what comes after it runs")
    (project.root / "go").touch()
    _, said = process.communicate(timeout=120)

    assert process.returncode == 0, said
    assert project.json("show", "r")["error"] is None


def said_to_fail(project: Project, unit: str) -> bool:
    failed = [event for event in project.json("history", "r") if event["event"] == "step-failed"]
    return any(
        f"{event['step']}[{event['item']}]" == unit if event.get("item") else event["step"] == unit for event in failed
    )


def test_a_stopped_map_asks_nobody(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: [x, y], parallel: 2, on_item_failure: stop}
    steps: [{id: a, run: 'test ${{ item }} != y || { sleep 0.3; exit 1; }'}, {id: ok, approve: Fine?}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)


def test_a_quota_in_a_nested_map_holds_no_outer_item_up(project: Project) -> None:
    project.pipeline("""
steps:
  - id: o
    map: {over: [p, q], parallel: 1}
    steps:
      - {id: prep, run: 'echo prep-${{ item }} >> "$LEDGER"'}
      - id: i
        map: {over: [1, 2], parallel: 1}
        steps: [{run: 'echo "usage limit reached, try again in 2 hours" >&2; exit 1'}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    assert project.ledger() == ["prep-p", "prep-q"]


def test_what_began_before_a_refusal_is_not_waited_for(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: [a, b], parallel: 2}
    steps:
      - retry: {delay: 0.05s}
        run: |
          if [ ${{ item }} = a ]; then until grep -q b-2 "$LEDGER"; do sleep 0.02; done; fi
          echo ${{ item }}-$RERAIL_ATTEMPT >> "$LEDGER"
          test ${{ item }}-$RERAIL_ATTEMPT != b-1 || { echo rate limit exceeded >&2; exit 1; }
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    assert project.ledger() == ["b-1", "b-2", "a-1"]


def test_a_clean_up_that_waits_is_not_left_out_without_a_word(project: Project) -> None:
    project.pipeline("""
steps: [{id: a, run: exit 1}]
finally: [{id: release, run: 'test -e ok || { echo "usage limit reached, try again in 2 hours" >&2; exit 1; }; echo released >> "$LEDGER"'}]
""")
    paused = project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    assert "quota of release" in paused.stderr
    (project.root / "ok").touch()
    project.rerail("resume", "r", "--no-wait", check=1)
    assert "released" in project.ledger()


def test_no_words_of_strangers_stop_the_loop(project: Project) -> None:
    lines = ["usage limit reached; try again after 3:30 and/or buy more", "rate limit exceeded, retry" + " " * 4000 + "x"]
    (project.root / "said").write_text("\n".join(lines))
    project.pipeline('steps: [{id: a, run: "cat said >&2; test -e ok", retry: {attempts: 2, delay: 0}}]')
    project.rerail("run", "pipeline.yaml", "--id", "r")
    (project.root / "ok").touch()
    project.rerail("resume", "r", "--no-wait", check=0)


def test_a_step_that_runs_again_asks_again(project: Project) -> None:
    project.pipeline(APPROVE)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    project.rerail("approve", "r", "ok", check=0)
    project.rerail("resume", "r", check=0)
    project.rerail("resume", "r", "--from", "ok", check=5)


def verdicts(project: Project) -> int:
    return (project.run_dir("r") / "journal-0001.jsonl").read_bytes().count(b'"event":"approval-given"')


def answered_while_there_is_no_room(project: Project, *answers: str) -> int:
    """An approval that is given while another step has all the room, and then something else."""
    project.pipeline("""
steps:
  - {id: ok, needs: [], approve: Publish?}
  - {id: slow, needs: [], run: 'echo slow >> "$LEDGER"; until test -e go; do sleep 0.02; done'}
  - {id: publish, needs: [ok], run: 'echo publish >> "$LEDGER"'}
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--parallel", "1")
    eventually(lambda: project.ledger() == ["slow"], "it runs")
    project.rerail(answers[0], "r", "ok", check=0)
    eventually(lambda: verdicts(project) == 1, "it is recorded")
    project.rerail(answers[1], "r", "ok", check=0)
    (project.root / "go").touch()
    process.communicate(timeout=120)
    return process.returncode


def test_the_last_word_before_a_step_starts_is_the_one_that_counts(project: Project) -> None:
    assert answered_while_there_is_no_room(project, "approve", "reject") == 1
    assert project.ledger() == ["slow"]


def test_also_if_it_is_a_yes(project: Project) -> None:
    assert answered_while_there_is_no_room(project, "reject", "approve") == 0
    assert project.ledger() == ["slow", "publish"]


CLEANED = """
steps:
  - {id: slow, needs: [], run: 'echo slow >> "$LEDGER"; until test -e go; do sleep 0.02; done'}
  - id: ok
    needs: []
    approve: Go on?
    on_failure: [{id: clean, run: 'echo clean >> "$LEDGER"; until test -e cleaned$RERAIL_ATTEMPT; do sleep 0.02; done; echo cleaned >> "$LEDGER"'}]
  - {id: then, needs: [ok], run: 'echo then >> "$LEDGER"'}
"""


@pytest.mark.parametrize("again", ["approve", "reject"])
def test_what_cleans_up_after_a_no_is_finished_before_anything_else_comes_of_it(project: Project, again: str) -> None:
    project.pipeline(CLEANED)
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--parallel", "4")
    eventually(lambda: project.ledger() == ["slow"], "it runs")
    project.rerail("reject", "r", "ok", check=0)
    eventually(lambda: project.ledger() == ["slow", "clean"], "it is being cleaned up")
    project.rerail(again, "r", "ok", check=0)
    eventually(lambda: verdicts(project) == 2, "that was heard")
    for name in ("cleaned1", "cleaned2"):
        (project.root / name).touch()
    eventually(lambda: project.ledger().count("cleaned") == (1 if again == "approve" else 2), "it was cleaned up")
    (project.root / "go").touch()
    _, said = process.communicate(timeout=120)

    assert process.returncode == (0 if again == "approve" else 1), said
    expected = ["slow", "clean", "cleaned", "then"] if again == "approve" else ["slow", *["clean", "cleaned"] * 2]
    assert project.ledger() == expected


def test_a_clean_up_that_is_cut_off_after_the_no_was_taken_back_goes_on(project: Project) -> None:
    project.pipeline(CLEANED)
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--parallel", "4")
    eventually(lambda: project.ledger() == ["slow"], "it runs")
    project.rerail("reject", "r", "ok", check=0)
    eventually(lambda: project.ledger() == ["slow", "clean"], "it is being cleaned up")
    project.rerail("approve", "r", "ok", check=0)
    eventually(lambda: b'"approved":true' in (project.run_dir("r") / "journal-0001.jsonl").read_bytes(), "it is recorded")
    process.kill()
    process.communicate()
    for name in ("cleaned2", "go"):  # whoever was killed with the run may take a moment to die, and waits for another
        (project.root / name).touch()
    project.rerail("resume", "r", check=0)

    after = project.ledger()[2:]
    assert sorted(after) == ["clean", "cleaned", "slow", "then"]
    assert after.index("cleaned") < after.index("then")
