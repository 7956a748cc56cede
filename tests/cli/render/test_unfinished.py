"""A new run beside an unfinished one with the same params: said, asked at a terminal, answered beforehand."""

from __future__ import annotations

import pytest

from rerail.app.runs import same_work, unfinished
from rerail.stores.directory import DirectoryStore
from tests.cli.screen import screen
from tests.conftest import Project, eventually

PAID = """
params: {topic: {required: true}, level: 3}
steps:
  - {id: research, run: 'echo research >> $LEDGER; echo "{\\"cost_usd\\": 0.25}" >> $RERAIL_METRICS'}
  - {id: write, run: test -e fixed}
"""


@pytest.fixture
def begun(project: Project) -> Project:
    project.pipeline(PAID)
    project.rerail("run", "-p", "topic=sun", "--id", "older", check=1)
    return project


def test_a_script_is_told_and_starts_anew(begun: Project) -> None:
    again = begun.rerail("run", "-p", "topic=sun", check=1)
    assert (
        "rerail: note: run older with the same params is unfinished: failed, 1 of 2 steps done, $0.25;"
        " continue it with: rerail resume older\n"
    ) in again.stderr
    assert begun.ledger() == ["research", "research"]
    assert "(and 1 more)" in begun.rerail("run", "-p", "topic=sun", "--dry-run", check=0).stderr


@pytest.mark.parametrize("arguments", [("--fresh",), ("--quiet",), ("-p", "topic=sea"), ("-p", "level=4")])
def test_nothing_is_said_where_it_is_not_the_same_work(begun: Project, arguments: tuple[str, ...]) -> None:
    assert "note:" not in begun.rerail("run", "-p", "topic=sun", *arguments, check=1).stderr


def test_other_pipelines_and_completed_runs_are_not_the_same_work(begun: Project) -> None:
    begun.pipeline(PAID, "other.yaml")
    assert "note:" not in begun.rerail("run", "other.yaml", "-p", "topic=sun", check=1).stderr
    (begun.root / "fixed").touch()
    begun.rerail("resume", "older", check=0)
    assert "note:" not in begun.rerail("run", "pipeline.yaml", "-p", "topic=sun", check=0).stderr


def test_a_live_run_is_to_be_watched(project: Project) -> None:
    project.pipeline("steps: [{run: 'echo >> $LEDGER; until test -e go; do sleep 0.02; done'}]")
    alive = project.spawn("run", "--id", "alive")
    eventually(project.ledger_file.read_text)
    beside = project.spawn("run", "--id", "beside")
    assert beside.stderr is not None
    assert "run alive with the same params is running: 0 of 1 steps done; watch it with: rerail watch alive" in (
        beside.stderr.readline()
    )
    taken = project.rerail("run", "--fresh", "--id", "alive", check=2)
    assert "run 'alive' is running already\n  next: rerail watch alive\n" in taken.stderr
    (project.root / "go").touch()
    assert (alive.wait(), beside.wait()) == (0, 0)


@pytest.mark.parametrize(
    ("keys", "code", "runs", "done"),
    [
        (b"\n", 0, 1, ["research"]),  # the safe one: nothing is paid for twice
        (b"r\n", 0, 1, ["research"]),
        (b"new\n", 0, 2, ["research", "research"]),
        (b"perhaps\nn\n", 0, 2, ["research", "research"]),
        (b"\x03", 130, 1, ["research"]),
        (b"\x04", 130, 1, ["research"]),
    ],
)
def test_a_person_at_the_terminal_chooses(begun: Project, keys: bytes, code: int, runs: int, done: list[str]) -> None:
    (begun.root / "fixed").touch()
    shown = screen(begun, "run", "-p", "topic=sun")
    asked = shown.until(lambda text: text.endswith("  >"), "the question")
    assert "? run older with the same params is unfinished: failed, 1 of 2 steps done, $0.25" in asked
    for line in keys.splitlines(keepends=True):
        shown.type(line)
        if line == b"perhaps\n":
            shown.until(lambda text: text.count("start a [n]ew run?") == 2, "it asks again")
    shown.end()
    assert shown.process.returncode == code
    assert len(begun.json("list")) == runs
    assert begun.ledger() == done


@pytest.mark.parametrize(("option", "runs"), [("--resume", 1), ("--fresh", 2)])
def test_an_option_answers_beforehand(begun: Project, option: str, runs: int) -> None:
    (begun.root / "fixed").touch()
    shown = screen(begun, "run", "-p", "topic=sun", option)
    assert "[n]ew" not in shown.end()
    assert len(begun.json("list")) == runs


def test_runs_at_rest_are_not_opened_to_find_it(begun: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    begun.rerail("run", "-p", "topic=sea", "--id", "newer", check=1)
    store = DirectoryStore(str(begun.root / ".rerail"))

    def opened(run_id: str) -> None:
        raise AssertionError(f"{run_id} was opened")

    monkeypatch.setattr(store, "read", opened)
    monkeypatch.setattr(store, "header", opened)
    file = str(begun.root / "pipeline.yaml")
    params = {"topic": "sun", "level": 3}
    assert [row["run_id"] for row in same_work(store, file, params, base_dir=store.base_dir)] == ["older"]
    assert [row["run_id"] for row in unfinished(store)] == ["newer", "older"]


def test_resume_names_the_other_unfinished_runs(begun: Project) -> None:
    for topic in ("a", "b", "c", "d"):
        begun.rerail("run", "-p", f"topic={topic}", "--id", topic, check=1)
    told = begun.rerail("resume", check=1).stderr
    assert told.startswith(
        "rerail: d is the newest of 5 unfinished runs; also unfinished: c (pipeline, failed), b (pipeline, failed),"
        " a (pipeline, failed) and 1 more (rerail list --resumable)\n"
    )
    assert "newest of" not in begun.rerail("resume", "--quiet", check=1).stderr


def test_resume_of_a_live_newest_run_says_watch(project: Project) -> None:
    project.pipeline("steps: [{run: 'echo >> $LEDGER; until test -e go; do sleep 0.02; done'}]")
    alive = project.spawn("run", "--id", "alive")
    eventually(project.ledger_file.read_text)
    assert "next: rerail watch alive" in project.rerail("resume", check=4).stderr
    (project.root / "go").touch()
    assert alive.wait() == 0
