"""`rerail logs`: in the order of time, of live, killed and long runs."""

from __future__ import annotations

import signal

import pytest

from tests.cli.screen import screen
from tests.conftest import Project, eventually

TALKING = """
steps:
  - id: a
    needs: []
    run: |
      echo a1; touch a-said; while ! test -e b-said; do sleep 0.02; done; sleep 0.15; echo a2 >&2
  - id: b
    needs: []
    run: |
      while ! test -e a-said; do sleep 0.02; done; sleep 0.15; echo b1; touch b-said
  - {id: c, needs: [a, b], retry: {attempts: 2, delay: 0}, run: 'echo c$RERAIL_ATTEMPT; test $RERAIL_ATTEMPT = 2'}
"""


@pytest.mark.scenario("V3")
def test_logs_are_printed_in_the_order_of_time(project: Project) -> None:
    project.pipeline(TALKING)
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "2", check=0)

    assert project.rerail("logs", "r", check=0).stdout.split("\n") == [
        "a | a1",
        "b | b1",
        "a | a2",
        "c | c1",
        "c | c2",
        "",
    ]
    assert project.rerail("logs", "r", "a", check=0).stdout == "a1\na2\n"
    assert project.rerail("logs", "r", "c", "--attempt", "2", check=0).stdout == "c2\n"
    assert "run r has no step 'x'" in project.rerail("logs", "r", "x", check=2).stderr
    assert "needs a STEP" in project.rerail("logs", "r", "--attempt", "1", check=2).stderr


@pytest.mark.scenario("V3")
def test_logs_of_a_killed_run_lose_nothing_that_was_written(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'echo one; echo two; touch said; sleep 60'}]")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    log = project.run_dir("r") / "logs" / "a.1.out"
    eventually(lambda: log.exists() and log.read_text() == "one\ntwo\n", "both lines are in the log")
    process.send_signal(signal.SIGKILL)
    process.communicate()

    assert project.rerail("logs", "r", check=0).stdout == "a | one\na | two\n"


@pytest.mark.scenario("V1", "V2")
def test_the_end_of_a_long_log_is_kept(project: Project) -> None:
    project.pipeline(
        "steps: [{id: a, run: \"head -c 33554430 /dev/zero | tr '\\\\0' x; echo; echo CONTEXT; echo LAST\"}]"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    logs = project.run_dir("r") / "logs"

    assert sum(path.stat().st_size for path in logs.glob("a.1.out.rest*")) > 16_000_000
    assert project.rerail("logs", "r", "a").stdout.endswith("ONTEXT\nLAST\n")  # a part may begin in the middle of a word


@pytest.mark.scenario("V2")
def test_logs_follow_a_live_run(loop: Project) -> None:
    process = loop.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: loop.ledger() == ["build"], "build runs")
    followed = screen(loop, "logs", "r", "-f")
    followed.until(lambda text: "build | compiling module 5 of 8" in text, "what was printed")
    (loop.root / "go").touch()
    text = followed.end()
    process.communicate()

    assert "review | no such thing" in text
    assert followed.process.returncode == 0
    assert b"\033]0;owned" not in followed.raw


def test_the_list_of_a_map_is_printed_only_where_it_is_asked_for(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: {command: "echo listing >&2; seq 100 109"}}
    steps: [{run: 'echo item-${{ item }}'}]
  - {id: bad, allow_failure: true, map: {over: {command: "echo no list; exit 1"}}, steps: [{run: 'true'}]}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    whole = project.rerail("logs", "r", check=0)
    of_map = project.rerail("logs", "r", "m", check=0)

    assert "item-105" in whole.stdout
    assert "listing" in whole.stdout
    assert "no list" in whole.stdout
    assert "105\n" not in whole.stdout.replace("item-105", "")
    assert "without the list of the items of m: rerail logs r m" in whole.stderr
    assert "105\n" in of_map.stdout.replace("item-105\n", "")
    assert of_map.stderr == ""
