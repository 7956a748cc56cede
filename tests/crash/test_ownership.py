"""One owner: whoever races, exactly one process drives a run; a dead owner's run is free at once, a live one's is not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rerail import api, durable, testing
from rerail.cli.options import find_run
from rerail.core import run_ids
from rerail.core.model import RunOptions
from rerail.core.plan import ExecuteOptions
from rerail.errors import StateDamaged
from rerail.stores.directory import DirectoryStore
from tests.conftest import RERAIL, Project, eventually
from tests.crash.figures import figure
from tests.sweeps import part

ROOT = Path(__file__).parent.parent.parent


HOLD = """\
steps:
  - id: hold
    run: |
      echo hold >> $LEDGER
      while ! test -e go; do sleep 0.01; done
      exit 1
"""


BUSY = 4


def in_children(count: int, work: Callable[[int], int]) -> list[int]:
    """Run `work` in so many forked processes that start together; their exit codes."""
    read, write = os.pipe()
    children = []
    for index in range(count):
        child = os.fork()
        if child == 0:
            code = 99
            try:
                os.close(write)
                os.read(read, 1)
                code = work(index)
            finally:
                os._exit(code)
        children.append(child)
    os.close(read)
    os.close(write)  # end of file for all of them: go
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


@pytest.mark.scenario("F1")
def test_eight_resumers_one_winner_with_the_command_line(project: Project) -> None:
    project.pipeline(HOLD)
    (project.root / "go").touch()
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    for round_ in range(4):
        (project.root / "go").unlink()
        racers = [project.spawn("resume", "r") for _ in range(8)]

        def seven_left(racers: list[subprocess.Popen[str]] = racers) -> bool:
            return sum(racer.poll() is not None for racer in racers) == 7

        eventually(seven_left, "seven losers have left")
        (project.root / "go").touch()
        results = [(racer.wait(), racer.communicate()[1]) for racer in racers]

        assert sorted(code for code, _ in results) == [1] + [BUSY] * 7, results
        winner = racers[[code for code, _ in results].index(1)].pid
        for code, message in results:
            if code == BUSY:
                assert f"process {winner} on " in message
                assert re.search(r"since \d{4}-\d\d-\d\d", message)
        assert project.ledger().count("hold") == round_ + 2


@pytest.mark.scenario("F1")
def test_eight_resumers_one_winner_a_thousand_times(memory: Path) -> None:
    rounds = part(60, 1000)
    command = [sys.executable, "-m", "tests.crash.racers", str(memory / "state"), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == rounds
    figure("T9", "rounds, one winner in each", rounds)


@pytest.mark.scenario("K4")
def test_twenty_simultaneous_starts_get_twenty_runs(project: Project) -> None:
    pipeline = project.pipeline("steps: [{id: a, write: {path: a.txt, content: a}}]")
    store = DirectoryStore(str(project.root / ".rerail"))

    def start(_index: int) -> int:
        options = RunOptions(parallel=1)
        request = api.StartRequest(
            pipeline_path=str(pipeline), options=options, execute=ExecuteOptions(allow_concurrent=True)
        )
        return 0 if api.start(store, request).end.status == "completed" else 1

    assert in_children(20, start) == [0] * 20
    assert len(store.runs()) == 20
    assert all(store.read(run).state.status == "completed" for run in store.runs())


@pytest.mark.scenario("K2", "K4")
def test_ids_chosen_at_once_never_begin_one_another(tmp_path: Path) -> None:
    """Each process has a pipeline of its own name, and the same few codes to choose from: all of them collide."""
    names = [f"a{'-b' * (at % 6)}" for at in range(16)]
    for name in set(names):
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\nsteps: [{{run: 'true'}}]")
    store = DirectoryStore(str(tmp_path / ".rerail"))

    def start(index: int) -> int:
        run_ids.LETTERS, run_ids.DIGITS = "kz", "79"  # 112 codes for 32 runs
        result = api.start(store, api.StartRequest(pipeline_path=str(tmp_path / f"{names[index]}.yaml")))
        return 0 if result.end.status == "completed" else 1

    for _ in range(2):
        assert in_children(len(names), start) == [0] * len(names)
    made = store.runs()
    assert len(made) == 2 * len(names)
    assert len({run.partition("-")[0] for run in made}) == len(made), "two runs have one code"
    assert not [(one, other) for one in made for other in made if one != other and other.startswith(one)]
    for run in made:  # the code is enough to name it
        assert find_run(store, run.partition("-")[0]) == run
    assert not [entry for entry in os.listdir(tmp_path / ".rerail" / "runs") if entry.startswith(".")]


@pytest.mark.scenario("F13")
def test_the_same_id_at_the_same_time_is_created_once(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))

    def create(_index: int) -> int:
        from rerail.errors import RunExists

        try:
            store.create(testing.header(), b"x").close()
        except RunExists:
            return 2
        return 0

    for _ in range(20):
        assert sorted(in_children(8, create)) == [0] + [2] * 7
        store.delete("r1")


@pytest.mark.scenario("A5")
def test_ten_concurrent_savers_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def save(index: int) -> int:
        for _ in range(50):
            durable.replace_file(str(path), bytes([65 + index]) * 5000)
            content = path.read_bytes()
            if len(content) != 5000 or len(set(content)) != 1:
                return 1
        return 0

    assert in_children(10, save) == [0] * 10
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def owner(project: Project) -> subprocess.Popen[str]:
    project.pipeline(HOLD)
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["hold"], "the step runs")
    return process


@pytest.mark.scenario("F4")
def test_a_stopped_owner_is_still_the_owner(project: Project, owner: subprocess.Popen[str]) -> None:
    owner.send_signal(signal.SIGSTOP)
    assert f"process {owner.pid} on" in project.rerail("resume", check=BUSY).stderr
    assert project.json("list")[0]["status"] == "running"
    owner.send_signal(signal.SIGCONT)
    (project.root / "go").touch()

    assert owner.wait() == 1
    owner.communicate()
    assert project.ledger() == ["hold"]


@pytest.mark.privileges
@pytest.mark.scenario("F7")
def test_a_zombie_owner_is_dead(project: Project, owner: subprocess.Popen[str]) -> None:
    owner.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    os.kill(owner.pid, 0)

    assert project.json("list")[0]["status"] == "crashed"
    (project.root / "go").touch()
    project.rerail("resume", check=1)
    assert project.ledger() == ["hold", "hold"]
    owner.communicate()


@pytest.mark.needs_root("to choose the pid of a process")
@pytest.mark.scenario("F6")
def test_a_stranger_with_the_owners_pid_is_not_the_owner(project: Project, owner: subprocess.Popen[str]) -> None:
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    stranger = _process_with_pid(owner.pid)
    try:
        assert project.json("list")[0]["status"] == "crashed"
        (project.root / "go").touch()
        project.rerail("resume", check=1)
    finally:
        os.kill(stranger, signal.SIGKILL)
        os.waitpid(stranger, 0)
    assert project.ledger() == ["hold", "hold"]


def _process_with_pid(wanted: int) -> int:
    """Make the kernel hand out a given pid; skips where that is not allowed."""
    for _ in range(500):
        try:
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(wanted - 1))
        except OSError as error:
            pytest.skip(f"cannot choose pids here: {error}")
        child = os.fork()
        if child == 0:
            if os.getpid() != wanted:
                os._exit(0)
            while True:
                signal.pause()
        if child == wanted:
            return child
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
    pytest.skip("other processes keep taking the pid")


@pytest.mark.privileges
@pytest.mark.scenario("H2", "H3")
def test_the_orphan_of_a_killed_owner_is_ended_not_adopted(project: Project, owner: subprocess.Popen[str]) -> None:
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    resumed = project.spawn("resume", "r")
    eventually(lambda: project.ledger() == ["hold", "hold"], "the step runs again")

    from rerail.processes import marked

    header = DirectoryStore(str(project.root / ".rerail")).read("r").header
    lock = (project.run_dir("r") / "lock").stat()
    mark = f"r@{header.created_at}@{lock.st_dev}:{lock.st_ino}"
    # Leaders only: a shell that forks looks like itself for a moment.
    leaders = [pid for pid in marked(mark) if os.getsid(pid) == pid]
    assert len(leaders) == 1
    (project.root / "go").touch()
    assert resumed.wait() == 1
    resumed.communicate()


@pytest.mark.scenario("M1")
def test_a_project_that_was_moved_is_resumed_where_it_is_now(project: Project) -> None:
    project.pipeline(HOLD)
    (project.root / "go").touch()
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    copy = project.root.parent / "elsewhere"
    project.root.rename(copy)
    project.root = copy

    project.rerail("resume", "r", check=1)
    assert project.ledger() == ["hold", "hold"]


TWO = 'steps: [{id: a, run: echo a >> "$LEDGER"}, {id: b, run: "test -e ok && echo b >> $LEDGER"}]'


NEEDS_ROOT = pytest.mark.needs_root("to make namespaces")


@pytest.mark.privileges
@NEEDS_ROOT
@pytest.mark.scenario("F14", "F9")
def test_a_run_whose_owner_died_in_another_container_can_be_deleted(project: Project) -> None:
    """Its number in there means nothing out here, but its lock is free."""
    project.pipeline('steps: [{id: a, run: "echo up >> $LEDGER; sleep 60"}]')
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    runner = subprocess.Popen([*inside, *RERAIL, "run", "pipeline.yaml", "--id", "r"], cwd=project.root, env=project.env)
    eventually(lambda: project.ledger() == ["up"])
    refused = project.rerail("delete", "r", "--yes")
    runner.kill()
    runner.wait()
    eventually(lambda: not DirectoryStore(str(project.root / ".rerail")).is_owned("r"))

    assert refused.returncode == 4
    assert project.json("show", "r")["status"] == "crashed"
    assert "is not running" in project.rerail("stop", "r", check=0).stderr
    project.rerail("delete", "r", "--yes", check=0)


@pytest.mark.privileges
def test_a_lock_file_of_any_size_is_only_looked_at(project: Project) -> None:
    project.pipeline(TWO)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    os.truncate(project.run_dir("r") / "lock", 3 << 30)

    def little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    assert "failed" in project.rerail("list", check=0, preexec_fn=little_memory).stdout


@pytest.mark.privileges
@NEEDS_ROOT
@pytest.mark.scenario("F9", "F14")
def test_a_run_in_another_container_is_alive_as_far_as_can_be_told(project: Project) -> None:
    """The number of its process means nothing out here: there may be none of that number, or a stranger."""
    project.pipeline('steps: [{id: a, run: "echo up >> $LEDGER; until test -e go; do sleep 0.02; done"}]')
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    runner = subprocess.Popen(
        [*inside, *RERAIL, "run", "pipeline.yaml", "--id", "r", "-q"], cwd=project.root, env=project.env
    )
    eventually(lambda: project.ledger() == ["up"])

    assert project.json("list")[0]["status"] == "running"
    assert project.rerail("resume", "r").returncode == 4
    (project.root / "go").touch()
    assert runner.wait() == 0


@pytest.mark.scenario("F11")
def test_a_lock_whose_file_was_replaced_in_the_meantime_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    flock = fcntl.flock

    def replaced_before(fd: int, how: int) -> None:
        path.unlink()
        path.touch()
        flock(fd, how)

    with monkeypatch.context() as patch:
        patch.setattr("rerail.durable.lock.fcntl.flock", replaced_before)
        with pytest.raises(BlockingIOError):
            durable.Lock(str(path))
    durable.Lock(str(path)).release()


def test_who_could_not_take_a_run_over_is_not_taken_for_its_driver(project: Project) -> None:
    """He may live on, and would be sent the signal that is meant for a driver."""
    project.pipeline("steps: [{id: a, run: 'kill -9 $PPID; sleep 60'}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=-9)
    (project.run_dir("r") / "results").symlink_to(project.root)
    store = DirectoryStore(str(project.root / ".rerail"))
    with pytest.raises(StateDamaged):
        store.own("r")

    assert not store.ownership("r").alive
    assert project.json("list")[0]["status"] == "crashed"
