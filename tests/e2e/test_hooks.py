"""Hooks: `on_failure` and `finally`, cut off, repeated, asked about, and finished before anything else."""

from __future__ import annotations

import signal

import pytest

from tests.conftest import Project, eventually


def test_hooks_clean_up_after_a_failure_and_at_the_end(project: Project) -> None:
    project.pipeline(
        """
steps:
  - id: a
    run: echo a >> $LEDGER; test -e fixed
    on_failure:
      - {id: undo, run: 'echo undo-${{ steps.a.status }} >> $LEDGER; exit 1'}
      - run: echo undo-more >> $LEDGER
  - {id: b, run: 'echo b >> $LEDGER'}
finally:
  - {id: tell, run: 'echo tell-${{ run.status }} >> $LEDGER'}
  - {run: 'echo end >> $LEDGER'}
"""
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    assert project.ledger() == ["a", "undo-failed", "undo-more", "tell-failed", "end"]
    assert project.json("show", "r")["error"]["step"] == "a"
    (project.root / "fixed").touch()
    resumed = project.rerail("resume", "r", check=0)

    assert project.ledger()[5:] == ["a", "b", "tell-completed", "end"]
    assert "removed" not in resumed.stderr


@pytest.mark.scenario("H12")
def test_a_clean_up_that_was_cut_off_is_finished_before_the_step_is_tried_again(project: Project) -> None:
    project.pipeline(
        """
steps:
  - id: a
    run: echo a >> $LEDGER; test -e fixed
    on_failure:
      - {id: undo, run: 'echo undo >> $LEDGER; test -e fixed || sleep 60'}
      - {id: undo-more, run: 'echo undo-more >> $LEDGER'}
finally:
  - {id: tell, run: 'echo tell >> $LEDGER'}
"""
    )
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a", "undo"], "the clean-up runs")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (project.root / "fixed").touch()
    project.rerail("resume", "r", check=0)

    assert project.ledger()[2:] == ["undo", "undo-more", "a", "tell"]


def kill_when(project: Project, entry: str, times: int, *command: str) -> None:
    """Start a life and kill it when the ledger has that entry so many times."""
    process = project.spawn(*command)
    eventually(lambda: project.ledger().count(entry) == times, f"{entry} runs")
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_the_clean_up_after_an_allowed_failure_is_finished_too(project: Project) -> None:
    project.pipeline(
        """
steps:
  - id: a
    run: echo a >> $LEDGER; exit 1
    allow_failure: true
    on_failure:
      - {id: one, run: 'echo one >> $LEDGER'}
      - {id: two, run: 'echo two >> $LEDGER; test -e fixed || sleep 60'}
      - {id: three, run: 'echo three >> $LEDGER'}
"""
    )
    kill_when(project, "two", 1, "run", "pipeline.yaml", "--id", "r")
    (project.root / "fixed").touch()
    planned = project.rerail("resume", "r", "--dry-run", check=0).stderr
    project.rerail("resume", "r", check=0)

    assert "run    two    the cleanup of a did not finish" in planned
    assert project.ledger() == ["a", "one", "two", "two", "three"]


@pytest.mark.scenario("A10")
def test_an_ending_that_was_cut_off_goes_on_where_it_was(project: Project) -> None:
    project.pipeline(
        """
steps: [{id: a, run: 'echo a >> $LEDGER'}]
finally:
  - {id: one, run: 'echo one >> $LEDGER'}
  - {id: two, run: 'echo two-${{ run.status }} >> $LEDGER; test -e fixed || sleep 60'}
"""
    )
    kill_when(project, "two-completed", 1, "run", "pipeline.yaml", "--id", "r")
    (project.root / "fixed").touch()
    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["a", "one", "two-completed", "two-completed"]


@pytest.mark.parametrize("where", ["on_failure", "allowed", "finally"])
def test_a_hook_that_must_not_be_repeated_asks(project: Project, where: str) -> None:
    hook = "{id: pay, idempotent: false, run: 'echo pay >> $LEDGER; test -e fixed || sleep 60'}"
    allowed = "true" if where == "allowed" else "false"
    hooks = f"on_failure: [{hook}]" if where != "finally" else "idempotent: true"
    project.pipeline(
        f"steps:\n  - id: a\n    run: echo a >> $LEDGER; test -e fixed{' || true' if where == 'finally' else ''}\n"
        f"    allow_failure: {allowed}\n    {hooks}\n" + (f"finally: [{hook}]\n" if where == "finally" else "")
    )
    kill_when(project, "pay", 1, "run", "pipeline.yaml", "--id", "r")
    (project.root / "fixed").touch()
    asked = project.rerail("resume", "r", check=5)

    assert "in-doubt  pay" in asked.stderr
    assert "rerail mark r pay completed|failed|pending" in asked.stderr
    assert project.ledger() == ["a", "pay"]
    project.rerail("mark", "r", "pay", "completed", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == (["a", "pay", "a"] if where == "on_failure" else ["a", "pay"])


def test_a_failure_elsewhere_does_not_cut_a_clean_up_off(project: Project) -> None:
    project.pipeline(
        """
steps:
  - id: a
    needs: []
    run: exit 1
    allow_failure: true
    on_failure: [{id: undo, run: 'echo begun >> $LEDGER; while ! test -e failed; do sleep 0.02; done; sleep 0.3; echo undone >> $LEDGER'}]
  - {id: b, needs: [], run: 'while ! grep -q begun $LEDGER; do sleep 0.02; done; touch failed; exit 1'}
"""
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", "--fail-fast", "--parallel", "3", check=1)

    assert project.ledger() == ["begun", "undone"]


SLOW_CLEAN_UP = """
steps:
  - {id: first, run: 'echo first >> $LEDGER; sleep 0.1'}
  - id: a
    run: echo a >> $LEDGER; test -e fixed
    on_failure:
      - {id: one, run: 'echo one >> $LEDGER; test -e go || sleep 60'}
      - {id: two, run: 'echo two >> $LEDGER'}
"""


def test_a_clean_up_that_is_cut_off_twice_is_still_finished(project: Project) -> None:
    project.pipeline(SLOW_CLEAN_UP)
    kill_when(project, "one", 1, "run", "pipeline.yaml", "--id", "r")
    kill_when(project, "one", 2, "resume", "r")
    for name in ("go", "fixed"):
        (project.root / name).touch()
    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["first", "a", "one", "one", "one", "two", "a"]


def test_what_is_asked_about_a_clean_up_is_asked_until_it_is_answered(project: Project) -> None:
    project.pipeline(SLOW_CLEAN_UP.replace("id: one,", "id: one, idempotent: false,"))
    kill_when(project, "one", 1, "run", "pipeline.yaml", "--id", "r")
    for name in ("go", "fixed"):
        (project.root / name).touch()
    for _ in range(3):
        assert "in-doubt  one" in project.rerail("resume", "r", check=5).stderr
    project.rerail("mark", "r", "one", "completed", check=0)
    resumed = project.rerail("resume", "r", check=0)

    assert project.ledger() == ["first", "a", "one", "two", "a"]
    assert "truncated at byte" not in resumed.stderr


@pytest.mark.parametrize("slow", ["0.3", "0"])
def test_a_step_behind_its_clean_up_waits_for_its_needs_too(project: Project, slow: str) -> None:
    project.pipeline(SLOW_CLEAN_UP)
    kill_when(project, "one", 1, "run", "pipeline.yaml", "--id", "r")
    for name in ("go", "fixed"):
        (project.root / name).touch()
    project.pipeline(SLOW_CLEAN_UP.replace("echo first >> $LEDGER; sleep 0.1", f"sleep {slow}; echo new >> $LEDGER"))
    project.rerail("resume", "r", "--parallel", "4", check=0)

    ledger = project.ledger()[3:]
    assert sorted(ledger) == ["a", "new", "one", "two"]
    assert ledger[-1] == "a"


def test_a_need_that_now_fails_keeps_a_step_from_running_after_its_clean_up(project: Project) -> None:
    project.pipeline(SLOW_CLEAN_UP)
    kill_when(project, "one", 1, "run", "pipeline.yaml", "--id", "r")
    (project.root / "go").touch()
    project.pipeline(SLOW_CLEAN_UP.replace("echo first >> $LEDGER; sleep 0.1", "echo new >> $LEDGER; exit 1"))
    project.rerail("resume", "r", "--parallel", "4", check=1)

    assert sorted(project.ledger()[3:]) == ["new", "one", "two"]


def test_a_hook_that_failed_before_the_crash_is_not_forgotten(project: Project) -> None:
    project.pipeline(
        "steps: [{id: a, run: 'true'}]\n"
        "finally: [{id: f0, run: 'echo f0 >> $LEDGER'}, {id: f1, run: 'echo f1 >> $LEDGER; false'},"
        " {id: f2, run: 'echo f2 >> $LEDGER; test -e go || sleep 60'}]\n"
    )
    kill_when(project, "f2", 1, "run", "pipeline.yaml", "--id", "r")
    (project.root / "go").touch()
    project.rerail("resume", "r", check=1)

    assert project.ledger() == ["f0", "f1", "f2", "f1", "f2"]
    assert project.json("show", "r")["status"] == "failed"


def test_a_clean_up_that_failed_after_an_allowed_failure_is_what_resume_repeats(project: Project) -> None:
    project.pipeline(
        "steps: [{id: a, run: 'echo a >> $LEDGER; false', allow_failure: true,"
        " on_failure: [{id: u, run: 'echo u >> $LEDGER; test -e fixed'}, {id: v, run: 'echo v >> $LEDGER'}]}]\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.rerail("resume", "r", check=1)
    (project.root / "fixed").touch()
    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["a", "u", "v", "u", "u"]


def test_a_last_hook_that_must_not_be_repeated_asks_though_the_run_had_failed(project: Project) -> None:
    project.pipeline(
        "steps: [{id: a, run: 'echo a >> $LEDGER; false'}]\n"
        "finally: [{id: pay, idempotent: false, run: 'echo pay >> $LEDGER; test -e go || sleep 60'}]\n"
    )
    kill_when(project, "pay", 1, "run", "pipeline.yaml", "--id", "r")
    (project.root / "go").touch()
    project.rerail("resume", "r", check=5)
    assert project.ledger().count("pay") == 1
    text = (project.root / "pipeline.yaml").read_text()
    (project.root / "pipeline.yaml").write_text(text.replace("finally: [", "finally: [{id: new, run: 'true'}, "))
    project.rerail("resume", "r", check=5)
    assert project.ledger().count("pay") == 1


def test_a_hook_that_may_fail_is_followed_once_by_the_next(project: Project) -> None:
    hooks = "{id: %s1, run: 'echo %s1 >> $LEDGER; false', allow_failure: true}, {id: %s2, run: 'echo %s2 >> $LEDGER; sleep 0.2'}"
    project.pipeline(
        f"steps: [{{id: s, run: 'false', on_failure: [{hooks % (('h',) * 4)}]}}]\nfinally: [{hooks % (('f',) * 4)}]\n"
    )
    failed = project.rerail("run", "pipeline.yaml", "--parallel", "4", check=1)

    assert project.ledger() == ["h1", "h2", "f1", "f2"]
    assert "kept" not in failed.stderr


def test_each_ending_has_its_last_hooks_whatever_was_cut_off_before(project: Project) -> None:
    project.pipeline(
        "steps: [{id: a, run: 'false', allow_failure: true,"
        " on_failure: [{id: h, run: 'echo h >> $LEDGER; test -e fixed || { test -e slow && sleep 60; false; }'}]}]\n"
        "finally: [{id: f, run: 'echo f-${{ run.status }} >> $LEDGER'}]\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "slow").touch()
    kill_when(project, "h", 2, "resume", "r")
    (project.root / "fixed").touch()
    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["h", "f-failed", "h", "h", "f-completed"]


def test_a_clean_up_that_a_person_calls_failed_runs_again(project: Project) -> None:
    project.pipeline(SLOW_CLEAN_UP.replace("id: one,", "id: one, idempotent: false,"))
    kill_when(project, "one", 1, "run", "pipeline.yaml", "--id", "r")
    for name in ("go", "fixed"):
        (project.root / name).touch()
    project.rerail("mark", "r", "a", "pending", check=0)
    project.rerail("resume", "r", check=5)
    assert project.ledger().count("one") == 1
    project.rerail("mark", "r", "one", "failed", check=0)
    project.rerail("mark", "r", "a", "failed", check=0)
    project.rerail("resume", "r", check=0)

    assert project.ledger()[-1] == "a"


def test_a_clean_up_that_fails_does_not_fail_a_run_whose_step_then_completes(project: Project) -> None:
    project.pipeline(SLOW_CLEAN_UP.replace("echo two >> $LEDGER", "echo two >> $LEDGER; false"))
    kill_when(project, "one", 1, "run", "pipeline.yaml", "--id", "r")
    for name in ("go", "fixed"):
        (project.root / name).touch()
    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["first", "a", "one", "one", "two", "a"]
    assert project.json("show", "r")["status"] == "completed"


def test_a_failing_last_hook_fails_the_run(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}]\nfinally: [{id: tell, run: exit 4}]\n")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)

    assert project.json("show", "r")["error"]["step"] == "tell"


def test_hooks_run_under_fail_fast(project: Project) -> None:
    project.pipeline(
        "steps:\n  - {id: a, needs: [], run: exit 1, on_failure: [{run: 'echo undo >> $LEDGER'}]}\n"
        "  - {id: b, needs: [], run: sleep 60}\nfinally: [{run: 'echo end >> $LEDGER'}]\n"
    )
    project.rerail("run", "pipeline.yaml", "--fail-fast", "--parallel", "2", check=1)

    assert project.ledger() == ["undo", "end"]


DEAR = 'echo "{\\"cost_usd\\": 5}" >> "$RERAIL_METRICS"; echo paid >> "$LEDGER"'


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
