"""What users get from the engine, by running real pipelines through the real command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import RERAIL, Project, eventually
from tests.pipelines import note, pipeline, step


def test_steps_run_in_order_and_hand_out_values(project: Project) -> None:
    project.pipeline(pipeline(step("b", note("echo x=1 >> $RERAIL_OUTPUT")), step("a", note()), step("c", note())))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert project.ledger() == ["b", "a", "c"]
    shown = project.json("show", "r")
    assert [item["id"] for item in shown["steps"]] == ["b", "a", "c"]
    assert shown["steps"][0]["outputs"] == {"x": 1}
    assert shown["status"] == "completed"


def test_needs_make_a_graph_that_runs_as_wide_as_asked(project: Project) -> None:
    meet = note("touch $RERAIL_STEP\nwhile ! test -e {other}; do sleep 0.01; done")
    project.pipeline(
        pipeline(
            step("left", meet.replace("{other}", "right"), needs="[]", timeout="20s"),
            step("right", meet.replace("{other}", "left"), needs="[]", timeout="20s"),
            step("join", note(), needs="[left, right]"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--parallel", "2", check=0)

    assert sorted(project.ledger()[:2]) == ["left", "right"]
    assert project.ledger()[2:] == ["join"]


@pytest.mark.scenario("H8")
def test_a_failure_stops_its_dependants_and_lets_other_branches_finish(project: Project) -> None:
    project.pipeline(
        pipeline(
            step("bad", note("echo oh no >&2\nexit 7"), needs="[]"),
            step("after-bad", note(), needs="[bad]"),
            step("other", note(), needs="[]"),
            step("after-other", note(), needs="[other]"),
        )
    )
    failed = project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "1", check=1)

    assert sorted(project.ledger()) == ["after-other", "bad", "other"]
    assert "exited with code 7" in failed.stderr
    assert "oh no" in failed.stderr
    assert "next: rerail resume r" in failed.stderr
    shown = project.json("show", "r")
    assert shown["status"] == "failed"
    assert {item["id"]: item["status"] for item in shown["steps"]} == {
        "bad": "failed",
        "after-bad": "pending",
        "other": "completed",
        "after-other": "completed",
    }
    error = shown["error"]
    assert (error["type"], error["step"], error["exit_code"], error["retryable"]) == ("ExitCode", "bad", 7, True)
    assert error["stderr_tail"] == "oh no"
    assert "exit 7" in error["command"]
    assert error["variables"]["params"] == {}


def test_resume_retries_exactly_the_step_that_failed(project: Project) -> None:
    project.pipeline(pipeline(step("a", note()), step("b", note("test -e fixed")), step("c", note())))
    project.rerail("run", "pipeline.yaml", check=1)
    (project.root / "fixed").touch()
    resumed = project.rerail("resume", check=0)

    assert project.ledger() == ["a", "b", "b", "c"]
    assert "reuse  a" in resumed.stderr
    assert "rerun  b     failed: exited with code 1" in resumed.stderr
    assert "run    c     not started yet" in resumed.stderr


def test_fail_fast_stops_the_other_branches(project: Project) -> None:
    project.pipeline(
        pipeline(
            step("slow", note("sleep 60"), needs="[]"),
            step("bad", "while ! grep -q slow $LEDGER; do sleep 0.01; done\nexit 1", needs="[]"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "2", "--fail-fast", check=1)

    assert {item["id"]: item["status"] for item in project.json("show", "r")["steps"]} == {
        "slow": "interrupted",
        "bad": "failed",
    }


def test_an_allowed_failure_is_recorded_as_one(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("exit 1"), allow_failure="true"), step("b", note())))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    shown = project.json("show", "r")
    assert [item["status"] for item in shown["steps"]] == ["failed", "completed"]
    assert shown["status"] == "completed"
    assert shown["error"] is None


def test_retries_have_their_delay_and_their_number(project: Project) -> None:
    project.pipeline(
        pipeline(
            step(
                "a",
                'echo "$RERAIL_ATTEMPT:$RERAIL_STEP_KEY" >> "$LEDGER"\ntest $RERAIL_ATTEMPT = 3',
                retry="{attempts: 3, delay: 0.05, backoff: fixed, jitter: false}",
            )
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert project.ledger() == ["1:r/a", "2:r/a", "3:r/a"]
    events = project.json("history", "r")
    assert [event["retry_in"] for event in events if event["event"] == "step-failed"] == [0.05, 0.05]


@pytest.mark.scenario("A10")
def test_attempt_counts_and_deadlines_survive_a_kill(project: Project) -> None:
    retry = "{attempts: 3, delay: 1h, backoff: fixed, jitter: false, max_delay: 1h}"
    project.pipeline(pipeline(step("a", note("exit 1"), retry=retry)))
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: '"retry_at"' in _journal(project), "the retry is put off")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    resumed = project.spawn("resume", "r", "--json")
    assert resumed.stdout is not None
    first = resumed.stdout.readline()
    resumed.send_signal(signal.SIGTERM)
    rest, _ = resumed.communicate()

    # It waits on: no second attempt an hour early, and the failure still counts.
    assert "run-resumed" in first
    assert "step-started" not in rest
    assert project.ledger() == ["a"]
    assert resumed.returncode == 143
    assert project.json("show", "r")["steps"][0]["failures"] == 1


def _journal(project: Project) -> str:
    return "".join(path.read_text() for path in project.root.glob(".rerail/runs/r/journal-*"))


@pytest.mark.scenario("H5")
def test_a_timeout_ends_the_whole_step(project: Project) -> None:
    project.pipeline(pipeline(step("a", "(sleep 977; true) &\nsleep 977", timeout="0.3s")))
    failed = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)

    assert "timed out after 0.3 s" in failed.stderr
    assert project.json("show", "r")["error"]["type"] == "Timeout"
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _is_sleep_977(pid)]


def _is_sleep_977(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00977\x00"
    except OSError:
        return False


@pytest.mark.scenario("G1", "G4")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_step_and_says_how_to_go_on(project: Project, number: signal.Signals, code: int) -> None:
    project.pipeline(pipeline(step("a", note()), step("b", note("test -e go || sleep 60")), step("c", note())))
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a", "b"], "b runs")
    process.send_signal(number)
    _, message = process.communicate()

    assert process.returncode == code
    assert "next: rerail resume r" in message
    shown = project.json("show", "r")
    assert shown["status"] == "interrupted"
    assert [item["status"] for item in shown["steps"]] == ["completed", "interrupted", "pending"]
    assert shown["state"]["kind"] == "interrupted"
    (project.root / "go").touch()
    project.rerail("resume", check=0)
    assert project.ledger() == ["a", "b", "b", "c"]


@pytest.mark.scenario("A11", "F3")
def test_kill_is_crashed_and_resumed_without_any_flag(project: Project) -> None:
    project.pipeline(pipeline(step("a", note()), step("b", note("test -e go || sleep 60")), step("c", note())))
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a", "b"], "b runs")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert project.json("list")[0]["status"] == "crashed"
    assert project.json("list", "--status", "crashed", "--resumable")[0]["run_id"] == "r"
    (project.root / "go").touch()
    resumed = project.rerail("resume", check=0)

    assert "rerun  b     interrupted during attempt 1" in resumed.stderr
    assert project.ledger() == ["a", "b", "b", "c"]
    assert project.json("list")[0]["status"] == "completed"


def test_a_step_that_is_not_idempotent_is_never_repeated_blindly(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("sleep 60"), idempotent="false"), step("b", note())))
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a"], "a runs")
    process.send_signal(signal.SIGKILL)
    process.communicate()

    paused = project.rerail("resume", "r", check=5)
    assert "the outcome of a is unknown" in paused.stderr
    assert "rerail mark r a completed|failed|pending" in paused.stderr
    project.rerail("resume", "r", check=5)
    assert project.ledger() == ["a"]
    assert project.rerail("mark", "r", "nope", "completed").returncode == 2
    project.rerail("mark", "r", "a", "completed", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["a", "b"]
    marks = [event for event in project.json("history", "r") if event["event"] == "step-marked"]
    assert [(mark["step"], mark["status"]) for mark in marks] == [("a", "completed")]


@pytest.mark.scenario("L5")
def test_an_edited_pipeline_reruns_what_changed_and_what_depends_on_it(project: Project) -> None:
    def text(script: str) -> str:
        return pipeline(
            step("a", note(script)),
            step("b", note("echo same=1 >> $RERAIL_OUTPUT"), needs="[a]"),
            step("c", note(), needs="[b]"),
            step("other", note(), needs="[]"),
            step("end", note("test -e fixed"), needs="[c, other]"),
        )

    project.pipeline(text("echo v=1 >> $RERAIL_OUTPUT"))
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "1", check=1)
    ran = len(project.ledger())
    project.pipeline(
        "# only a comment\n" + text("echo v=1 >> $RERAIL_OUTPUT").replace("    needs", "    # why\n    needs")
    )
    assert "definition changed" not in project.rerail("resume", "--dry-run", check=0).stderr
    project.pipeline(text("echo v=2 >> $RERAIL_OUTPUT"))
    refused = project.rerail("resume", "--changes", "refuse", check=2)
    assert "was edited since run r started: a" in refused.stderr
    kept = project.rerail("resume", "--changes", "keep", "--dry-run", check=0)
    assert kept.stderr.count("reuse") == 4  # steps
    (project.root / "fixed").touch()
    resumed = project.rerail("resume", check=0)

    assert "rerun  a      definition changed" in resumed.stderr
    assert project.ledger()[ran:] == ["a", "b", "c", "end"]


def three(script: str) -> str:
    """Steps in a row, of which the last one fails at first."""
    return pipeline(step("a", note(script)), step("b", note()), step("c", note("test -e fixed")))


def test_a_step_that_comes_out_the_same_stops_the_cascade(project: Project) -> None:
    project.pipeline(three("echo v=1 >> $RERAIL_OUTPUT"))
    project.rerail("run", "pipeline.yaml", check=1)
    project.pipeline(three("true; echo v=1 >> $RERAIL_OUTPUT"))
    (project.root / "fixed").touch()
    resumed = project.rerail("resume", check=0)

    assert "b: unchanged: its inputs are the same" in resumed.stderr
    assert project.ledger() == ["a", "b", "c", "a", "c"]


def test_a_step_that_hands_out_nothing_is_never_the_same(project: Project) -> None:
    """What it did cannot be compared, so whoever needs it runs again."""
    project.pipeline(three("true"))
    project.rerail("run", "pipeline.yaml", check=1)
    project.pipeline(three("true; true"))
    (project.root / "fixed").touch()
    project.rerail("resume", check=0)

    assert project.ledger() == ["a", "b", "c", "a", "b", "c"]


@pytest.mark.scenario("L8")
def test_without_the_pipeline_file_the_frozen_copy_is_used(project: Project) -> None:
    path = project.pipeline(pipeline(step("a", note()), step("b", note("test -e fixed"))))
    project.rerail("run", "pipeline.yaml", check=1)
    path.unlink()
    (project.root / "fixed").touch()
    resumed = project.rerail("resume", check=0)

    assert "pipeline.yaml is missing; using the copy of the last invocation" in resumed.stderr
    assert project.ledger() == ["a", "b", "b"]


def test_a_completed_run_is_left_alone(project: Project) -> None:
    project.pipeline(pipeline(step("a", note())))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    before = project.state_digest()

    assert "is completed" in project.rerail("resume", "r", check=0).stderr
    assert "nothing to resume" in project.rerail("resume", check=0).stderr
    assert project.state_digest() == before
    assert project.ledger() == ["a"]


def test_a_dry_run_changes_no_byte(project: Project) -> None:
    project.pipeline(pipeline(step("a", note()), step("b", note("exit 1"))))
    project.rerail("run", "pipeline.yaml", "--dry-run", check=0)
    assert not (project.root / ".rerail").exists()
    project.rerail("run", "pipeline.yaml", check=1)
    before = project.state_digest()
    plan = project.json("resume", "--dry-run")

    assert [(item["step"], item["decision"]) for item in plan["decisions"]] == [("a", "reuse"), ("b", "rerun")]
    for command in (("list",), ("show", "last"), ("history", "last")):
        project.rerail(*command, check=0)
    assert project.state_digest() == before


def test_the_stream_of_events_is_json_and_in_order(project: Project) -> None:

    project.pipeline(pipeline(step("a", note())))
    out = project.rerail("run", "pipeline.yaml", "--json", check=0).stdout
    events = [json.loads(line) for line in out.splitlines()]

    assert [event["event"] for event in events] == ["run-started", "step-started", "step-completed", "run-finished"]
    assert [event["seq"] for event in events] == [1, 2, 3, 4]
    assert all("at" in event for event in events)


@pytest.mark.scenario("A15")
def test_python_and_write_steps(project: Project) -> None:
    (project.root / "mod.py").write_text(
        "import os\n"
        "def good(n): return {'doubled': n * 2, 'cwd': os.getcwd()}\n"
        "async def slow(): return {'async': True}\n"
        "def bad(): raise ValueError('no such luck')\n"
    )
    project.pipeline(
        "steps:\n"
        "  - {id: good, python: 'mod:good', with: {n: 4}}\n"
        "  - {id: slow, python: 'mod:slow'}\n"
        "  - {id: file, write: {path: deep/er/file.txt, content: 'hello'}}\n"
        "  - {id: bad, python: 'mod:bad'}\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)

    shown = project.json("show", "r")
    assert shown["steps"][0]["outputs"] == {"doubled": 8, "cwd": str(project.root)}
    assert shown["steps"][1]["outputs"] == {"async": True}
    assert (project.root / "deep/er/file.txt").read_text() == "hello"
    assert (shown["error"]["type"], shown["error"]["message"]) == ("ValueError", "ValueError: no such luck")
    assert "def bad" in shown["error"]["traceback"]


@pytest.mark.scenario("A15", "C7", "H8", "H11")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("cwd: not-there\n    run: 'true'", "could not start"),
        ("run: echo nonsense >> $RERAIL_OUTPUT", "line 1: neither name=value"),
        ("run: kill -SEGV $$", "killed by SIGSEGV"),
        ("run: definitely-not-a-command", "exited with code 127"),
        ("python: 'nomodule:f'", "No module named 'nomodule'"),
        ("run: false | true", "exited with code 1"),
    ],
)
def test_every_way_to_fail_has_a_name(project: Project, body: str, words: str) -> None:
    project.pipeline(f"steps:\n  - id: a\n    {body}\n")

    assert words in project.rerail("run", "pipeline.yaml", check=1).stderr


@pytest.mark.scenario("L10")
def test_run_resume_continues_or_starts(project: Project) -> None:
    project.pipeline(pipeline(step("a", note()), step("b", note("test -e fixed")), top="params: {level: draft}"))
    project.rerail("run", "pipeline.yaml", "--resume", check=1)
    project.rerail("run", "pipeline.yaml", "--resume", "-p", "level=final", check=1)
    assert len(project.json("list")) == 2
    project.rerail("run", "pipeline.yaml", "--resume", "-p", "level=draft", check=1)
    assert len(project.json("list")) == 2
    project.rerail("run", "pipeline.yaml", "--fresh", check=1)
    assert len(project.json("list")) == 3
    project.rerail("run", "pipeline.yaml", "--id", "x", "-p", "level=draft", check=1)
    assert "exists already" in project.rerail("run", "pipeline.yaml", "--id", "x", check=2).stderr
    assert (
        "other params" in project.rerail("run", "pipeline.yaml", "--id", "x", "--resume", "-p", "level=z", check=2).stderr
    )
    (project.root / "fixed").touch()
    project.rerail("run", "pipeline.yaml", "--id", "x", "--resume", check=0)


def test_options_of_a_run_hold_on_resume(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("exit 1"))))
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "7", check=1)
    project.rerail("resume", "r", check=1)
    project.rerail("resume", "r", "--parallel", "3", check=1)
    project.rerail("resume", "r", check=1)

    lives = [event["options"]["parallel"] for event in project.json("history", "r") if "options" in event]
    assert lives == [3, 3, 7, 7]


@pytest.mark.scenario("G6")
def test_closed_output_never_fails_a_run(project: Project) -> None:

    project.pipeline(pipeline(step("a", note()), step("b", note())))
    command = " ".join(RERAIL)
    for redirect in (">&- 2>&-", "> /dev/full 2> /dev/full", "| head -c 0"):
        before = len(project.ledger())
        subprocess.run(
            ["bash", "-c", f"{command} run pipeline.yaml --json {redirect}"],
            cwd=project.root,
            env=project.env,
            capture_output=True,
            check=False,
        )

        def both_ran(before: int = before) -> bool:
            return len(project.ledger()) == before + 2

        eventually(both_ran, redirect)
    assert [run["status"] for run in project.json("list")] == ["completed"] * 3


def test_very_long_intervals_and_time_limits_are_no_problem(project: Project) -> None:
    project.pipeline(pipeline(step("a", note(), timeout="9999999h"), top="checkpoint: {interval: 99999h}"))
    project.rerail("run", "pipeline.yaml", check=0)
