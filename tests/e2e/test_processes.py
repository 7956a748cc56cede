"""Nothing survives: after any end of a step or of rerail, no process of the run is alive, wherever it hid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rerail.processes import MARKS
from tests.conftest import Project, eventually
from tests.pipelines import note, pipeline, step

pytestmark = pytest.mark.privileges

# A daemon by the book: own session, forked twice, deaf, holding the step's output open.
DAEMON = """\
setsid bash -c 'trap "" INT TERM HUP; (trap "" INT TERM HUP; echo daemon >> "$LEDGER"; while :; do sleep 0.1; done) & wait' &
while ! grep -q daemon "$LEDGER"; do sleep 0.01; done
"""


def census(run_id: str) -> list[int]:
    """Every live process that bears a mark of this run."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            environ = Path(f"/proc/{entry}/environ").read_bytes()
            state = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (OSError, IndexError):
            continue
        if f"{MARKS}={run_id}@".encode() in environ and state not in "ZX":
            found.append(int(entry))
    return found


@pytest.mark.scenario("H5")
def test_what_a_step_leaves_behind_is_ended_with_it(project: Project) -> None:
    project.pipeline(pipeline(step("a", DAEMON), step("b", "true")))
    project.rerail("run", "pipeline.yaml", "--id", "leftovers", check=0)

    assert census("leftovers") == []


def test_a_daemon_that_overwrites_its_environment_is_ended_too(project: Project) -> None:
    daemon = (
        "import ctypes, os, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "prctl = ctypes.CDLL(None).prctl\n"
        "environ = ctypes.c_void_p.in_dll(ctypes.CDLL(None), 'environ').value\n"
        "first = ctypes.c_void_p.from_address(environ).value\n"
        "ctypes.memset(first, 0, 200 + len(os.environ['RERAIL_MARKS']))\n"
        "size = sum(len(k) + len(v) + 2 for k, v in os.environ.items()); ctypes.memset(first, 0, size)\n"
        "open('daemon.pid', 'w').write(str(os.getpid()))\n"
        "time.sleep(300)\n"
    )
    (project.root / "daemon.py").write_text(daemon)
    project.pipeline(
        pipeline(step("a", "python3 daemon.py; while ! test -s daemon.pid; do sleep 0.02; done"), step("b", "true"))
    )
    project.rerail("run", "pipeline.yaml", check=0)
    pid = int((project.root / "daemon.pid").read_text())

    assert not Path(f"/proc/{pid}").exists() or _state(pid) in "ZX"


def test_a_parallel_step_keeps_its_own_children(project: Project) -> None:
    project.pipeline(
        pipeline(
            step("long", "setsid sleep 0.7 &\npid=$!\nsleep 0.5\nkill -0 $pid", needs="[]"),
            step("short", "true", needs="[]"),
            step("short-2", "true", needs="[short]"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--parallel", "2", check=0)


@pytest.mark.scenario("A11", "G4", "G9", "H1", "H3", "H4")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_no_process_outlives_rerail(project: Project, number: signal.Signals) -> None:
    name = f"outlive-{number}"
    project.pipeline(pipeline(step("a", DAEMON + note("sleep 60"))))
    process = project.spawn("run", "pipeline.yaml", "--id", name)
    eventually(lambda: project.ledger() == ["daemon", "a"], "both run")
    assert len(census(name)) >= 3
    process.send_signal(number)
    process.communicate()

    eventually(lambda: census(name) == [], "all are gone")


@pytest.mark.scenario("H1")
@pytest.mark.parametrize("how", ["env -i", "exec env -i"])
def test_a_process_without_its_environment_does_not_outlive_rerail_either(project: Project, how: str) -> None:
    seconds = f"61.{os.getpid():07}"  # known by its time: other tests must not be taken for this one
    project.pipeline(pipeline(step("a", note(f"{how} sleep {seconds}"))))
    process = project.spawn("run", "pipeline.yaml", "--id", "bare")
    eventually(lambda: [pid for pid in _sleeping(seconds) if not Path(f"/proc/{pid}/environ").read_bytes()], "it runs")
    process.send_signal(signal.SIGKILL)
    process.communicate()

    eventually(lambda: not _sleeping(seconds), "it is gone")


@pytest.mark.scenario("H1")
def test_nor_does_one_that_was_just_being_started() -> None:
    seconds = f"62.{os.getpid():07}"
    life = f"""
import os, signal, subprocess
from rerail.executors.watchdog import Watchdogs
watchdog = Watchdogs("mark")
watchdog.start()
_, output = os.pipe()
watchdog.begins(output)
subprocess.Popen(["sleep", "{seconds}"], env={{}}, stdout=output, start_new_session=True)
os.kill(os.getpid(), signal.SIGKILL)  # before it could say what it has started
"""
    assert subprocess.run([sys.executable, "-c", life], check=False).returncode == -signal.SIGKILL

    eventually(lambda: not _sleeping(seconds), "it is gone")


def _sleeping(seconds: str) -> list[int]:
    wanted = b"sleep\0%s\0" % seconds.encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "cmdline").read_bytes() == wanted and _state(int(entry.name)) not in "ZX":
                    found.append(int(entry.name))
    return found


@pytest.mark.scenario("H4")
def test_a_time_limit_ends_the_whole_tree(project: Project) -> None:
    project.pipeline(pipeline(step("a", DAEMON + "sleep 60", timeout="1s")))
    project.rerail("run", "pipeline.yaml", "--id", "limit", check=1)

    assert census("limit") == []


@pytest.mark.scenario("H1")
def test_a_nested_run_is_ended_with_the_outer_one(project: Project) -> None:
    project.pipeline(pipeline(step("inner", note("sleep 60"))), "inner.yaml")
    project.pipeline(pipeline(step("outer", "python3 -m rerail run inner.yaml --id nested-inner")))
    project.env["PATH"] = f"{Path(os.sys.executable).parent}:{project.env['PATH']}"  # type: ignore[attr-defined]
    process = project.spawn("run", "pipeline.yaml", "--id", "nested")
    eventually(lambda: project.ledger() == ["inner"], "the inner step runs")
    process.send_signal(signal.SIGKILL)
    process.communicate()

    eventually(lambda: census("nested") == [], "all are gone")


@pytest.mark.scenario("F4")
def test_stop_from_another_terminal_gently_and_by_force(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("test -e go || sleep 60"))))
    for arguments, code, status in ((("stop", "s"), 143, "interrupted"), (("stop", "--force", "s"), -9, "crashed")):
        before = len(project.ledger())
        process = project.spawn("run", "pipeline.yaml", "--id", "s", "--resume")

        def started(before: int = before) -> bool:
            return len(project.ledger()) == before + 1

        eventually(started, "it runs")
        project.rerail(*arguments, check=0)
        process.communicate()
        assert process.returncode == code
        assert project.json("list")[0]["status"] == status
        assert census("s") == []
    assert "is not running" in project.rerail("stop", "s", check=0).stderr
    (project.root / "go").touch()
    project.rerail("resume", check=0)


@pytest.mark.scenario("V1")
def test_a_flood_of_output_costs_neither_memory_nor_disk(project: Project) -> None:
    project.pipeline(pipeline(step("a", "head -c 200000000 /dev/zero | tr '\\0' 'x'; echo the end")))
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    peak = 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = max(peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")))
        except (OSError, ValueError, TypeError):
            break
    process.communicate()

    assert process.returncode == 0
    assert 0 < peak < 150_000  # kilobytes
    logs = list((project.run_dir("r") / "logs").iterdir())
    assert sum(log.stat().st_size for log in logs) < 60_000_000
    assert any(b"[rerail: the log continues here after byte" in log.read_bytes()[:100] for log in logs)
    assert (project.run_dir("r") / "logs" / "a.1.out.rest").read_bytes().endswith(b"the end\n")


@pytest.mark.scenario("C6", "C10", "H6")
def test_many_quick_steps_leave_no_zombie_and_no_descriptor(project: Project) -> None:
    count = "ls /proc/$PPID/fd | wc -l >> fds\nwc -w < /proc/$PPID/task/$PPID/children >> children"
    many = [step(f"s{number}", count if number % 500 == 249 else "true") for number in range(2000)]
    project.pipeline(pipeline(*many))
    project.rerail("run", "pipeline.yaml", "-q", "--parallel", "1", check=0)

    descriptors = [int(line) for line in (project.root / "fds").read_text().split()]
    # One more at times: a checkpoint that is being written while the step counts.
    assert max(descriptors) - min(descriptors) <= 1 < len(descriptors)
    assert set((project.root / "children").read_text().split()) == {"3"}  # the watchdogs, and the step that counts


@pytest.mark.scenario("G7")
def test_ctrl_z_stops_the_steps_and_does_not_eat_their_time(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("until test -e go; do sleep 0.02; done"), timeout="12s")))
    process = project.spawn("run", "pipeline.yaml", "--id", "z")
    eventually(lambda: project.ledger() == ["a"], "a runs")
    process.send_signal(signal.SIGTSTP)
    eventually(lambda: _state(process.pid) == "T", "rerail is stopped")
    eventually(lambda: [pid for pid in census("z") if _state(pid) == "T"], "so is the step")
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > 12.2, "more than its time limit has passed")
    (project.root / "go").touch()
    process.send_signal(signal.SIGCONT)
    process.communicate()

    assert process.returncode == 0


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the processes of a step are ended without being seen")
def test_processes_that_end_with_their_step_are_said(project: Project) -> None:
    project.env["TOKEN"] = "hidden-in-arguments"
    project.pipeline("""
secrets: [TOKEN]
steps:
  - {id: up, run: 'sleep 3001 & setsid sleep 3002 & python3 -c "import time; time.sleep(3003)" "$TOKEN" & sleep 0.3'}
  - {id: down, run: 'sleep 3004 & sleep 0.3; exit 3', allow_failure: true}
  - {id: plain, run: 'true; (exit 0) & wait'}
  - {id: waits, run: sleep 60, timeout: 0.5s, allow_failure: true}
""")
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    told = project.rerail("history", "r", check=0).stdout

    for said in (done.stderr, told):
        lines = [line for line in said.splitlines() if "left running" in line]
        assert len(lines) == 2, said
        assert "completed    up" in lines[0 if "up" in lines[0] else 1]
        assert "ended 3 processes that it left running: " in said
        assert "; ended 1 process that it left running: sleep 3004" in said
        assert "time.sleep(3003) ***" in said
    assert all(event.get("left") != [] for event in project.json("history", "r"))
