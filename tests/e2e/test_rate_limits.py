"""Rate limits and quotas: what is waited for, and what is paused. The meter of the model is outside."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

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

    assert re.search(r"saves (\S+ s and )?\$1\.50\n", resumed.stderr), "the first step, and two items"
    assert " and $1.50" in project.rerail("history", "r", check=0).stdout
    assert "the last resume saved $1.50" in project.rerail("show", "r", check=0).stdout


def journal(project: Project) -> str:
    return "".join(path.read_text(errors="replace") for path in project.run_dir("r").glob("journal-*.jsonl"))


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


def test_how_often_a_service_refused_in_a_row_is_known_to_the_next_life(project: Project, set_clock: SetClock) -> None:
    """Killed while it waits to ask again, for longer than any machine takes to kill it."""
    project.pipeline("""
checkpoint: {interval: 0.1s}
steps:
  - id: a
    retry: {attempts: 3, delay: 4m, max_delay: 4m, backoff: fixed, jitter: false}
    run: 'echo a >> "$LEDGER"; echo "429 Too Many Requests" >&2; exit 1'
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")

    def refusals() -> int:
        return sum(path.read_bytes().count(b'"refused":') for path in project.run_dir("r").glob("journal-*.jsonl"))

    eventually(lambda: refusals() == 1, "it was refused")
    process.kill()
    process.communicate()
    set_clock(400)
    resumed = project.spawn("resume", "r")
    eventually(lambda: refusals() == 2, "it was refused again")
    set_clock(800)
    resumed.communicate(timeout=120)

    assert resumed.returncode == 1
    assert project.ledger() == ["a", "a", "a"]
