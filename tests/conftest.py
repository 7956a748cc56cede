"""What all tests share: a project directory and the real command line in a real process."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import rerail.app.wiring
from rerail.app.traces import process_tag_in
from rerail.errors import RerailError
from rerail.executors import channels
from rerail.stores.directory import DirectoryStore
from tests import plan_oracle, sweeps
from tests.crash import figures
from tests.wrong_clock import set_clock, wrong_clock  # noqa: F401 - fixtures

RERAIL = (sys.executable, "-m", "rerail")
NEEDS_ROOT = "needs root: "  # how the reasons begin of what only root can try


class Project:
    """A scratch project, its state directory, and a ledger outside it."""

    def __init__(self, root: Path) -> None:
        self.root = root / "project"
        self.root.mkdir()
        self.ledger_file = root / "ledger"
        self.ledger_file.touch()
        self.env = {**os.environ, "LEDGER": str(self.ledger_file), "HOME": str(root)}
        self._spawned: list[subprocess.Popen[str]] = []

    def pipeline(self, text: str, name: str = "pipeline.yaml") -> Path:
        path = self.root / name
        path.write_text(text, encoding="utf-8")
        return path

    def rerail(self, *arguments: str, check: int | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*RERAIL, *arguments], cwd=self.root, env=self.env, capture_output=True, text=True, timeout=120, **more
        )
        # A user's own traceback is shown indented; one of rerail's would stand at the margin.
        assert "\nTraceback" not in "\n" + done.stderr, done.stderr
        if check is not None:
            assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
        return done

    def json(self, *arguments: str) -> Any:
        return json.loads(self.rerail(*arguments, "--json", check=0).stdout)

    def spawn(self, *arguments: str, program: Sequence[str] = RERAIL) -> subprocess.Popen[str]:
        """A life of its own, in its own session, to be killed."""
        process = subprocess.Popen(
            [*program, *arguments],
            cwd=self.root,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._spawned.append(process)
        return process

    def close(self) -> None:
        """End what a test that failed half-way has left: it would use up the time of those after it."""
        for process in self._spawned:
            if process.poll() is None:
                process.terminate()
                process.send_signal(signal.SIGCONT)
                try:
                    process.communicate(timeout=20)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.communicate()
        store = DirectoryStore(str(self.root / ".rerail"))
        for run_id in store.runs():  # what killed attempts left in memory would be there until the machine is restarted
            with contextlib.suppress(OSError, RerailError):
                channels.wipe(process_tag_in(store, run_id) or "nobody's")

    def ledger(self) -> list[str]:
        return self.ledger_file.read_text(encoding="utf-8").split()

    def run_dir(self, run_id: str) -> Path:
        return self.root / ".rerail" / "runs" / run_id

    def state_digest(self) -> str:
        """A digest over every name and byte of the state directory."""
        digest = hashlib.sha256()
        for path in sorted((self.root / ".rerail").rglob("*")):
            digest.update(str(path.relative_to(self.root)).encode() + b"\0")
            if path.is_file():
                digest.update(path.read_bytes() + str(path.stat().st_mtime_ns).encode())
        return digest.hexdigest()


def eventually(condition: Callable[[], Any], what: str = "") -> Any:
    """Poll for a condition; its value, once it is true. A disk that stalls for seconds is no failure."""
    deadline = time.monotonic() + (5 if "RERAIL_MUTANT" in os.environ else 120)
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"never happened: {what or condition}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Those that take minutes come first in the share of a worker: all others would wait for one that began last."""
    if not sweeps.WHOLE:
        items[:], left_out = sweeps.sampled(items)
        config.hook.pytest_deselected(items=left_out)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    kills = [item for item in items if item.path.stem == "test_random_kills"]
    disks = [item for item in items if item.path.stem == "test_real_disks"]  # one after the other: they share a disk
    rest = [item for item in items if item not in {*kills, *disks}]
    size = -(-len(rest) // workers)
    shares = [rest[at * size : (at + 1) * size] for at in range(workers)]
    for at, item in enumerate(kills):
        shares[at % workers].insert(0, item)
    shares[-1][:0] = disks
    items[:] = [item for share in shares for item in share]
    for item in items if os.geteuid() != 0 else ():
        needed = item.get_closest_marker("needs_root")
        if needed:
            item.add_marker(pytest.mark.skip(f"{NEEDS_ROOT}{needed.args[0]}"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    needed = item.get_closest_marker("needs_root")
    if needed and os.geteuid() != 0:
        pytest.skip(f"{NEEDS_ROOT}{needed.args[0]}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where everything is required, what is skipped has failed; but not for want of root, because root runs it, too."""
    report = yield
    if report.skipped and os.environ.get("RERAIL_REQUIRE_ALL") == "1" and isinstance(report.longrepr, tuple):
        path, line, reason = report.longrepr
        reason = reason.removeprefix("Skipped: ")
        if os.geteuid() == 0 or not reason.startswith(NEEDS_ROOT):
            report.outcome = "failed"
            report.longrepr = f"{path}:{line}: nothing may be skipped here (RERAIL_REQUIRE_ALL=1): {reason}"
    return report


def pytest_sessionstart() -> None:
    if figures.is_controller():
        figures.start()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Of all the laboratory promises, this is the one that no test by itself can look at."""
    explored = figures.different_states() if figures.is_controller() and figures.is_whole() else None
    if explored is not None and explored < figures.LEAST_STATES and not session.testsfailed:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\nonly {explored} different states were explored; {figures.LEAST_STATES} at least")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not sweeps.WHOLE:
        failed = [report.nodeid for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, ())]
        terminalreporter.section(f"a sample, by seed {sweeps.SEED}")
        for test in failed or [""]:
            terminalreporter.write_line(
                f"again: ./test --seed {sweeps.SEED} {shlex.quote(test) if test else ''}".rstrip()
            )
    if figures.lines():
        terminalreporter.section("the crash laboratory")
        for line in figures.lines():
            terminalreporter.write_line(line)


# Every run of every test is watched: what its plan said against what it did.
_violations = Path(tempfile.mkdtemp(prefix="rerail-plan-oracle-")) / "violations"
atexit.register(shutil.rmtree, _violations.parent, ignore_errors=True)
os.environ[plan_oracle.FILE] = str(_violations)
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(Path(__file__).parent / "preload"), os.environ.get("PYTHONPATH")))
)
rerail.app.wiring.execute = plan_oracle.watched(rerail.app.wiring.execute)


@pytest.fixture(autouse=True)
def _plan_and_deeds_agree() -> Iterator[None]:
    yield
    if _violations.exists():
        found = _violations.read_text(encoding="utf-8")
        _violations.unlink()
        pytest.fail(f"a plan and what was done differ:\n{found}")


@pytest.fixture
def sample(request: pytest.FixtureRequest) -> sweeps.Sample:
    """What of a sweep this test tries: all, or what the seed chooses."""
    return sweeps.Sample(request.node.nodeid)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    yield project
    project.close()


# Whoever started us may ignore signals (nohup, a shell in the background), and programs that inherit that stay deaf, as
# they should: what the tests start must not be.
for _number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What steers rerail, Python or a terminal where the tests are started would steer what they start.
for _name in (
    *(name for name in os.environ if name.startswith(("GITHUB_", "RUNNER_", "ACTIONS_", "RERAIL_RUN_"))),
    *("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "LC_ALL", "LC_CTYPE", "LANGUAGE"),
    *("PYTHONUNBUFFERED", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONWARNINGS", "RERAIL_STORE"),
):
    os.environ.pop(_name, None)
os.environ |= {"LANG": "C.UTF-8", "TERM": "xterm-256color"}

# A planted bug that is not there proves nothing (tests/crash/test_mutants.py).
if "RERAIL_MUTANT" in os.environ:
    import rerail

    assert rerail.__file__.startswith(os.environ["RERAIL_MUTANT"]), rerail.__file__

# How long an example takes says something about the machine, not about the code.
settings.register_profile("rerail", deadline=None)
settings.load_profile("rerail")
