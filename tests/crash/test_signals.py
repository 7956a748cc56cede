"""Stop signals: at any call of a save they tear nothing, and the third ends the process, whatever it is doing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Project, eventually
from tests.crash.conftest import Lab
from tests.crash.test_catalogue_processes import LIBRARY, LIBRARY_FILE, is_alive
from tests.crash.test_kill_points import check_invariants
from tests.sweeps import Sample


@pytest.mark.scenario("G1", "G3")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_state_call(lab: Lab, number: signal.Signals, sample: Sample) -> None:
    at, further = sample.points(6, shard=0 if number == signal.SIGINT else 2, shards=9)
    interrupted = 0
    while True:
        result = lab.ask(mode="signal", at=at, number=int(number))
        met = result["lives"][0]
        # Before the run takes signals over, they end it as they end any program.
        assert met["code"] in (0, 128 + number, -number), result
        check_invariants(result, cuts=1)
        interrupted += int(met["code"] == 128 + number)
        if met["code"] == 0 and (met["points"] or 0) < at:
            break
        at += further
    assert interrupted > 5 or not sample.whole


# A handler is called in the midst of whatever goes on: what it waits for must not be what it interrupted.
AT_EVERY_LINE = """
import faulthandler, os, signal, sys
from rerail.core.masking import Mask
from rerail.engine.signals import Signals
from rerail.executors.local import LocalExecutor

def lines_until_closed(at):
    made = LocalExecutor(os.open, inline=False, environ={}, mask=Mask(()), invocation="invocation-of-a-test")
    made.guard()
    seen = 0

    def trace(frame, event, _):
        nonlocal seen
        seen += event == "line"
        if event == "line" and seen == at:
            signal.raise_signal(signal.SIGTERM)
        return trace

    with Signals(made) as signals:
        sys.settrace(trace)
        made.wake()
        made.close()
        sys.settrace(None)
        assert signals.received == [signal.SIGTERM][: seen >= at]
    return seen

faulthandler.dump_traceback_later(20, exit=True)
at = 1
while lines_until_closed(at) >= at:
    at += 1
print(at)
"""


@pytest.mark.scenario("G1")
def test_a_signal_at_any_line_of_closing_the_executor_is_not_waited_for() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EVERY_LINE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40


# The third signal ends the process, whatever it is doing

# Reading a directory is what goes on for ever here, as it does on a file system that hangs or has no end.
STUCK = """
import itertools, os, sys
from rerail import walker
from rerail.cli.main import call

def scandir(path):
    with open(os.environ["LEDGER"], "a") as file:  # a signal that arrives while it is closed must not be lost
        file.write("listing\\n")
    {how}

class Os:
    scandir = staticmethod(scandir)
    def __getattr__(self, name): return getattr(os, name)

walker.os = Os()
sys.exit(call(sys.argv[1:]))
"""
WAYS = {
    "in Python": "while True: pass",
    "in C, holding the interpreter": "all(itertools.repeat(1))",
    "in C, not holding it": "import ctypes\n    while True: ctypes.CDLL(None).pause()",
    "in a pattern": "import re\n    re.search('(a|b|ab)*c', 'ab' * 100)",
}
ENDLESS = """import contextlib
    @contextlib.contextmanager
    def entries():
        yield (entry for _ in itertools.count() for entry in os.scandir(path))
    return entries()"""
ALONE = 'steps: [{id: m, map: {over: {glob: "*"}}, steps: [{run: "true"}]}]'


def begin(project: Project, how: str, *arguments: str) -> subprocess.Popen[str]:
    process = project.spawn(*arguments, program=(sys.executable, "-c", STUCK.format(how=how)))
    eventually(lambda: "listing" in project.ledger(), "it lists")
    return process


def end_of(process: subprocess.Popen[str]) -> str:
    """What it said, once it has ended."""
    eventually(lambda: process.poll() is not None, "it has ended")
    return process.communicate()[1]


@pytest.mark.scenario("G2")
@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_three_signals_end_the_process_whatever_it_is_doing(project: Project, how: str) -> None:
    project.pipeline(ALONE)
    process = begin(project, how, "run", "pipeline.yaml", "--id", "r")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # none of them can be taken for another
        process.send_signal(number)
    said = end_of(process)

    if how == WAYS["in C, holding the interpreter"]:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode in (128 + signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGHUP)
        assert "exiting now; recorded progress is safe" in said
    assert project.json("show", "r")["status"] == "crashed"
    project.rerail("resume", "r", check=0)


@pytest.mark.scenario("G2")
@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_no_step_outlives_the_third_signal(project: Project, how: str) -> None:
    project.pipeline(
        'steps:\n  - {id: beside, needs: [], run: \'echo $$ >> "$LEDGER"; trap "" INT TERM HUP; while :; do sleep 1; done\'}\n'
        "  - {id: first, needs: [], run: 'until grep -q [0-9] \"$LEDGER\"; do sleep 0.02; done'}\n"
        '  - {id: m, needs: [first], map: {over: {glob: "*"}}, steps: [{run: "true"}]}\n'
    )
    process = begin(project, how, "run", "pipeline.yaml", "--id", "r", "--parallel", "2")
    pid = next(int(line) for line in project.ledger() if line.isdigit())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        process.send_signal(number)
    end_of(process)

    eventually(lambda: not is_alive(pid), "the step is gone")


@pytest.mark.scenario("G1")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_one_signal_ends_a_list_that_takes_for_ever(project: Project, number: signal.Signals) -> None:
    project.pipeline(ALONE)
    process = begin(project, ENDLESS, "run", "pipeline.yaml", "--id", "r")
    process.send_signal(number)
    end_of(process)

    assert process.returncode == 128 + number
    shown = project.json("show", "r")
    assert (shown["status"], shown["steps"][0]["status"]) == ("interrupted", "interrupted")
    project.rerail("resume", "r", check=0)


@pytest.mark.scenario("G1")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", [["resume", "r", "--dry-run"], ["resume", "r"]])
def test_so_it_does_when_a_run_is_planned(project: Project, number: signal.Signals, command: list[str]) -> None:
    project.pipeline(ALONE.replace('"true"', '"test -e go"'))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    process = begin(project, ENDLESS, *command)
    process.send_signal(number)
    end_of(process)

    assert process.returncode in (128 + number, -number)
    (project.root / "go").touch()
    project.rerail("resume", "r", check=0)


IN_A_PROGRAM = """
def busy():
    with open(os.environ["LEDGER"], "a") as file: file.write("busy\\n")
    while True: pass

{handler}
start("r", busy)
os._exit(7)
"""


def await_heard(pid: int, number: signal.Signals) -> None:
    """Until the system has delivered it."""

    def is_pending() -> bool:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        masks = (int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd")))
        return any(mask >> (number - 1) & 1 for mask in masks)

    eventually(lambda: not is_pending(), "it was heard")


# A function that is interrupted has failed, and the run with it: the program goes on after it.
ENDS = {
    "as Python has it": ("", {signal.SIGINT: 7, signal.SIGTERM: -signal.SIGTERM, signal.SIGHUP: -signal.SIGHUP}),
    "by a handler of its own": (
        "for number in (1, 2, 15): signal.signal(number, lambda number, frame: os._exit(40 + number))",
        {signal.SIGINT: 42, signal.SIGTERM: 55, signal.SIGHUP: 41},
    ),
}


@pytest.mark.scenario("G2", "G12")
@pytest.mark.parametrize(("handler", "codes"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("last", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_third_signal_is_for_the_program_that_uses_rerail(
    project: Project, handler: str, codes: dict[signal.Signals, int], last: signal.Signals
) -> None:
    """The process is not ours to end: it does what it would have done at the first one without us."""
    project.pipeline(LIBRARY_FILE)
    text = LIBRARY + IN_A_PROGRAM.format(handler=handler)
    process = project.spawn(program=(sys.executable, "-c", text))
    eventually(lambda: "busy" in project.ledger(), "it is busy")
    for number in {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} - {last}:
        process.send_signal(number)
        await_heard(process.pid, number)
    process.send_signal(last)

    end_of(process)
    # Python calls handlers of signals that came together in the order of their numbers: then SIGTERM is the third.
    assert process.returncode in (codes[last], codes[signal.SIGTERM])
    assert project.rerail("show", "r", "--json").returncode == 0


# A signal that comes when the executor has been closed and the run has not yet let go of its handlers.
LATE = """
import os, signal, sys
from rerail.cli.main import call
from rerail.executors.local import LocalExecutor

close = LocalExecutor.close

def closed(executor):
    close(executor)
    os.kill(os.getpid(), signal.SIGTERM)

LocalExecutor.close = closed
sys.exit(call(sys.argv[1:]))
"""


def test_a_signal_after_the_last_step_says_nothing_and_changes_nothing(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}]")
    process = project.spawn("run", "pipeline.yaml", "--id", "r", program=(sys.executable, "-c", LATE))
    _, errors = process.communicate()

    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert project.json("show", "r")["status"] == "completed"
