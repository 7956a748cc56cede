"""Attacks on the promises: clocks that jump, journals of gigabytes, stores of thousands of runs, and no shell but a small one.

`RERAIL_LARGE=1` makes the journal 2.1 GiB and the store 20 000 runs large.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rerail import api, processes
from rerail.app.planning import checkpoint
from rerail.core import events as ev
from rerail.core.state import fold
from rerail.stores.directory import DirectoryStore
from tests.conftest import RERAIL, Project, eventually
from tests.wrong_clock import SetClock

ROOT = Path(__file__).parents[2]
DAY = 86_400
JUMPS = [-3650 * DAY, -DAY, DAY, 3650 * DAY]
LARGE = bool(os.environ.get("RERAIL_LARGE"))


def journal(project: Project, run_id: str = "r") -> str:
    return "".join(path.read_text() for path in sorted(project.run_dir(run_id).glob("journal-*.jsonl")))


def seconds_shown(shown: Any) -> list[float]:
    """Every duration that a command says, at any depth."""
    if isinstance(shown, dict):
        mine = [
            value for key, value in shown.items() if "seconds" in key or key in ("duration", "elapsed", "active_seconds")
        ]
        return [value for value in mine if isinstance(value, int | float)] + seconds_shown([*shown.values()])
    return [value for one in shown for value in seconds_shown(one)] if isinstance(shown, list) else []


def assert_no_absurd_time(project: Project, most: float) -> None:
    """No command that tells times says one that is negative, or longer than all of this can have taken."""
    shown = project.json("show", "r")
    assert shown.pop("duration_seconds") >= 0  # from its start to its end by the wall clock, whatever lies between
    told = [*seconds_shown(shown), *seconds_shown(project.json("history", "r"))]
    told += seconds_shown(project.json("cost", "r"))
    assert told
    assert all(0 <= one <= most for one in told), told
    words = "".join(project.rerail(command, "r", check=0).stdout for command in ("show", "history", "cost"))
    assert " -" not in words.replace(" - ", "").replace("--", ""), words


# Clocks


@pytest.mark.parametrize("jump", JUMPS)
def test_a_jump_of_the_clock_is_not_counted_against_a_budget_of_time(
    project: Project, set_clock: SetClock, jump: int
) -> None:
    """A run that pauses after its clock was set has used up the seconds that went by, and may go on."""
    project.pipeline(
        "budget: {time: 10m}\n"
        "steps:\n"
        "  - {id: a, run: 'echo a >> $LEDGER; until test -e go; do sleep 0.02; done'}\n"
        "  - {id: ok, approve: sure?}\n"
        "  - {id: b, run: 'echo b >> $LEDGER'}\n"
    )
    began = time.monotonic()
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a"], "a runs")
    set_clock(jump)
    (project.root / "go").touch()
    assert process.wait(timeout=120) == 5
    took = time.monotonic() - began

    driven = project.json("show", "r")["active_seconds"]
    assert 0 < driven <= took, (driven, took)
    project.rerail("approve", "r", "ok", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["a", "b"]


@pytest.mark.parametrize("jump", JUMPS)
def test_a_jump_of_the_clock_is_not_counted_against_the_budget_of_a_run_that_is_killed(
    project: Project, set_clock: SetClock, jump: int
) -> None:
    """Neither the run nor the attempt that was cut off has taken a day; nor nothing at all."""
    project.pipeline(
        "budget: {time: 10m}\n"
        "steps:\n"
        "  - {id: a, run: 'echo a >> $LEDGER; until test -e one; do sleep 0.02; done'}\n"
        "  - id: b\n"
        "    budget: {time: 10m}\n"
        "    run: 'echo b >> $LEDGER; until test -e two; do sleep 0.02; done'\n"
    )
    began = time.monotonic()
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a"], "a runs")
    set_clock(jump)
    (project.root / "one").touch()
    eventually(lambda: project.ledger() == ["a", "b"], "b runs")
    ran = time.monotonic()
    eventually(lambda: time.monotonic() - ran > 0.5, "it has run for a while")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (project.root / "two").touch()
    project.rerail("resume", "r", check=0)
    took = time.monotonic() - began

    assert project.ledger() == ["a", "b", "b"]
    assert 0.5 < project.json("show", "r")["active_seconds"] <= took
    assert_no_absurd_time(project, took)


@pytest.mark.parametrize("jump", JUMPS)
def test_a_clock_that_jumps_while_a_retry_is_waited_for_makes_it_neither_longer_nor_negative(
    project: Project, set_clock: SetClock, jump: int
) -> None:
    """In one life by the clock that never jumps; after a kill never longer than was decided."""
    project.pipeline(
        "steps:\n"
        "  - id: a\n"
        "    retry: {attempts: 3, delay: 2s, backoff: fixed, jitter: false}\n"
        "    run: 'echo a >> $LEDGER; test $(wc -l < $LEDGER) -ge 3'\n"
    )
    began = time.monotonic()
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: '"event":"step-failed"' in journal(project), "it waits for its second attempt")
    set_clock(jump)
    eventually(lambda: project.ledger() == ["a", "a"], "the second attempt")
    assert time.monotonic() - began >= 2, "the wait was skipped"
    eventually(lambda: journal(project).count('"event":"step-failed"') == 2, "it waits for its third attempt")
    process.kill()
    process.communicate()
    set_clock(0)

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["a", "a", "a"]
    told = [event for event in project.json("history", "r") if event["event"] == "step-failed"]
    assert [event["retry_in"] for event in told] == [2.0, 2.0]
    assert_no_absurd_time(project, time.monotonic() - began)


@pytest.mark.parametrize("jump", [-3650 * DAY, 3650 * DAY])
def test_a_clock_that_jumps_between_the_iterations_of_a_loop_neither_skips_nor_prolongs_the_delay(
    project: Project, set_clock: SetClock, jump: int
) -> None:
    project.pipeline(
        "steps:\n"
        "  - id: l\n"
        "    loop: {max_iterations: 3, delay: 1s}\n"
        "    steps: [{run: 'cut -d\" \" -f1 /proc/uptime >> $LEDGER'}]\n"
    )
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: len(project.ledger()) == 1, "the first iteration")
    set_clock(jump)
    eventually(lambda: len(project.ledger()) == 2, "the second iteration")
    process.kill()
    process.communicate()
    set_clock(0)
    project.rerail("resume", "r", check=0)

    first, second, *_ = map(float, project.ledger())
    assert second - first >= 0.98, "the delay was skipped"


@pytest.mark.parametrize("jump", JUMPS)
def test_max_runtime_is_a_time_that_passes_and_not_one_that_a_clock_shows(
    project: Project, set_clock: SetClock, jump: int
) -> None:
    project.pipeline("steps: [{id: a, run: 'echo a >> $LEDGER; until test -e go; do sleep 0.02; done'}]")
    began = time.monotonic()
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--max-runtime", "3s")
    eventually(lambda: project.ledger() == ["a"], "a runs")
    set_clock(jump)
    assert process.wait(timeout=120) == 5
    assert time.monotonic() - began >= 3


@pytest.mark.parametrize("jump", JUMPS)
def test_an_answer_counts_whatever_the_clock_says(project: Project, set_clock: SetClock, jump: int) -> None:
    """Rejected by mistake, and approved by who saw that, while the run goes on: the last word counts."""
    project.pipeline(
        "steps:\n"
        "  - {id: ok, needs: [], approve: sure?}\n"
        "  - {id: other, needs: [], run: 'until test -e go; do sleep 0.02; done'}\n"
        "  - {id: after, needs: [ok], run: 'echo after >> $LEDGER'}\n"
    )
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: '"step":"other"' in journal(project), "it runs")
    project.rerail("reject", "r", "ok", check=0)
    eventually(lambda: '"event":"step-failed"' in journal(project), "it is rejected")
    set_clock(jump)
    project.rerail("approve", "r", "ok", check=0)
    eventually(lambda: not os.listdir(project.run_dir("r") / "inbox"), "the answer was taken up")
    (project.root / "go").touch()
    _, said = process.communicate(timeout=120)

    assert process.returncode == 0, said
    assert project.ledger() == ["after"]


@pytest.mark.parametrize("jump", [-3650 * DAY, -DAY])
def test_a_file_that_two_runs_wrote_is_not_sealed_because_the_clock_was_set_back(
    project: Project, set_clock: SetClock, jump: int
) -> None:
    """The other run wrote it, finished, and says it did so yesterday; a third one tidies up the claims."""
    project.pipeline(
        "steps: [{id: a, artifacts: [out], run: 'echo mine > out; echo a >> $LEDGER; until test -e go; do sleep 0.02; done'}]"
    )
    project.pipeline("steps: [{id: b, artifacts: [out], run: 'echo theirs > out'}]", "other.yaml")
    project.pipeline("steps: [{id: c, artifacts: [else], run: 'echo > else'}]", "third.yaml")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a"], "a has written")
    set_clock(jump)
    project.rerail("run", "other.yaml", "--id", "s", "--allow-concurrent")
    assert (project.root / "out").read_text() == "theirs\n"
    project.rerail("run", "third.yaml", "--id", "t", check=0)
    (project.root / "go").touch()
    _, said = process.communicate(timeout=120)

    assert process.returncode == 1, said
    assert "may be that of run s" in said


def test_who_owns_a_run_is_not_a_matter_of_the_clock(project: Project, set_clock: SetClock) -> None:
    project.pipeline("steps: [{id: a, run: 'echo a >> $LEDGER; until test -e go; do sleep 0.02; done'}]")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a"], "a runs")
    for jump in JUMPS:
        set_clock(jump)
        (row,) = project.json("list")
        assert (row["status"], row["owner"]["alive"]) == ("running", True)
        assert "owned by process" in project.rerail("resume", "r", check=4).stderr
        project.rerail("prune", "--keep", "0", "--older-than", "0s", check=0)
        project.rerail("delete", "r", "--yes", check=4)
    (project.root / "go").touch()
    assert process.wait(timeout=120) == 0


# A journal that is large


def grow(project: Project, size: int) -> None:
    """Have the journal of a run that waits grow to this size, by the product's own way of writing it."""
    store = DirectoryStore(str(project.root / ".rerail"))
    log = store.own("r")
    try:
        state, now = log.recording.state, datetime.now(UTC)
        owner = processes.identity(now)
        sha256, options = state.pipeline_sha256, state.options
        opening = ev.RunResumed(at=now, owner=owner, pipeline_sha256=sha256, options=options, steps=state.steps)
        error = ev.Failure(type="Exit", message="x" * 1_000_000, step="b", at=now)
        events: list[ev.Event] = [opening]
        attempt = 0
        while log.position[1] < size:
            for _ in range(4):
                attempt += 1
                begun = ev.StepStarted(at=now, step="b", attempt=attempt)
                failed = ev.StepFailed(at=now, step="b", attempt=attempt, error=error, duration=0.1)
                events += [begun, failed]
            fold(enumerate(events, state.seq + 1), state)
            log.append(events)
            events = []
        end = ev.RunInterrupted(at=now, reason="it was enough")
        fold([(state.seq + 1, end)], state)
        log.append([end])
        log.save_snapshot(checkpoint(store, log.recording), keep=1)
    finally:
        log.close()


MEASURED = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(done.returncode)
"""


def peak_memory(project: Project, *arguments: str) -> int:
    """The most memory a command took, in bytes; started by a small process, whose size would count if it were larger."""
    process = project.spawn(*RERAIL, *arguments, program=(sys.executable, "-c", MEASURED))
    _, said = process.communicate(timeout=1800)
    assert process.returncode == 0, said
    return int(said.split()[-1]) * 1024


@pytest.mark.timeout(3600 if LARGE else 300)
def test_a_large_journal_is_read_proved_and_continued(project: Project) -> None:
    """Memory is what the journal takes and not several times that; over 2 GiB with RERAIL_LARGE."""
    project.pipeline(
        "steps:\n  - {id: a, run: 'echo a >> $LEDGER'}\n  - {id: ok, approve: sure?}\n"
        "  - {id: b, run: 'echo b >> $LEDGER'}\n"
    )
    size = 2200 << 20 if LARGE else 64 << 20
    if shutil.disk_usage(project.root).free < 4 * size:
        pytest.skip(f"needs {4 * size >> 20} MiB of free disk")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    project.rerail("approve", "r", "ok", check=0)
    grow(project, size)
    large = max(path.stat().st_size for path in project.run_dir("r").glob("journal-*.jsonl"))
    assert large >= size
    for command in (
        ("show", "r"),
        ("list",),
        ("verify", "r"),
        ("resume", "r"),
        ("show", "r"),
        ("verify", "r"),
        ("logs", "r"),
    ):
        began = time.monotonic()
        most = peak_memory(project, *command)
        print(command, f"{time.monotonic() - began:.1f} s", most >> 20, "MiB")
        assert most < 2.5 * large + (40 << 20), command
    assert project.ledger() == ["a", "b"]
    assert project.json("show", "r")["status"] == "completed"


# Thousands of runs


@pytest.mark.timeout(3600 if LARGE else 300)
def test_a_store_of_thousands_of_runs_is_listed_pruned_and_added_to_without_opening_each(project: Project) -> None:
    """Counted is what the kernel was asked for: a new run opens none of the others, nor does resume those that are done."""
    count = 20_000 if LARGE else 100
    strace = shutil.which("strace")
    path = str(project.pipeline("steps: [{id: a, write: {path: out.txt, content: hello}}]"))
    store = DirectoryStore(str(project.root / ".rerail"))
    for number in range(count):
        request = api.StartRequest(pipeline_path=path, run_id=f"old-{number:05d}")
        assert api.start(store, request, base_dir=str(project.root)).state.status == "completed"

    assert len(project.json("list")) == count
    assert project.json("show", "last")["run_id"] == f"old-{count - 1:05d}"
    assert "nothing to resume" in project.rerail("resume", check=0).stderr
    if strace is None:
        pytest.skip("counting what is opened needs strace (Debian: apt-get install strace)")

    def traced(*arguments: str, calls: str) -> list[str]:
        log = project.root.parent / "calls"
        process = project.spawn(
            "-f", "-y", "-e", f"trace={calls}", "-o", str(log), *RERAIL, *arguments, program=(strace or "",)
        )
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        return log.read_text().splitlines()

    opened = traced("run", "pipeline.yaml", "--id", "new", calls="openat")
    assert not [line for line in opened if "/runs/old-" in line]
    opened = traced("resume", calls="openat")
    assert not [line for line in opened if "/runs/old-" in line and "run.json" not in line]
    listed = traced("prune", "--keep", "1", calls="getdents64")
    whole = [line for line in listed if ".rerail/runs>" in line]
    assert len(whole) < count / 4, "the store was listed for each run that was deleted"
    assert [row["run_id"] for row in project.json("list")] == ["new"]


@pytest.mark.parametrize(
    "program", [("bench/runs.py", "--runs", "4", "--keep", "1"), ("scripts/large_journal.py", "--gib", "0.004")]
)
def test_what_is_tried_by_hand_at_full_size_holds_at_the_smallest(program: tuple[str, ...], tmp_path: Path) -> None:
    script, *options = program

    done = subprocess.run(
        [sys.executable, ROOT / script, *options, "--dir", tmp_path], capture_output=True, text=True, timeout=250
    )

    assert done.returncode == 0, done.stdout + done.stderr


# Small shells

SHELLS = ["dash", "busybox"]
TOOLS = ["cat", "cp", "cut", "echo", "env", "grep", "ls", "mkdir", "rm", "sleep", "test", "touch", "tr", "true", "wc"]


@pytest.fixture(params=SHELLS)
def small_shell(project: Project, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A PATH on which `sh` is this shell, and nothing is bash."""
    found = shutil.which(request.param)
    if found is None:
        pytest.skip(f"{request.param} is not installed (Debian: apt-get install {request.param})")
    place = tmp_path / "bin"
    place.mkdir()
    (place / "sh").symlink_to(found)
    busybox = shutil.which("busybox") if request.param == "busybox" else None
    for tool in TOOLS:
        (place / tool).symlink_to(busybox or shutil.which(tool) or "/nowhere")
    project.env["PATH"] = str(place)
    return str(request.param)


NASTY = "a b $(touch pwned) `touch pwned` ' \" \\ \n * ${HOME} ; touch pwned; -n ! \t x "


def test_expressions_in_every_place_of_a_script_are_data_in_a_small_shell(project: Project, small_shell: str) -> None:
    project.pipeline(
        "params: {v: {required: true}}\n"
        "steps:\n"
        "  - id: a\n"
        "    run: |\n"
        "      printf '%s' ${{ params.v }} > plain\n"
        "      printf '%s' \"${{ params.v }}\" > double\n"
        "      printf '%s' '${{ params.v }}' > single\n"
        "      x=${{ params.v }}; printf '%s' \"$x\" > assigned\n"
        "      printf '%s' \"$(printf '%s.' ${{ params.v }})\" > substituted\n"
        "      cat > here <<EOF\n"
        "      ${{ params.v }}\n"
        "      EOF\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", "-p", f"v={NASTY}", "-q", check=0)
    for name in ("plain", "double", "single", "assigned"):
        assert (project.root / name).read_text() == NASTY, (small_shell, name)
    assert (project.root / "substituted").read_text() == NASTY + "."
    assert (project.root / "here").read_text() == NASTY + "\n"
    assert not (project.root / "pwned").exists()


def test_large_values_checks_hooks_lists_and_outputs_work_in_a_small_shell(project: Project, small_shell: str) -> None:
    project.pipeline(
        "steps:\n"
        "  - {id: big, run: 'cat big.txt', outputs: {text: {from: stdout, as: text}}}\n"
        "  - id: use\n"
        "    run: 'printf %s ${{ steps.big.outputs.text }} > copy.txt'\n"
        "    checks: ['test -s copy.txt']\n"
        "  - id: each\n"
        "    map: {over: {command: 'echo x; echo y'}}\n"
        "    steps: [{run: 'echo ${{ item }} >> \"$LEDGER\"'}]\n"
        "  - id: fails\n"
        "    run: 'false; echo never >> \"$LEDGER\"'\n"
        "    on_failure: [{run: 'echo cleaned >> \"$LEDGER\"'}]\n"
        "    allow_failure: true\n"
        "finally:\n"
        "  - {run: 'echo last >> \"$LEDGER\"'}\n"
    )
    (project.root / "big.txt").write_text("é" * 100_000)
    done = project.rerail("run", "pipeline.yaml", "--id", "r")
    assert done.returncode in (0, 1), (small_shell, done.stderr)
    assert (project.root / "copy.txt").read_text() == "é" * 100_000
    assert project.ledger() == ["x", "y", "cleaned", "last"], done.stderr


def test_kill_and_resume_work_in_a_small_shell(project: Project, small_shell: str) -> None:
    project.pipeline(
        "steps:\n"
        "  - {id: a, run: 'echo a >> \"$LEDGER\"'}\n"
        "  - {id: b, run: 'echo b >> \"$LEDGER\"; until test -e go; do sleep 0.05; done'}\n"
    )
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a", "b"], f"b runs in {small_shell}")
    process.kill()
    process.communicate()
    (project.root / "go").touch()
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["a", "b", "b"]
