"""Processes as they really end: killed, orphaned, out of memory, hung up on, as PID 1, in somebody else's program.

Closes what the other tests leave open in groups A, F, G and H of the fault catalogue.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import termios
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rerail.core.events import StepCompleted, StepFailed, StepInterrupted
from rerail.core.run_state import UnitState
from rerail.core.unit_id import UnitId
from rerail.stores.directory import DirectoryStore
from tests.conftest import RERAIL, Project, eventually
from tests.e2e.test_processes import census
from tests.pipelines import note, pipeline, step

STRACE = shutil.which("strace")
needs_strace = pytest.mark.skipif(STRACE is None, reason="needs strace, which makes the kernel's answers")
needs_root = pytest.mark.needs_root("to mount and to make namespaces")
pytestmark = pytest.mark.privileges

HOLD = note("while ! test -e go; do sleep 0.02; done")


def unit(project: Project, name: str) -> UnitState:
    """What is recorded about a step of run r."""
    return DirectoryStore(str(project.root / ".rerail")).read("r").state.units[UnitId(name)]


def program(project: Project, text: str) -> list[str]:
    """Run a program that uses rerail as a library; the words it prints."""
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=project.root, env=project.env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


# Group A


STEPS, KILLS = 4, 5
LIVES = """
import os
from rerail.cli.main import call

for _ in range(2):  # import once what every life needs
    call(["run", "fails.yaml", "--id", "f", "--resume", "-q"])
while True:
    child = os.fork()
    if child == 0:
        os._exit(call(["run", "pipeline.yaml", "--id", "r", "--resume", "-q"]))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, flush=True)  # a child would print once more what was not
    if code != -9:
        break
"""


@pytest.mark.scenario("A13")
def test_however_often_a_step_kills_its_runner_no_ground_is_lost(project: Project) -> None:
    """Each step kills its runner again and again: every attempt is counted, and no completed step runs again."""
    poison = f"test $RERAIL_ATTEMPT -gt {KILLS} || {{ kill -9 $PPID; sleep 60; }}"
    names = [f"s{number}" for number in range(STEPS)]
    project.pipeline(
        pipeline(
            *(step(name, 'echo "$RERAIL_STEP:$RERAIL_ATTEMPT" >> "$LEDGER"\n' + poison) for name in names),
            top="max_crashes: 100",
        )
    )
    project.pipeline(pipeline(step("f", "false")), "fails.yaml")

    assert program(project, LIVES) == ["-9"] * (STEPS * KILLS) + ["0"]
    assert project.ledger() == [f"{name}:{attempt}" for name in names for attempt in range(1, KILLS + 2)]


LIBRARY = """
import os, signal, sys, threading
from rerail import api
from rerail.core.model import Call, Pipeline, Run, RunOptions, Step
from rerail.stores.directory import DirectoryStore

store = DirectoryStore(".rerail")
steps = (
    Step(id="first", action=Run(script='echo first >> "$LEDGER"')),
    Step(id="f", action=Call(target="f"), needs=("first",)),
    Step(id="last", action=Run(script='echo last >> "$LEDGER"'), needs=("f",)),
)

def start(run_id, function):
    request = api.StartRequest(pipeline_path="pipeline.yaml", run_id=run_id, options=RunOptions(parallel=1))
    return api.start_pipeline(store, Pipeline(name="p", steps=steps), text, request, functions={"f": function}).end.status

text = open("pipeline.yaml", "rb").read()
"""
LIBRARY_FILE = """
name: p
steps:
  - {id: first, run: 'echo first >> "$LEDGER"'}
  - {id: f, python: "nowhere:f"}
  - {id: last, run: 'echo last >> "$LEDGER"'}
"""


@pytest.mark.scenario("A15")
def test_a_function_that_ends_its_program_costs_a_step_or_a_life_and_no_state(project: Project) -> None:
    """In library mode SystemExit, KeyboardInterrupt and RecursionError fail the step; os._exit is a crash like any."""
    project.pipeline(LIBRARY_FILE)
    said = program(
        project,
        LIBRARY
        + """
def leaves(): raise SystemExit(3)
def interrupts(): raise KeyboardInterrupt
def recurses(): return recurses()

for function in (leaves, interrupts, recurses):
    print(start(function.__name__, function))
child = os.fork()
if child == 0:
    start("r", lambda: os._exit(9))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    )

    assert said == ["failed", "failed", "failed", "9"]
    assert {run["run_id"]: run["status"] for run in project.json("list")} == {
        "leaves": "failed",
        "interrupts": "failed",
        "recurses": "failed",
        "r": "crashed",
    }
    assert unit(project, "first").status == "completed"
    assert project.ledger() == ["first"] * 4


# Group F


@needs_root
@pytest.mark.scenario("F8")
def test_after_a_reboot_the_owner_is_dead_though_its_number_lives(project: Project) -> None:
    """Owner and reader see different boot ids; the process is even the same one, and still does not count."""
    project.pipeline(pipeline(step("a", HOLD)))
    before = project.root / "boot_id"
    before.write_text("00000000-0000-4000-8000-000000000000\n")
    booted = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
    in_old_boot = ["unshare", "-m", "sh", "-c", booted, str(before), *RERAIL]
    options: dict[str, Any] = {"cwd": project.root, "env": project.env, "stdout": subprocess.PIPE, "text": True}
    owner = subprocess.Popen([*in_old_boot, "run", "pipeline.yaml", "--id", "r", "-q"], start_new_session=True, **options)
    eventually(lambda: project.ledger() == ["a"], "a runs")

    assert "running" in subprocess.run([*in_old_boot, "list"], **options).stdout
    assert project.json("list")[0]["status"] == "crashed"
    owner.kill()
    owner.communicate()
    (project.root / "go").touch()
    project.rerail("resume", check=0)
    assert project.ledger() == ["a", "a"]


@pytest.mark.scenario("F16")
def test_sixty_four_steps_that_end_together_are_all_recorded_in_one_order(project: Project) -> None:
    """They wait at one gate that opens for all of them at the same moment."""
    os.mkfifo(project.root / "gate")
    names = [f"s{number}" for number in range(64)]
    project.pipeline(pipeline(*(step(name, note(": < gate"), needs="[]") for name in names)))
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--parallel", "64", "-q")
    eventually(lambda: len(project.ledger()) == 64, "all wait")
    gate = os.open(project.root / "gate", os.O_RDWR)
    process.communicate()
    os.close(gate)

    assert process.returncode == 0
    history = [*DirectoryStore(str(project.root / ".rerail")).history("r")]
    assert [seq for seq, _ in history] == list(range(1, len(history) + 1))
    ended = Counter(event.step for _, event in history if isinstance(event, StepCompleted))
    assert ended == dict.fromkeys(names, 1)
    assert sorted(project.ledger()) == sorted(names)


# Group G


@pytest.mark.scenario("G4")
def test_terminated_and_then_killed_before_the_grace_is_over(project: Project) -> None:
    """What docker, systemd and CI do. The step is deaf, so SIGKILL meets rerail while it waits for it."""
    project.pipeline(pipeline(step("a", note()), step("b", "trap '' INT TERM\n" + HOLD), step("c", note())))
    process = project.spawn("run", "pipeline.yaml", "--id", "kt")
    eventually(lambda: project.ledger() == ["a", "b"], "b runs")
    process.terminate()
    assert process.stderr is not None
    assert any("stopping steps" in line for line in process.stderr)
    process.kill()
    process.communicate()

    assert process.returncode == -signal.SIGKILL
    eventually(lambda: census("kt") == [], "the deaf step is gone too")
    (project.root / "go").touch()
    project.rerail("resume", "kt", check=0)
    assert project.ledger() == ["a", "b", "b", "c"]


class Terminal:
    """A command in charge of a terminal of its own."""

    def __init__(self, project: Project, *arguments: str, deaf_to: signal.Signals | None = None) -> None:
        self.master, self.slave = pty.openpty()
        self.modes = termios.tcgetattr(self.slave)

        def prepare() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            if deaf_to is not None:
                signal.signal(deaf_to, signal.SIG_IGN)

        self.process = subprocess.Popen(
            [*RERAIL, *arguments],
            cwd=project.root,
            env={"TERM": "xterm", **project.env},
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - a controlling terminal can only be taken there
        )

    def finish(self) -> bytes:
        """Read what is printed until the command ends."""
        printed = b""
        while self.process.poll() is None or select.select([self.master], [], [], 0)[0]:
            if select.select([self.master], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    printed += os.read(self.master, 65536)
        return printed

    def hang_up(self) -> None:
        os.close(self.slave)
        os.close(self.master)


@pytest.mark.scenario("G5")
@pytest.mark.parametrize(
    ("deaf_to", "code", "ran"), [(None, 129, ["a"]), (signal.SIGHUP, 0, ["a", "b"])], ids=["plain", "nohup"]
)
def test_a_terminal_that_is_closed_for_good(
    project: Project, deaf_to: signal.Signals | None, code: int, ran: list[str]
) -> None:
    """Every print from then on is an input/output error. Plain: stopped, recorded; with nohup: it goes on to the end."""
    project.pipeline(pipeline(step("a", HOLD), step("b", note())))
    terminal = Terminal(project, "run", "pipeline.yaml", "--id", "r", deaf_to=deaf_to)
    eventually(lambda: project.ledger() == ["a"], "a runs")
    terminal.hang_up()
    if deaf_to is not None:
        (project.root / "go").touch()

    assert terminal.process.wait(60) == code
    assert project.ledger() == ran
    state = DirectoryStore(str(project.root / ".rerail")).read("r").state
    assert state.status == ("interrupted" if code else "completed")


@pytest.mark.scenario("G8")
def test_a_program_keeps_its_signal_handlers(project: Project) -> None:
    """Its own handlers work while steps run, and all are what they were afterwards, those that rerail borrows included."""
    project.pipeline(LIBRARY_FILE)
    said = program(
        project,
        LIBRARY
        + """
got = []
own = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGXCPU, signal.SIGALRM, signal.SIGCHLD)
for number in (*own, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: got.append(number))
everything = [number for number in signal.Signals if number not in (signal.SIGKILL, signal.SIGSTOP)]
before = {number: signal.getsignal(number) for number in everything}

def raises_all():
    for number in own:
        signal.raise_signal(number)

print(start("r", raises_all))
print(*(number.name for number in everything if signal.getsignal(number) is not before[number]))
print(*(number.name for number in own if number not in got))
print(sum(number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) for number in got))
""",
    )

    assert said == ["completed", "0"]


@pytest.mark.scenario("G12")
def test_a_run_driven_by_a_thread_completes_and_leaves_signals_alone(project: Project) -> None:
    """Handlers can be set in the main thread only: elsewhere the run works without them, and the program's stay."""
    project.pipeline(LIBRARY_FILE)
    said = program(
        project,
        LIBRARY
        + """
seen = []
def looks(): seen.append([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP)])

before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP)]
thread = threading.Thread(target=lambda: print(start("r", looks)))
thread.start()
thread.join()
print(seen == [before])
""",
    )

    assert said == ["completed", "True"]
    assert project.ledger() == ["first", "last"]


@needs_strace
@pytest.mark.scenario("G9")
def test_death_between_starting_a_step_and_telling_the_watchdog_leaves_no_orphan(project: Project) -> None:
    """SIGKILL at the very call that follows the spawn: nobody has been told of the step, its mark gives it away."""
    assert STRACE
    project.pipeline(pipeline(step("a", HOLD), step("b", note())))
    killed = [STRACE, "-qq", "-o", os.devnull, "-e", "trace=pidfd_open", "-e", "inject=pidfd_open:signal=KILL:when=1"]
    command = [*killed, *RERAIL, "run", "pipeline.yaml", "--id", "unowned"]
    life = subprocess.run(command, cwd=project.root, env=project.env, capture_output=True, timeout=120)

    assert life.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    eventually(lambda: census("unowned") == [], "the step is gone")
    before = len(project.ledger())
    (project.root / "go").touch()
    project.rerail("resume", "unowned", check=0)
    assert before <= 1
    assert project.ledger()[before:] == ["a", "b"]


@needs_root
@pytest.mark.scenario("G10")
def test_as_the_first_process_of_a_container_it_heeds_signals_and_reaps(project: Project) -> None:
    """PID 1 gets no signal it does not handle, and inherits every orphan: none is left when the next step looks."""
    orphans = note("for i in 1 2 3 4 5; do (setsid true &); done")
    count = note("grep -l '^State:.Z' /proc/[0-9]*/status >> zombies || true\necho $PPID >> pid")
    project.pipeline(pipeline(step("a", orphans), step("b", count), step("c", HOLD)))
    container = subprocess.Popen(
        ["unshare", "-p", "-f", "--mount-proc", "--kill-child", *RERAIL, "run", "pipeline.yaml", "--id", "r"],
        cwd=project.root,
        env=project.env,
        stderr=subprocess.PIPE,
        text=True,
    )
    eventually(lambda: project.ledger() == ["a", "b", "c"], "c runs")
    first = int(Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text())
    os.kill(first, signal.SIGTERM)
    message = container.communicate()[1]

    assert container.returncode == 143
    assert "next: rerail resume r" in message
    assert (project.root / "pid").read_text() == "1\n"
    assert (project.root / "zombies").read_text() == ""
    (project.root / "go").touch()
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["a", "b", "c", "c"]


@pytest.mark.scenario("G11")
def test_ctrl_c_reaches_a_step_exactly_once(project: Project) -> None:
    """The terminal signals its whole group: a step in it would get one from there and one from rerail."""
    deaf = "trap 'echo INT >> \"$LEDGER\"' INT\ntrap 'exit 3' TERM\n" + note("while :; do sleep 0.02; done")
    project.pipeline(pipeline(step("a", deaf)))
    terminal = Terminal(project, "run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a"], "a runs")
    os.write(terminal.master, b"\x03")
    printed = terminal.finish()
    terminal.hang_up()

    assert terminal.process.returncode == 130
    assert project.ledger() == ["a", "INT"]
    assert b"rerail resume r" in printed


# Group H


@pytest.mark.scenario("H2", "F5")
def test_a_resume_ends_what_nobody_else_could(project: Project) -> None:
    """Its watchdogs are killed with it, so that the step really outlives its runner: it holds no lock, and is ended."""
    project.pipeline(pipeline(step("a", 'echo $$ >> "$LEDGER"\nwhile ! test -e go; do sleep 0.02; done')))
    owner = project.spawn("run", "pipeline.yaml", "--id", "r")
    orphan = int(eventually(project.ledger, "a runs")[0])
    children = {int(pid) for pid in Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split()}
    owner.send_signal(signal.SIGSTOP)  # so that it starts no others
    for watchdog in children - {orphan}:
        os.kill(watchdog, signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, children - {orphan})), "the watchdogs are dead")
    owner.kill()
    owner.communicate()
    assert is_alive(orphan)

    resumed = project.spawn("resume", "r")
    eventually(lambda: len(project.ledger()) == 2, "a runs again")
    assert not is_alive(orphan)
    (project.root / "go").touch()
    message = resumed.communicate()[1]
    assert resumed.returncode == 0
    assert "left over from the previous invocation" in message


@pytest.mark.scenario("H9")
def test_a_time_limit_that_fires_while_steps_end_makes_one_outcome_each(project: Project) -> None:
    """Items that last as long as they may: each is completed or failed, once, and the counts agree."""
    project.pipeline(
        "steps:\n  - id: m\n    map: {over: {command: seq 24}, parallel: 8, max_failures: 24}\n    steps:\n"
        "      - {run: 'echo ${{ item }} >> $LEDGER; sleep 0.1', timeout: 0.107s}\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", "-q", check=0)

    history = [event for _, event in DirectoryStore(str(project.root / ".rerail")).history("r")]
    ends = [event for event in history if isinstance(event, StepCompleted | StepFailed | StepInterrupted) and event.item]
    items = [str(number) for number in range(1, 25)]
    assert Counter(event.item for event in ends) == dict.fromkeys(items, 1)
    assert sorted(project.ledger()) == sorted(items)
    completed = sum(isinstance(event, StepCompleted) for event in ends)
    outputs = unit(project, "m").outputs
    assert (outputs["completed"], outputs["failed"]) == (completed, 24 - completed)


@pytest.mark.scenario("H10")
def test_a_step_cannot_spoil_the_terminal(project: Project) -> None:
    """It has none: what it would do to the modes fails, and they are afterwards what they were."""
    project.pipeline(pipeline(step("a", 'stty raw -echo < /dev/tty || echo none >> "$LEDGER"')))
    terminal = Terminal(project, "run", "pipeline.yaml")
    terminal.finish()
    after = termios.tcgetattr(terminal.slave)
    terminal.hang_up()

    assert terminal.process.returncode == 0
    assert after == terminal.modes
    assert project.ledger() == ["none"]
