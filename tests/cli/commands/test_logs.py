"""`rerail logs`: in the order of time, of live, killed and long runs."""

from __future__ import annotations

import json
import resource
import signal
from datetime import datetime, timedelta, timezone

import pytest

from tests.cli.screen import screen
from tests.conftest import Project, eventually
from tests.wrong_clock import SetClock

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
        "c | --- attempt 2 ---",
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


TWICE = """
steps:
  - {id: a, run: 'echo good'}
  - {id: c, allow_failure: true, retry: {attempts: 2, delay: 0}, run: 'echo c$RERAIL_ATTEMPT >&2; echo more; exit 3'}
  - id: m
    map: {over: [one, two], max_failures: 1}
    steps: [{run: 'echo item ${{ item }}; test ${{ item }} = one'}]
"""


@pytest.fixture
def twice(project: Project) -> Project:
    project.pipeline(TWICE)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    return project


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_separates_the_attempts_of_a_step(twice: Project) -> None:
    whole = twice.rerail("logs", "r", check=0).stdout.splitlines()
    rule = whole.index("c | --- attempt 2 ---")
    assert sorted(whole[rule - 2 : rule]) == ["c | c1", "c | more"]
    assert sorted(whole[rule + 1 : rule + 3]) == ["c | c2", "c | more"]
    assert [line for line in whole if "---" in line] == ["c | --- attempt 2 ---"]
    assert twice.rerail("logs", "r", "c").stdout.splitlines()[2] == "--- attempt 2 ---"
    assert "---" not in twice.rerail("logs", "r", "c", "--attempt", "2").stdout


def test_json_has_the_facts_of_every_line(twice: Project) -> None:
    found = rows(twice.rerail("logs", "r", "--json", check=0).stdout)

    of_c = [(one["attempt"], one["stream"], one["text"]) for one in found if one["step"] == "c"]
    expected = [(1, "stderr", "c1"), (1, "stdout", "more"), (2, "stderr", "c2"), (2, "stdout", "more")]
    assert sorted(of_c) == expected
    of_items = [(one["item"], one["text"]) for one in found if one["step"] == "m"]  # they run side by side
    assert sorted(of_items) == [("one", "item one"), ("two", "item two")]
    assert {one["item"] for one in found if one["step"] == "a"} == {None}
    header = twice.json("show", "r")
    times = [datetime.fromisoformat(str(one["at"])) for one in found]
    assert times == sorted(times)
    assert times[0].utcoffset() == timedelta(0)
    events = [datetime.fromisoformat(one["at"]) for one in reversed(twice.json("history", header["run_id"]))]
    slack = timedelta(seconds=0.1)  # the timeline notes moments, not writes
    assert events[0] - slack <= times[0] <= times[-1] <= events[-1] + slack


def test_tail_counts_lines_in_the_order_of_time(twice: Project) -> None:
    whole = twice.rerail("logs", "r", "--json").stdout.splitlines()
    assert len(whole) == 7
    for count in (0, 1, 3, 7, 100):
        expected = whole[-count:] if count else []
        assert twice.rerail("logs", "r", "--json", "--tail", str(count), check=0).stdout.splitlines() == expected
    assert twice.rerail("logs", "r", "c", "--tail", "1", check=0).stdout.splitlines()[0] == "--- attempt 2 ---"


def test_failed_is_the_output_of_units_that_failed(twice: Project) -> None:
    found = rows(twice.rerail("logs", "r", "--failed", "--json", check=0).stdout)
    assert {(one["step"], one["item"]) for one in found} == {("c", None), ("m", "two")}
    assert "exclude each other" in twice.rerail("logs", "r", "--failed", "-f", check=2).stderr

    twice.pipeline("steps: [{run: echo fine}]", "fine.yaml")
    twice.rerail("run", "fine.yaml", "--id", "f", check=0)
    fine = twice.rerail("logs", "f", "--failed", check=0)
    assert (fine.stdout, "no step or item failed" in fine.stderr) == ("", True)


def test_since_and_timestamps_go_by_the_recorded_times(project: Project) -> None:
    project.env["TZ"] = "Etc/GMT-5"
    project.pipeline("steps: [{id: a, run: 'echo old'}, {id: b, run: 'echo new'}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    order = project.run_dir("r") / "logs" / "order"  # an hour before it was recorded
    before = order.read_text()
    old, _, rest = before.partition(" ")
    order.write_text(f"{float(old) - 3600:.3f} {rest}")

    assert project.rerail("logs", "r", "--since", "10m", check=0).stdout == "b | new\n"
    assert project.rerail("logs", "r", "--since", "2h", check=0).stdout == "a | old\nb | new\n"
    assert project.rerail("logs", "r", "--since", "2h", "--tail", "1", check=0).stdout == "b | new\n"
    local = datetime.fromtimestamp(float(old) - 3600, timezone(timedelta(hours=5)))
    stamped = project.rerail("logs", "r", "a", "-t", check=0).stdout
    assert stamped == f"{local:%Y-%m-%d %H:%M:%S.%f}"[:-4] + " old\n"
    assert "neither a day" in project.rerail("logs", "r", "--since", "soon", check=2).stderr
    none = project.rerail("logs", "r", "a", "--since", "10m", check=0)
    assert (none.stdout, "no output since 10m" in none.stderr) == ("", True)


def test_a_clock_that_is_a_day_ahead_of_the_disk_does_not_change_the_order(project: Project, set_clock: SetClock) -> None:
    set_clock(86_400)
    project.pipeline(TALKING.replace("a2 >&2", "a2"))  # into the same file
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "2", check=0)

    assert project.rerail("logs", "r", check=0).stdout.splitlines()[:3] == ["a | a1", "b | b1", "a | a2"]


def test_what_a_kill_kept_from_the_timeline_stands_where_it_was_written(project: Project) -> None:
    project.pipeline("""
steps:
  - {id: a, run: 'echo first; echo $RERAIL_ATTEMPT >> $LEDGER; test $RERAIL_ATTEMPT = 2 || sleep 60'}
  - {id: b, run: 'echo last'}
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["1"], "the first attempt has printed")
    log = project.run_dir("r") / "logs" / "a.1.out"
    eventually(lambda: log.exists() and log.read_text() == "first\n", "it is in the log")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    project.rerail("resume", "r", check=0)

    assert project.rerail("logs", "r", check=0).stdout.splitlines() == [
        "a | first",
        "a | --- attempt 2 ---",
        "a | first",
        "b | last",
    ]
    assert project.rerail("logs", "r", "--tail", "1", check=0).stdout == "b | last\n"


@pytest.mark.privileges
def test_the_end_of_a_long_log_comes_before_the_next_step(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'seq 4000000'}, {id: b, run: 'sleep 0.2; echo after'}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert project.rerail("logs", "r", "--tail", "2", check=0).stdout == "a | 4000000\nb | after\n"

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (250 << 20, 250 << 20))

    many = project.rerail("logs", "r", "--tail", "3900000", "--since", "1d", check=0, preexec_fn=limited).stdout
    assert many.startswith("a | 10000")  # and the lines are not held: a part of the log may break a line in two
    assert many.count("\n") == 3_900_000


def test_follow_begins_with_the_tail(project: Project) -> None:
    project.pipeline("""
steps:
  - run: 'seq 5; echo >> $LEDGER; until test -e go; do sleep 0.02; done; echo end'
    id: a
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    log = project.run_dir("r") / "logs" / "a.1.out"
    eventually(lambda: log.exists() and log.read_text().endswith("5\n"), "five lines are in the log")
    followed = project.spawn("logs", "r", "-f", "--tail", "2", "--json")
    assert followed.stdout is not None
    assert [json.loads(followed.stdout.readline())["text"] for _ in range(2)] == ["4", "5"]
    (project.root / "go").touch()
    assert [one["text"] for one in rows(followed.communicate()[0])] == ["end"]
    process.communicate()
