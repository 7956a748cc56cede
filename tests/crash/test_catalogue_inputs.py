"""What comes from outside: clocks that jump, environments, addresses, crafted state, moved and copied directories.

Every state comes from a real run; what ran is counted in a ledger outside the state.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RERAIL, Project, eventually
from tests.pipelines import as_somebody
from tests.wrong_clock import SetClock

pytestmark = pytest.mark.privileges


DAY = 86400


PIPELINE = """\
steps:
  - id: one
    run: echo one >> $LEDGER; echo made > out.txt
    artifacts: [out.txt]
  - id: two
    run: echo two >> $LEDGER; test -e fixed
"""


def failed_run(project: Project, text: str = PIPELINE, *more: str) -> Path:
    """A run whose last step has failed, and will not fail again; its directory."""
    project.pipeline(text)
    project.rerail("run", "pipeline.yaml", "--id", "r", *more, check=1)
    (project.root / "fixed").touch()
    return project.run_dir("r")


def recorded(run: Path) -> Any:
    return json.loads((run / "checkpoint.json").read_bytes())


JUMPS = """\
defaults: {timeout: 10m}
steps:
  - id: back
    run: &jump |
      echo "$RERAIL_STEP" >> $LEDGER; echo "$RERAIL_STEP $RERAIL_ATTEMPT begins"
      echo "$BY" > "$CLOCK_FILE.new"; mv "$CLOCK_FILE.new" "$CLOCK_FILE"
      echo "$RERAIL_STEP $RERAIL_ATTEMPT ends"; test "$RERAIL_STEP" != last || test -e fixed
    env: {BY: '-3600'}
  - {id: forth, run: *jump, env: {BY: '86400'}}
  - {id: last, run: *jump, env: {BY: '-7200'}, retry: {attempts: 2, delay: 0.05s, jitter: false}}
"""


@pytest.mark.scenario("K1")
def test_a_wall_clock_that_jumps_changes_neither_durations_nor_order_nor_waits(
    project: Project, set_clock: SetClock
) -> None:
    """An hour back, a day forth, a day back: no time limit strikes, the retry comes at once, history is by number."""
    run = failed_run(project, JUMPS)
    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["back", "forth", "last", "last", "last"]
    history = project.json("history", "r")
    assert [event["seq"] for event in history] == list(range(len(history), 0, -1))
    times = [event["at"] for event in history]
    assert times != sorted(times, reverse=True), "the clock did not jump"
    durations = [event["duration"] for event in history if "duration" in event]
    assert len(durations) == 5
    assert all(0 <= duration < 3600 for duration in durations), durations
    shown = recorded(run)
    assert all(0 <= step["duration_seconds"] < 3600 for step in shown["steps"])
    assert shown["duration_seconds"] >= 0
    attempts = [("back", 1), ("forth", 1), ("last", 1), ("last", 2), ("last", 3)]
    printed = [f"{step} | {step} {attempt} {what}" for step, attempt in attempts for what in ("begins", "ends")]
    for at in (8, 6):  # before attempts 3 and 2
        printed.insert(at, f"last | --- attempt {at // 2 - 1} ---")
    assert project.rerail("logs", "r", check=0).stdout.splitlines() == printed


@pytest.mark.scenario("K1", "K2")
def test_a_run_of_1971_is_owned_taken_over_and_resumed_in_2107(project: Project, set_clock: SetClock) -> None:
    """Who is alive is not a matter of time: not with a clock that was never set, not after the end of 32 bits."""
    project.pipeline(PIPELINE.replace("test -e fixed", "while ! test -e fixed; do sleep 0.02; done"))
    set_clock(-1_760_000_000)
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: "two" in project.ledger(), "two started")
    set_clock(2_550_000_000)
    project.rerail("resume", "r", check=4)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (project.root / "fixed").touch()

    project.rerail("resume", "r", check=0)

    shown = recorded(project.run_dir("r"))
    assert (shown["status"], shown["created_at"][:4], shown["finished_at"][:4]) == ("completed", "1971", "2107")
    assert project.ledger() == ["one", "two", "two"]


@pytest.mark.scenario("K2", "K3")
def test_retention_takes_what_is_old_and_never_what_is_from_the_future(project: Project, set_clock: SetClock) -> None:
    """There are ids for any time, and the list is newest first; prune takes the run of 1971, not those that are not yet."""
    project.pipeline("steps: [{id: a, run: 'true'}]")
    for seconds in (-1_760_000_000, 100 * DAY, 2_550_000_000):
        set_clock(seconds)
        project.rerail("run", "pipeline.yaml", "-q", check=0)
    set_clock(0)
    created = {run["run_id"]: run["created_at"][:4] for run in project.json("list")}
    assert [*created.values()][::2] == ["2107", "1971"]

    project.rerail("prune", "--older-than", "1d", check=0)

    assert set(os.listdir(project.root / ".rerail" / "runs")) == {*[*created][:2]}


@pytest.mark.scenario("J13")
def test_a_pipeline_at_an_address_is_a_file_that_is_not_there(project: Project) -> None:
    """Nothing is fetched from anywhere: whoever listens there hears nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/inner.yaml"
        project.pipeline(f"steps:\n  - {{id: a, run: 'echo a >> $LEDGER'}}\n  - {{id: b, pipeline: '{address}'}}\n")
        refused = project.rerail("run", "pipeline.yaml", check=2)
        assert "no such file: http" in refused.stderr
        with pytest.raises(BlockingIOError):
            server.accept()
    assert project.ledger() == []
    assert not (project.root / ".rerail").exists()


ENVIRONMENT = """\
env: {RERAIL_RUN_ID: fake, RERAIL_STORE: elsewhere, RERAIL_RUN_DIR: elsewhere}
steps:
  - id: a
    env:
      RERAIL_OUTPUT: stolen-outputs
      RERAIL_METRICS: stolen-metrics
      RERAIL_PROGRESS: stolen-progress
      RERAIL_MARKS: none
      RERAIL_STEP: other
      RERAIL_STEP_KEY: other
      RERAIL_ATTEMPT: '9'
    run: |
      (setsid sleep 300 & echo $! > ../left-behind)
      printf 'run=%s\\nstep=%s\\nkey=%s\\nattempt=%s\\ndir=%s\\n' "$RERAIL_RUN_ID" "$RERAIL_STEP" "$RERAIL_STEP_KEY" \\
        "$RERAIL_ATTEMPT" "$RERAIL_RUN_DIR" >> "$RERAIL_OUTPUT"
      echo '{"cost_usd": 2}' >> "$RERAIL_METRICS"
      echo '{"done": 1, "total": 1}' >> "$RERAIL_PROGRESS"
"""


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.scenario("J14")
def test_no_environment_replaces_what_rerail_tells_a_step(project: Project) -> None:
    """Neither that of the pipeline nor the one rerail was started in: values arrive, nothing is written elsewhere.

    What a step leaves behind is ended although the step was told another mark.
    """
    project.env |= {"RERAIL_OUTPUT": "stolen-too", "RERAIL_RUN_ID": "fake-too", "RERAIL_MARKS": "none"}
    project.pipeline(ENVIRONMENT)

    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    (step,) = recorded(project.run_dir("r"))["steps"]
    told = {"run": "r", "step": "a", "key": "r/a", "attempt": 1, "dir": str(project.run_dir("r"))}
    assert step["outputs"] == told
    assert step["metrics"] == {"cost_usd": 2}
    assert sorted(os.listdir(project.root)) == [".rerail", "pipeline.yaml"]
    left_behind = (project.root.parent / "left-behind").read_text().strip()
    eventually(lambda: not is_running(left_behind), "what was left behind is ended")


@pytest.mark.scenario("J15")
def test_a_pipeline_and_a_checkpoint_of_another_run_are_not_believed(project: Project) -> None:
    """Both are whole and real, and belong elsewhere: nothing of the one is run, nothing of the other is reused."""
    run = failed_run(project)
    project.pipeline(PIPELINE.replace("test -e fixed", "touch pwned"), "other.yaml")
    project.rerail("run", "other.yaml", "--id", "other", check=0)
    for path in (project.root / "pwned", project.ledger_file):
        path.unlink()
    project.ledger_file.touch()
    (project.root / "pipeline.yaml").unlink()
    shutil.copy(project.run_dir("other") / "pipeline.yaml", run)

    refused = project.rerail("resume", "r", check=6)
    assert "not the pipeline the journal vouches for" in refused.stderr
    assert project.ledger() == []
    project.pipeline(PIPELINE)
    shutil.copy(project.run_dir("other") / "checkpoint.json", run)
    resumed = project.rerail("resume", "r", check=0)

    assert "checkpoint.json does not match the journal" in resumed.stderr
    assert project.ledger() == ["two"]
    assert not (project.root / "pwned").exists()


@pytest.mark.scenario("M2")
def test_a_run_is_resumed_through_a_link_and_from_deep_below(project: Project) -> None:
    """The same run, the same files: what was lost is restored where it was, and nothing is made a second time."""
    failed_run(project)
    (project.root / "out.txt").unlink()
    (project.root / "deep" / "er").mkdir(parents=True)
    link = project.root.parent / "link"
    link.symlink_to(project.root, target_is_directory=True)
    real, project.root = project.root, link / "deep" / "er"

    project.rerail("resume", check=0)

    project.root = real
    assert project.ledger() == ["one", "two", "two"]
    assert (real / "out.txt").read_text() == "made\n"
    assert sorted(str(path) for path in real.rglob(".rerail")) == [str(real / ".rerail")]
    assert os.listdir(real / "deep" / "er") == []


def modes(project: Project) -> dict[str, tuple[int, int]]:
    paths = (project.root / ".rerail").rglob("*")
    return {str(path): (path.stat().st_mode, path.stat().st_uid) for path in paths}


@pytest.mark.scenario("M3")
@pytest.mark.parametrize("whose", ["mine", pytest.param("another's", marks=pytest.mark.needs_root("to give files away"))])
def test_state_that_may_not_be_read_is_said_and_left_alone(project: Project, whose: str) -> None:
    """No permission is no damage and no fresh start: exit 6, with modes, owners and files as they were."""
    run = failed_run(project)
    if whose == "mine":
        (run / "journal-0001.jsonl").chmod(0)
    else:
        for path in (project.root / ".rerail", *(project.root / ".rerail").rglob("*")):
            os.chown(path, 65534, 65534)
    before = modes(project)

    refused = as_somebody(project, "resume", "r", "--store", str(project.root / ".rerail"))

    assert refused.returncode == 6, refused.stderr
    assert "Permission denied" in refused.stderr
    assert "next: " in refused.stderr
    assert modes(project) == before
    assert project.ledger() == ["one", "two"]


def no_umask() -> None:
    os.umask(0)


@pytest.mark.scenario("M3")
def test_what_a_whole_run_writes_is_private_whatever_the_umask(project: Project) -> None:
    """Journal, logs, copies of artifacts, indexes: nobody else may read them."""
    project.pipeline(PIPELINE.replace("test -e fixed", "echo printed"))

    project.rerail("run", "pipeline.yaml", "--id", "r", check=0, preexec_fn=no_umask)

    found = {str(path): stat.S_IMODE(path.lstat().st_mode) for path in (project.root / ".rerail").rglob("*")}
    assert {path: oct(mode) for path, mode in found.items() if mode & 0o077} == {}
    assert len([path for path in found if "/objects/" in path or "/logs/" in path]) >= 3


@pytest.mark.needs_root("to mount")
@pytest.mark.scenario("M5")
def test_doctor_warns_of_state_in_a_layer_of_a_container(project: Project) -> None:
    """What is written there is gone with the container, however well it was synced."""
    mount = (
        "mkdir m && mount -t tmpfs tmpfs m && cd m && mkdir lower upper work all && "
        "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work all"
    )
    script = f"({mount}) || exit 77; cd m/all && exec {sys.executable} -m rerail doctor --store .rerail"
    command = ["unshare", "-m", "sh", "-c", script]
    done = subprocess.run(command, cwd=project.root, env=project.env, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("overlay cannot be mounted here")

    assert re.search(r"^!  file system +overlay: lost with its container", done.stdout, re.MULTILINE), done.stdout


@pytest.fixture
def elsewhere(project: Project) -> Iterator[Path]:
    """A directory on another file system."""
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat(project.root).st_dev:
        pytest.skip("there is no other file system")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.mark.scenario("M6")
def test_state_on_another_file_system_keeps_copies_restores_and_moves_aside(project: Project, elsewhere: Path) -> None:
    """No rename leads from there to here: copies are put back whole, and what people wrote is kept all the same."""
    project.env["RERAIL_STORE"] = str(elsewhere / "state")
    text = PIPELINE.replace("made > out.txt", "made > out.txt; mkdir -p d; echo x > d/x").replace(
        "[out.txt]", "[out.txt, d]"
    )
    failed_run(project, text)
    (project.root / "out.txt").write_text("edited\n")
    shutil.rmtree(project.root / "d")
    (project.root / "d").write_text("a file now\n")

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["one", "two", "two"]
    assert (project.root / "out.txt").read_text() == "made\n"
    assert (project.root / "d" / "x").read_text() == "x\n"
    aside = [path.read_text() for path in elsewhere.glob("state/runs/r/quarantine/**/*") if path.is_file()]
    assert sorted(aside) == ["a file now\n", "edited\n"]
    assert not (project.root / ".rerail").exists()


@pytest.mark.scenario("M8")
def test_conflict_copies_of_a_sync_tool_are_nobodys_state(project: Project) -> None:
    """Copies beside the state files are ignored; a copy of the run under another name is not taken for a run."""
    run = failed_run(project)
    whole = project.root.parent / "whole"
    shutil.copytree(run, whole)
    for name, copy in (
        ("journal-0001.jsonl", "journal-0001 (conflicted copy 2026-01-02).jsonl"),
        ("journal-0001.jsonl", "journal-0002 (1).jsonl"),
        ("journal-0001.jsonl", "journal-0001.sync-conflict-20260102-030405-ABCDEFG.jsonl"),
        ("checkpoint.json", "checkpoint (1).json"),
        ("run.json", "run.json~"),
    ):
        shutil.copy(run / name, run / copy)
    shutil.copy(run / "checkpoint.json", run / "history" / "checkpoint-9 (1).json")
    shutil.copytree(whole, run.parent / "r (1)")
    shutil.copytree(whole, run.parent / "r-laptop")

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["one", "two", "two"]
    rows = {run["run_id"]: run["status"] for run in project.json("list")}
    assert rows == {"r": "completed", "r-laptop": "damaged"}


@pytest.mark.scenario("M4")
@pytest.mark.parametrize("ok", [True, False])
def test_the_directory_we_were_started_in_is_removed(project: Project, ok: bool) -> None:
    sub = project.root / "sub"
    sub.mkdir()
    project.pipeline(f'steps: [{{id: a, run: "rm -rf {sub}"}}, {{id: b, run: "{"true" if ok else "exit 3"}"}}]')

    done = subprocess.run(
        [*RERAIL, "run", "../pipeline.yaml", "--id", "r"], cwd=sub, env=project.env, capture_output=True, text=True
    )

    assert done.returncode == (0 if ok else 1), done.stderr
    if not ok:
        assert "exited with code 3" in done.stderr
        assert "next: rerail resume r --store" in done.stderr
    assert project.json("show", "r")["status"] == ("completed" if ok else "failed")
