"""Nothing survives: rerail and its watchdogs are killed in every order, and at once; the oracle is /proc."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rerail.processes import MARKS
from tests.conftest import Project, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

# Each writes down its number, and stays: by the book of daemons, deaf, in sessions of their own, with parents that are gone.
STAY = 'echo $BASHPID >> "$PIDS"; trap "" INT TERM HUP; while :; do sleep 1; done'
HIDING = f"""
(setsid bash -c '{STAY}' &)
nohup bash -c '{STAY}' > /dev/null 2>&1 &
((bash -c '{STAY}' &) &)
{STAY}
"""
PIPELINE = """
steps:
  - {id: shell, needs: [], run: "bash hiding.sh"}
  - {id: function, needs: [], python: "mod:stay"}
  - id: items
    needs: []
    map: {over: [a, b], parallel: 2}
    steps: [{run: "bash hiding.sh"}]
  - id: command
    needs: []
    map: {over: {command: "bash hiding.sh"}}
    steps: [{run: "true"}]
  - {id: checked, needs: [], run: "true", checks: ["bash hiding.sh"]}
  - {id: hooked, needs: [], run: "false", on_failure: [{run: "bash hiding.sh"}]}
"""
HIDDEN = 4 * 6 + 1  # processes that hide in each of them, and the function
LAST = 'steps: [{id: a, run: "true"}]\nfinally: [{run: "bash hiding.sh"}]\n'


class Life:
    """A run whose steps all hide processes, and what is alive of it."""

    def __init__(self, project: Project, text: str = PIPELINE, count: int = HIDDEN) -> None:
        (project.root / "hiding.sh").write_text(HIDING)
        (project.root / "mod.py").write_text(
            "import os, time\ndef stay():\n    with open(os.environ['PIDS'], 'a') as file:\n"
            "        print(os.getpid(), file=file)\n    time.sleep(3600)\n"
        )
        self._pids = project.root / "pids"
        project.env["PIDS"] = str(self._pids)
        project.pipeline(text)
        self.rerail = project.spawn("run", "pipeline.yaml", "--id", "r", "-q", "--parallel", "8")
        eventually(lambda: self._pids.exists() and len(self._pids.read_text().split()) >= count, "all of them run")
        self.hidden = [int(pid) for pid in self._pids.read_text().split()]
        eventually(lambda: len(self.watchdogs()) == 2, "both watchdogs run")

    def watchdogs(self) -> set[int]:
        """Live children of rerail that are no step's: they do not bear a mark."""
        found = set()
        for pid in children(self.rerail.pid):
            with contextlib.suppress(OSError):
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                if environment and MARKS.encode() not in environment and pid not in self.hidden:
                    found.add(pid)
        return found

    def strike(self, *pids: int) -> None:
        """Kill processes in one instant: none of them runs between the first blow and the last."""
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        eventually(lambda: all(state(pid) == "T" for pid in pids), "they stand still")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def survivors(self) -> list[int]:
        return [pid for pid in self.hidden if state(pid) not in ("", "Z", "X")]

    def end(self) -> None:
        for pid in self.survivors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


@pytest.fixture
def begin(project: Project) -> Iterator[Callable[..., Life]]:
    begun: list[Life] = []

    def begin(*arguments: str | int) -> Life:
        begun.append(Life(project, *arguments))  # type: ignore[arg-type]
        return begun[-1]

    yield begin
    for life in begun:
        life.end()


def rerail_alone(life: Life) -> None:
    life.strike(life.rerail.pid)


def rerail_and_a_watchdog(life: Life) -> None:
    life.strike(life.rerail.pid, min(life.watchdogs()))


def rerail_and_the_other_watchdog(life: Life) -> None:
    life.strike(max(life.watchdogs()), life.rerail.pid)


def the_watchdogs_and_later_rerail(life: Life) -> None:
    """As the out-of-memory killer would, one after the other; nobody can have meant that."""
    for _ in range(2):
        before = life.watchdogs()
        life.strike(*before)
        replaced(life, before)
    life.strike(life.rerail.pid)


def replaced(life: Life, before: set[int]) -> None:
    eventually(lambda: len(life.watchdogs() - before) == 2, "there are others")


def a_watchdog_and_later_rerail_with_the_other(life: Life) -> None:
    first, second = life.watchdogs()
    life.strike(first)
    eventually(lambda: life.watchdogs() - {first, second}, "there is another")
    life.strike(life.rerail.pid, second)


def what_people_type(life: Life) -> None:
    """`pkill -9 -f 'rerail run'` and `killall -9 rerail`, `pkill -9 rerail` and `pkill -9 python`, of what is of this run."""
    named = {pid for pid in {life.rerail.pid, *life.watchdogs()} if matches(pid)}
    assert life.rerail.pid in named
    life.strike(*named)


def matches(pid: int) -> bool:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    return bool(re.search(r"rerail|python|pipeline\.yaml", command) or re.search("rerail|python", name))


ORDERS = [
    rerail_alone,
    rerail_and_a_watchdog,
    rerail_and_the_other_watchdog,
    the_watchdogs_and_later_rerail,
    a_watchdog_and_later_rerail_with_the_other,
    what_people_type,
]


@pytest.mark.scenario("A11", "H1", "H3")
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)
def test_nothing_survives_whoever_is_killed_in_whatever_order(
    begin: Callable[..., Life], order: Callable[[Life], None]
) -> None:
    life = begin()
    order(life)

    eventually(lambda: not life.survivors(), "all are gone")


@pytest.mark.scenario("H1")
def test_nor_do_last_hooks(begin: Callable[..., Life]) -> None:
    life = begin(LAST, 4)
    rerail_and_a_watchdog(life)

    eventually(lambda: not life.survivors(), "all are gone")


@pytest.mark.scenario("H1")
@pytest.mark.parametrize("which", [min, max])
def test_nor_does_what_has_no_environment_after_the_watchdogs_were_replaced(
    project: Project, begin: Callable[..., Life], which: Callable[[set[int]], int]
) -> None:
    """Such a process is known by its session alone: whoever is started later must know that too."""
    hiding = f"exec env -i PIDS={project.root}/pids bash -c '{STAY}'"
    (project.root / "bare.sh").write_text(hiding)
    life = begin("steps: [{id: a, run: 'exec bash bare.sh'}]", 1)
    before = life.watchdogs()
    life.strike(*before)
    replaced(life, before)
    life.strike(life.rerail.pid, which(life.watchdogs()))

    eventually(lambda: not life.survivors(), "it is gone")


@pytest.mark.scenario("H1")
def test_a_run_completes_although_its_watchdogs_are_killed_all_the_time(project: Project) -> None:
    project.pipeline(
        "steps: [{id: a, run: 'echo a >> $LEDGER; until test -e go; do sleep 0.02; done'}, {id: b, run: 'true'}]"
    )
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "-q")
    eventually(lambda: project.ledger() == ["a"], "it runs")
    killed: set[int] = set()

    def again() -> bool:
        for pid in children(process.pid):
            with contextlib.suppress(OSError):
                if MARKS.encode() not in Path(f"/proc/{pid}/environ").read_bytes() and state(pid) not in ("", "Z", "X"):
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)
        return len(killed) >= 8

    eventually(again, "each is replaced")
    (project.root / "go").touch()
    assert process.wait() == 0
    assert project.json("show", "r")["status"] == "completed"


# The last line: all three are killed at once, and the steps really outlive them


def outlived(begin: Callable[..., Life], text: str = PIPELINE, count: int = HIDDEN) -> Life:
    life = begin(text, count)
    life.strike(life.rerail.pid, *life.watchdogs())
    life.rerail.communicate()
    assert life.survivors()
    return life


@pytest.mark.scenario("H2")
@pytest.mark.parametrize("how", [("stop", "r"), ("stop", "--force", "r"), ("delete", "r", "--yes")])
def test_whoever_stops_or_deletes_a_dead_run_ends_what_lives_of_it(
    project: Project, begin: Callable[..., Life], how: tuple[str, ...]
) -> None:
    life = outlived(begin)
    said = project.rerail(*how, check=0).stderr

    assert not life.survivors()
    if how[0] == "stop":
        assert "run r is not running; ended " in said
        assert "run r is not running\n" in project.rerail(*how, check=0).stderr


@pytest.mark.scenario("H2")
@pytest.mark.parametrize("status", ["completed", "failed", "pending"])
def test_a_step_that_still_runs_is_ended_before_it_is_marked(
    project: Project, begin: Callable[..., Life], status: str
) -> None:
    life = outlived(begin)
    project.rerail("mark", "r", "shell", status, check=0)

    assert not life.survivors()


@pytest.mark.scenario("H2")
def test_an_answer_to_a_dead_run_ends_what_lives_of_it(project: Project, begin: Callable[..., Life]) -> None:
    life = outlived(begin, PIPELINE + "  - {id: ok, needs: [], approve: really}\n")
    project.rerail("approve", "r", "ok", check=0)

    assert not life.survivors()


def test_a_pattern_that_takes_for_ever_ends_though_rerail_is_killed_meanwhile(project: Project) -> None:
    """It is looked for by another process, which nobody would end."""
    project.pipeline("""
steps:
  - id: a
    retry: {attempts: 2, on: ["(a+)+(b)"]}
    run: 'printf "a%.0s" {1..60} >&2; exit 1'
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "-q")

    def searcher() -> int:
        for pid in children(process.pid):
            with contextlib.suppress(OSError, IndexError):
                spent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])
                if b"re.search" in Path(f"/proc/{pid}/cmdline").read_bytes() and spent > 5:  # ticks: it has its text
                    return pid
        return 0

    pid = eventually(searcher, "it is looked for")
    process.kill()
    process.wait()

    eventually(lambda: state(pid) in ("", "Z", "X"), "it has ended")


def held(pid: int) -> set[str]:
    """Return the kinds and paths of what a process has open."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            found.add(os.readlink(fd).partition(":")[0])
    return found


def test_the_watchdogs_let_go_of_all_that_rerail_held(project: Project) -> None:
    """Whoever reads what rerail prints, or waits for its lock, must not wait for them."""
    project.pipeline("steps: [{id: a, run: 'echo a >> $LEDGER; until test -e go; do sleep 0.02; done'}]")
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "-q")
    eventually(lambda: project.ledger() == ["a"], "it runs")
    watchdogs = [pid for pid in children(process.pid) if b"RERAIL_MARKS" not in Path(f"/proc/{pid}/environ").read_bytes()]
    assert len(watchdogs) == 2
    for pid in watchdogs:  # one that was not given the time to begin holds all of it still
        eventually(lambda: held(pid) <= {"pipe", "anon_inode"}, f"{pid} holds nothing else")  # noqa: B023
    (project.root / "go").touch()
    assert process.wait() == 0
    left = subprocess.run(["ps", "-o", "args=", "--ppid", str(process.pid)], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def test_the_time_until_a_kill_is_counted_although_the_watchdogs_come_late(project: Project) -> None:
    """A busy machine may resume a run before it lets its watchdogs write down when it died."""
    project.pipeline("steps: [{id: a, run: 'echo a >> $LEDGER; until test -e go; do sleep 0.02; done'}]")
    began = time.monotonic()
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "-q")
    eventually(lambda: project.ledger() == ["a"], "it runs")
    eventually(lambda: time.monotonic() - began > 0.5, "it has run for a while")
    watchdogs = [pid for pid in children(process.pid) if b"RERAIL_MARKS" not in Path(f"/proc/{pid}/environ").read_bytes()]
    for pid in watchdogs:
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: state(pid) == "T", f"{pid} is stopped")  # noqa: B023
    process.kill()
    process.wait()
    (project.root / "go").touch()

    resumed = project.spawn("resume", "r", "-q")
    since = time.monotonic()
    eventually(lambda: resumed.poll() is not None or time.monotonic() - since > 1.5, "it has ended, or waits")
    for pid in watchdogs:
        os.kill(pid, signal.SIGCONT)
    assert resumed.wait() == 0
    assert 0.4 < project.json("show", "r")["active_seconds"] <= time.monotonic() - began
