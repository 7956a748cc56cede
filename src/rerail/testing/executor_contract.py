"""Contract of executors as plain pytest classes, for authors of executors.

class TestMyExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self, tmp_path): ...
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rerail.core.model import Call
from rerail.core.unit_id import UnitId
from rerail.executors.channels import METRICS, OUTPUT
from rerail.ports import Attempt, Capabilities, Executor, FunctionWork, Outcome, ProcessWork

_NO = ProcessWork(argv=("/bin/sh", "-c", "exit 4"), label="a check that fails")
_LONG = 20.0  # seconds after which something that should have happened has not


def attempt(unit: str, place: Path, **more: Any) -> Attempt:
    """Return an attempt that runs in a directory and has its channel there."""
    channel = str(place / unit)
    env = {"RERAIL_OUTPUT": channel + OUTPUT, "RERAIL_METRICS": channel + METRICS, **more.pop("env", {})}
    settings: dict[str, Any] = {"number": 1, "action": Call(target=unit), "timeout": None, "log_name": f"{unit}.1"}
    return Attempt(unit=UnitId(unit), cwd=str(place), env=env, channel=channel, **{**settings, **more})


def script(text: str) -> ProcessWork:
    """Return a shell script as work."""
    return ProcessWork(argv=("/bin/sh", "-c", text))


def gathered(executor: Executor, count: int) -> dict[str, Outcome]:
    """So many outcomes, by unit; fails if they do not come, or if one comes twice."""
    found: dict[str, Outcome] = {}
    until = time.monotonic() + _LONG
    while len(found) < count and time.monotonic() < until:
        for outcome in executor.wait(lambda: 0.5):
            assert outcome.unit.step not in found, f"two outcomes of {outcome.unit.step}"
            found[outcome.unit.step] = outcome
    assert len(found) == count, f"of {count} outcomes {len(found)} came"
    return found


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, or does in a moment: one that was killed needs that to die."""
    if not os.path.isdir("/proc/self"):
        pytest.skip("needs /proc to look for processes")
    until = time.monotonic() + _LONG
    while time.monotonic() < until:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                if file.read().rsplit(b")", 1)[1].split()[0] == b"Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.005)
    return False


def _pid_in(executor: Executor, path: Path) -> int:
    """Wait until a process has written its pid to a file, and return it."""
    until = time.monotonic() + _LONG
    while not (path.exists() and path.read_text().strip()) and time.monotonic() < until:
        executor.wait(lambda: 0.02)
    return int(path.read_text())


@contextlib.contextmanager
def something_to_read() -> Iterator[None]:
    """Put something on the standard input of this process that no step may read."""
    ours = os.dup(0)
    read, write = os.pipe()
    os.write(write, b"not for you")
    os.close(write)
    os.dup2(read, 0)
    os.close(read)
    try:
        yield
    finally:
        os.dup2(ours, 0)
        os.close(ours)


class ExecutorContract:
    """Contract that the engine relies on; every executor keeps all of it."""

    def test_a_process_that_ends_well_hands_out_what_it_wrote(self, executor: Executor, tmp_path: Path) -> None:
        text = 'echo n=7 >> "$RERAIL_OUTPUT"; echo \'{"cost_usd": 0.5}\' >> "$RERAIL_METRICS"; echo said; pwd'
        executor.start(attempt("a", tmp_path), script(text))
        outcome = gathered(executor, 1)["a"]

        assert (outcome.status, outcome.exit_code) == ("ok", 0), outcome
        assert outcome.outputs == {"n": 7}
        assert outcome.metrics == {"cost_usd": 0.5}
        assert outcome.output.splitlines() == ["said", os.path.realpath(tmp_path)]
        assert outcome.duration >= 0

    def test_a_process_that_fails_says_how(self, executor: Executor, tmp_path: Path) -> None:
        codes, signals = (1, 3, 126, 255), ("SIGKILL", "SIGTERM", "SIGSEGV")
        for code in codes:
            executor.start(attempt(f"code{code}", tmp_path), script(f"echo why {code} >&2; exit {code}"))
        for name in signals:
            executor.start(attempt(name, tmp_path), script(f"ulimit -c 0; kill -{name[3:]} $$"))
        found = gathered(executor, len(codes) + len(signals))

        for code in codes:
            outcome = found[f"code{code}"]
            assert (outcome.status, outcome.exit_code, outcome.stderr_tail) == ("failed", code, f"why {code}")
        for name in signals:
            assert (found[name].status, found[name].signal) == ("failed", name)

    def test_a_process_is_given_all_that_was_ordered(self, executor: Executor, tmp_path: Path) -> None:
        """Check its variables, its files while it runs, its empty standard input, and its captured output."""
        note = str(tmp_path / "note")
        work = ProcessWork(
            argv=("/bin/sh", "-c", 'cat; echo "$HERS $ITS $(cat note)"'), env={"ITS": "2"}, files={note: b"3"}
        )
        with something_to_read():
            executor.start(attempt("a", tmp_path, env={"HERS": "1"}, capture={"said": "text"}), work)
            outcome = gathered(executor, 1)["a"]

        assert outcome.status == "ok", outcome
        assert outcome.outputs["said"].strip() == "1 2 3"
        assert not os.path.exists(note)

    def test_whoever_is_left_behind_delays_nobody(self, executor: Executor, tmp_path: Path) -> None:
        """It holds the pipe its parent wrote to; the attempt is over when the parent is. Nor does it live on for long."""
        executor.start(attempt("a", tmp_path), script("sleep 60 & echo $! > child; echo said"))
        began = time.monotonic()
        outcome = gathered(executor, 1)["a"]

        assert (outcome.status, outcome.output.strip()) == ("ok", "said")
        assert time.monotonic() - began < _LONG
        executor.close()
        assert is_gone(int((tmp_path / "child").read_text()))

    def test_it_says_what_it_can_do_and_that_does_not_change(self, executor: Executor, tmp_path: Path) -> None:
        before = executor.capabilities
        assert isinstance(before, Capabilities)
        assert (min(executor.signal_pipes) >= 0) == before.guards
        executor.guard()
        executor.start(attempt("a", tmp_path), script("true"))
        gathered(executor, 1)

        assert executor.capabilities == before

    def test_what_is_suspended_stands_still_and_its_time_limit_with_it(self, executor: Executor, tmp_path: Path) -> None:
        if not executor.capabilities.suspends:
            pytest.skip("it cannot suspend, and says so")
        text = "echo $$ > pid; while ! test -e go; do sleep 0.02; done; touch went; sleep 0.5"
        executor.start(attempt("a", tmp_path, timeout=2.0), script(text))
        _pid_in(executor, tmp_path / "pid")
        executor.suspend(signal.SIGSTOP)
        time.sleep(0.2)  # until that has reached all of them
        (tmp_path / "go").touch()
        time.sleep(2.3)  # more than it has
        stood_still = not (tmp_path / "went").exists()
        executor.shift_deadlines(2.5)
        executor.suspend(signal.SIGCONT)

        assert stood_still
        assert gathered(executor, 1)["a"].status == "ok"

    def test_what_cannot_start_is_an_outcome_not_an_error(self, executor: Executor, tmp_path: Path) -> None:
        executor.start(attempt("nothing", tmp_path), ProcessWork(argv=("/nowhere/nothing",)))
        executor.start(attempt("nowhere", tmp_path / "nowhere"), script("true"))
        found = gathered(executor, 2)

        assert {outcome.status for outcome in found.values()} == {"failed"}
        assert {outcome.type for outcome in found.values()} == {"CouldNotStart"}

    def test_functions_hand_out_what_they_return_and_fail_with_what_they_raise(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        def broken() -> None:
            raise LookupError("gone")

        executor.start(attempt("good", tmp_path), FunctionWork(function=lambda: {"n": 1}))
        executor.start(attempt("broken", tmp_path), FunctionWork(function=broken))
        found = gathered(executor, 2)

        assert (found["good"].status, found["good"].outputs) == ("ok", {"n": 1})
        assert (found["broken"].status, found["broken"].type) == ("failed", "LookupError")

    def test_checks_decide_after_the_work(self, executor: Executor, tmp_path: Path) -> None:
        executor.start(attempt("passes", tmp_path, checks=(script("test -e made"),)), script("touch made"))
        executor.start(attempt("fails", tmp_path, checks=(_NO,)), script("true"))
        found = gathered(executor, 2)

        assert found["passes"].status == "ok"
        assert (found["fails"].status, found["fails"].type) == ("failed", "CheckFailed")

    def test_a_time_limit_ends_the_whole_tree(self, executor: Executor, tmp_path: Path) -> None:
        text = "sleep 60 & echo $! > child; wait"
        deaf = "trap '' INT TERM; echo $$ > deaf; while :; do sleep 0.1; done"
        executor.start(attempt("slow", tmp_path, timeout=0.3), script(text))
        executor.start(attempt("deaf", tmp_path, timeout=0.3), script(deaf))
        found = gathered(executor, 2)

        assert {(outcome.status, outcome.type) for outcome in found.values()} == {("failed", "Timeout")}
        assert is_gone(int((tmp_path / "child").read_text()))
        assert is_gone(int((tmp_path / "deaf").read_text()))

    def test_what_is_stopped_is_asked_and_then_made_to(self, executor: Executor, tmp_path: Path) -> None:
        executor.start(attempt("deaf", tmp_path), script("trap '' INT TERM; echo $$ > deaf; while :; do sleep 0.1; done"))
        executor.start(attempt("spared", tmp_path), script("while ! test -e go; do sleep 0.02; done"))
        pid = _pid_in(executor, tmp_path / "deaf")
        executor.stop(0.2, spare={"spared"})
        stopped = gathered(executor, 1)["deaf"]
        (tmp_path / "go").touch()

        assert stopped.status == "stopped"
        assert is_gone(pid)
        assert gathered(executor, 1)["spared"].status == "ok"

    def test_what_ends_when_it_is_asked_is_given_the_time(self, executor: Executor, tmp_path: Path) -> None:
        text = "trap 'touch asked; exit 3' INT TERM; echo $$ > polite; while :; do sleep 0.02; done"
        executor.start(attempt("polite", tmp_path), script(text))
        _pid_in(executor, tmp_path / "polite")
        executor.stop(_LONG)
        stopped = gathered(executor, 1)["polite"]

        assert stopped.status == "stopped"
        assert (tmp_path / "asked").exists()

    def test_many_at_once_come_back_once_each(self, executor: Executor, tmp_path: Path) -> None:
        for number in range(24):
            executor.start(attempt(f"u{number}", tmp_path), script(f'echo n={number} >> "$RERAIL_OUTPUT"'))
        found = gathered(executor, 24)

        assert all(found[f"u{number}"].outputs == {"n": number} for number in range(24))

    def test_waiting_ends_when_it_is_woken_or_when_patience_does(self, executor: Executor) -> None:
        assert executor.wait(lambda: 0.0) == []
        waker = threading.Thread(target=executor.wake)
        waker.start()
        began = time.monotonic()
        assert executor.wait(lambda: 10 * _LONG) == []
        assert time.monotonic() - began < _LONG
        waker.join()

    def test_nothing_is_alive_after_closing(self, executor: Executor, tmp_path: Path) -> None:
        text = f'{sys.executable} -c \'import os,time; open("pid","w").write(str(os.getpid())); time.sleep(60)\''
        executor.start(attempt("left", tmp_path), script(text))
        pid = _pid_in(executor, tmp_path / "pid")
        executor.close()

        assert is_gone(pid)
