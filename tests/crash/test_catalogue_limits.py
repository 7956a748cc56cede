"""Limits and broken disks, by the kernel's own hand: full file systems, file size limits, system calls that fail.

Closes what the other tests leave open in groups C and D of the fault catalogue, and what steps run into of A, F and H.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rerail import api
from rerail.core.run_state import UnitState
from rerail.core.unit_id import UnitId
from rerail.errors import PipelineInvalid
from rerail.stores.directory import DirectoryStore
from tests.conftest import RERAIL, Project, eventually
from tests.crash.conftest import Lab
from tests.crash.test_unwritable import STATE_ERROR, check_honest
from tests.pipelines import note, pipeline, step

STRACE = shutil.which("strace")


needs_strace = pytest.mark.skipif(STRACE is None, reason="needs strace, which makes the kernel's answers")


needs_root = pytest.mark.needs_root("to mount")


pytestmark = pytest.mark.privileges


HOLD = note("while ! test -e go; do sleep 0.02; done")


def store(project: Project) -> DirectoryStore:
    return DirectoryStore(str(project.root / ".rerail"))


def unit(project: Project, name: str) -> UnitState:
    """What is recorded about a step of run r."""
    return store(project).read("r").state.units[UnitId(name)]


def recorded(project: Project) -> dict[Path, bytes]:
    """All that is kept about run r, but for who owned it last."""
    return {path: path.read_bytes() for path in project.run_dir("r").rglob("*") if path.is_file() and path.name != "lock"}


def injected(project: Project, fault: str, *arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run rerail while the kernel answers some of its calls with an error, or only those about one file."""
    assert STRACE
    log = Path(f"{project.ledger_file}.calls")
    traced = [STRACE, "-f", "--seccomp-bpf", "-qq", "-o", str(log), "-e", f"trace={fault.partition(':')[0]}"]
    only = ["-P", str(path)] if path else []
    done = subprocess.run(
        [*traced, *only, "-e", f"inject={fault}", *RERAIL, *arguments],
        cwd=project.root,
        env=project.env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "(INJECTED)" in log.read_text(), "no such call was made"
    return done


def mounted(project: Project, script: str) -> list[str]:
    """Run a script as root of a mount namespace, rerail being "$@"; the words it prints."""
    done = subprocess.run(
        ["unshare", "-m", "bash", "-uc", script, "rerail", *RERAIL],
        cwd=project.root.parent,
        env=project.env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# Group C


@pytest.mark.scenario("C2", "C5")
def test_a_record_that_is_cut_short_before_the_disk_refuses_is_not_half_there(project: Project) -> None:
    """The file size limit cuts the next record of a live run after 90 bytes, and refuses the rest (EFBIG)."""
    project.pipeline(pipeline(step("a", note()), step("b", HOLD), step("c", note())))
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a", "b"], "b runs")
    written = len((project.run_dir("r") / "journal-0001.jsonl").read_bytes().rstrip(b"\0 \n")) + 1
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (written + 90, resource.RLIM_INFINITY))
    (project.root / "go").touch()
    _, message = process.communicate()

    assert process.returncode == STATE_ERROR
    assert "File too large" in message
    assert "then: rerail resume r" in message
    assert project.ledger() == ["a", "b"]
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["a", "b", "b", "c"]


@needs_root
@pytest.mark.scenario("C4")
def test_a_step_that_fills_the_disk_fails_on_the_record(project: Project) -> None:
    """That it failed is recorded on a full disk, and again by who resumes too early; with room the run completes."""
    fill = note('test -e "$LEDGER.room" || cat /dev/zero > fill')
    project.pipeline(pipeline(step("a", note()), step("fill", fill), step("c", note())))
    shutil.copy(project.root / "pipeline.yaml", f"{project.ledger_file}.yaml")
    said = mounted(
        project,
        """
        mount -t tmpfs -o size=1m tmpfs project && cd project && cp "$LEDGER.yaml" pipeline.yaml || exit 1
        "$@" run pipeline.yaml --id r 2> "$LEDGER.first"; echo $?
        "$@" resume r 2> "$LEDGER.second"; echo $?
        wc -l < "$LEDGER"
        rm fill; touch "$LEDGER.room"
        "$@" resume r; echo $?
        """,
    )
    first, second = (Path(f"{project.ledger_file}.{name}").read_text() for name in ("first", "second"))

    assert (said[0], said[-1]) == ("1", "0")
    assert said[1] in ("1", str(STATE_ERROR))  # a page more or less of room decides whether it is tried again
    for told in (first, second):
        assert "failed: exited with code 1" in told
        assert "next: rerail resume r" in told
    assert project.ledger() in (["a", "fill", "fill", "c"], ["a", "fill", "fill", "fill", "c"])


@pytest.mark.scenario("C5")
def test_a_file_size_limit_from_the_start_creates_nothing(project: Project) -> None:
    project.pipeline(pipeline(step("a", note())))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))

    refused = project.rerail("run", "pipeline.yaml", "--id", "r", check=STATE_ERROR, preexec_fn=limit)

    assert "File too large" in refused.stderr
    assert "next:" in refused.stderr
    assert store(project).runs() == []
    assert project.ledger() == []


@needs_strace
@pytest.mark.scenario("C7")
def test_no_process_to_be_had_is_worth_another_try(project: Project) -> None:
    """Every fork is refused (EAGAIN): named, repeated as often as asked, nothing ran; later it simply runs."""
    project.pipeline(pipeline(step("a", note(), retry="{attempts: 3, delay: 0.01}"), step("b", note())))
    refused = injected(project, "clone,clone3,vfork:error=EAGAIN:when=2+", "run", "pipeline.yaml", "--id", "r")
    failed = store(project).read("r").state.units[UnitId("a")]

    assert refused.returncode == 1
    assert "could not start" in refused.stderr
    assert "Resource temporarily unavailable" in refused.stderr
    assert failed.attempts == 3
    assert failed.error is not None
    assert (failed.error.type, failed.error.retryable) == ("CouldNotStart", True)
    assert project.ledger() == []
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["a", "b"]


@needs_root
@pytest.mark.scenario("C8")
def test_no_temporary_directory_is_needed(project: Project) -> None:
    """Wherever programs put such files is read-only; values still get out of steps, and nothing stays behind."""
    project.pipeline(
        pipeline(step("a", note("echo n=7 >> $RERAIL_OUTPUT")), step("b", note("test ${{ steps.a.outputs.n }} = 7")))
    )
    for variable in ("XDG_RUNTIME_DIR", "TMPDIR", "TEMP", "TMP"):
        project.env.pop(variable, None)
    said = mounted(
        project,
        """
        here=$PWD
        for place in /tmp /var/tmp /usr/tmp /dev/shm; do
            ! test -d $place || { mount --bind $place $place && mount -o remount,bind,ro $place; } || exit 1
        done
        mount --bind "$here" "$here" && mount -o remount,bind,rw "$here" && cd "$here/project" || exit 1
        ! touch /tmp/x /dev/shm/x 2> /dev/null || exit 1
        "$@" run pipeline.yaml --id r; echo $?
        """,
    )

    assert said == ["0"]
    assert project.ledger() == ["a", "b"]
    assert sorted(entry.name for entry in project.root.iterdir()) == [".rerail", "pipeline.yaml"]


@pytest.mark.scenario("C9")
def test_names_too_long_for_files_are_refused_or_kept_elsewhere(project: Project) -> None:
    """A step id is a file name and has a limit that is said; the key of an item is a value and has none like it."""
    with pytest.raises(PipelineInvalid, match="at most 64"):
        api.load(str(project.pipeline(pipeline(step("x" * 260, "true")))))
    keys = ["k" * 300, "é" * 200, "a/b/../../c"]
    listed = ", ".join(f'"{key}"' for key in keys)
    script = "{id: s, run: 'echo said ${{ item }}; echo ${{ item }} >> $LEDGER'}"
    project.pipeline(f"steps:\n  - id: m\n    map: {{over: [{listed}], parallel: 1}}\n    steps: [{script}]\n")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert project.ledger() == keys
    logs = [path.read_text() for path in (project.run_dir("r") / "logs").glob("*.out")]
    assert "".join(logs) == "".join(f"said {key}\n" for key in keys)
    assert all(len(os.fsencode(path.name)) < 100 for path in (project.root / ".rerail").rglob("*"))


# Group D


@needs_strace
@pytest.mark.scenario("D3")
def test_a_snapshot_that_cannot_be_saved_is_a_warning(project: Project) -> None:
    """checkpoint.json is a cache: without it the run goes on, says so, leaves no temporary, and the journal tells all."""
    project.pipeline(pipeline(step("a", note()), step("b", note())))
    ran = injected(project, "rename:error=EIO:when=2+", "run", "pipeline.yaml", "--id", "r")  # the first names the run

    assert ran.returncode == 0, ran.stderr
    assert "checkpoint.json could not be written (Input/output error)" in ran.stderr
    assert not (project.run_dir("r") / "checkpoint.json").exists()
    assert list((project.root / ".rerail").rglob("*.rerail-tmp")) == []
    assert store(project).read("r").state.status == "completed"
    assert project.ledger() == ["a", "b"]


@needs_strace
@pytest.mark.scenario("D5")
def test_a_journal_that_cannot_be_read_is_not_taken_for_an_empty_one(project: Project) -> None:
    """The disk fails to read it: refused by name, nothing runs, nothing of the run changes; later it goes on."""
    project.pipeline(pipeline(step("a", note()), step("b", note("test -e go"))))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    before = recorded(project)
    journal = project.run_dir("r") / "journal-0001.jsonl"
    refused = injected(project, "read,pread64:error=EIO", "resume", "r", path=journal)

    assert refused.returncode == STATE_ERROR
    assert "journal-0001.jsonl" in refused.stderr
    assert "Input/output error" in refused.stderr
    assert recorded(project) == before
    (project.root / "go").touch()
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["a", "b", "b"]


@needs_strace
@pytest.mark.scenario("D6")
def test_an_error_that_shows_when_the_journal_is_closed_changes_nothing(project: Project) -> None:
    """Everything was synced before: the run is completed, and so it says."""
    project.pipeline(pipeline(step("a", note()), step("b", note())))
    journal = project.run_dir("r") / "journal-0001.jsonl"
    ran = injected(project, "close:error=EIO", "run", "pipeline.yaml", "--id", "r", path=journal)

    assert ran.returncode == 0, ran.stderr
    assert store(project).read("r").state.status == "completed"
    assert project.ledger() == ["a", "b"]


@needs_strace
@pytest.mark.scenario("D7")
def test_interrupted_system_calls_are_repeated_and_nobody_notices(project: Project) -> None:
    """Every second call is interrupted: no warning, no second journal segment, the same result."""
    project.pipeline(pipeline(step("a", note("echo n=1 >> $RERAIL_OUTPUT")), step("b", note())))
    fault = "pwrite64,fdatasync,fsync,ftruncate,flock:error=EINTR:when=2+2"
    ran = injected(project, fault, "run", "pipeline.yaml", "--id", "r")

    assert ran.returncode == 0, ran.stderr
    assert "Interrupted" not in ran.stderr
    assert "could not" not in ran.stderr
    assert [path.name for path in project.run_dir("r").glob("journal-*")] == ["journal-0001.jsonl"]
    assert unit(project, "a").outputs == {"n": 1}
    assert project.ledger() == ["a", "b"]


@pytest.mark.scenario("D9")
@pytest.mark.parametrize("number", [errno.ENOTCONN, errno.ECONNABORTED, errno.ESTALE])
def test_a_remote_disk_that_went_away_stops_the_run_which_is_resumed_later(lab: Lab, number: int) -> None:
    """From some call on nothing can be written, as when the server of the files is gone: named, nothing claimed."""
    result = lab.ask(mode="errno-forever", number=number, at=60)
    check_honest(result)

    assert result["lives"][0]["code"] == STATE_ERROR
    assert os.strerror(number) in result["messages"]
    assert result["status"] == "completed"


# Group F


@needs_strace
@pytest.mark.scenario("F10")
def test_a_file_system_without_locks_is_refused_and_named(project: Project) -> None:
    """Without a lock two owners could drive one run: no run is created, and doctor says why."""
    project.pipeline(pipeline(step("a", note())))
    refused = injected(project, "flock:error=ENOLCK", "run", "pipeline.yaml", "--id", "r")

    assert refused.returncode == STATE_ERROR
    assert "No locks available" in refused.stderr
    assert "next:" in refused.stderr
    assert store(project).runs() == []
    assert project.ledger() == []
    assert "none: No locks available" in injected(project, "flock:error=ENOLCK", "doctor").stdout


# Groups A, F and H: what a step can run into


DEADLY = """
import os, sys

def leaves(): sys.exit(3)
def vanishes(): os._exit(5)
def recurses(): return recurses()
def hoards(): bytearray(1 << 62)
def crashes():
    import ctypes, resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)
"""


DEATHS = {
    "leaves": "SystemExit: 3",
    "vanishes": "exited with code 5",
    "recurses": "RecursionError",
    "hoards": "MemoryError",
    "crashes": "killed by SIGSEGV",
}


@pytest.fixture(scope="module")
def odd_ends(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One run of steps that end oddly; whoever started it left a descriptor open, and something to read."""
    project = Project(tmp_path_factory.mktemp("odd"))
    (project.root / "deadly.py").write_text(DEADLY)
    (project.root / "plain").write_text("true\n")
    may_fail = {"allow_failure": "true", "retry": "{attempts: 2, delay: 0.01}"}
    project.pipeline(
        pipeline(
            step("oom-once", note("test $RERAIL_ATTEMPT = 2 || kill -9 $$"), **may_fail),
            step("oom", note("kill -9 $$"), **may_fail),
            *(f"  - {{id: {name}, python: 'deadly:{name}', allow_failure: true}}\n" for name in DEATHS),
            step("big", note(), env="{BIG: " + "x" * 200_000 + "}", **may_fail),
            step("plain", note("./plain"), **may_fail),
            step("reads", note("cat > read")),
            step("lists", note("ls /proc/$$/fd > descriptors\ntrue")),
        )
    )
    leaked = os.open(project.root, os.O_RDONLY)
    read, write = os.pipe()
    os.write(write, b"not for steps\n")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0, stdin=read, pass_fds=(leaked,))
    assert os.read(read, 100) == b"not for steps\n"
    for fd in (leaked, read, write):
        os.close(fd)
    return project


@pytest.mark.scenario("A12")
def test_a_step_killed_for_its_memory_is_named_and_tried_again(odd_ends: Project) -> None:
    """What the kernel does when memory runs out: SIGKILL to the step alone. The hint, the signal, the retry, the record."""
    failed = unit(odd_ends, "oom").error

    assert failed is not None
    assert failed.message == "killed by SIGKILL (out of memory?)"
    assert (failed.signal, failed.exit_code, failed.retryable) == ("SIGKILL", None, True)
    assert unit(odd_ends, "oom-once").status == "completed"
    assert odd_ends.ledger()[:4] == ["oom-once", "oom-once", "oom", "oom"]


@pytest.mark.scenario("A15")
@pytest.mark.parametrize("name", DEATHS)
def test_every_death_of_an_interpreter_fails_its_step_by_name(odd_ends: Project, name: str) -> None:
    """sys.exit, os._exit, no stack, no memory and a real segmentation fault in python steps; the run went on."""
    failed = unit(odd_ends, name)

    assert failed.status == "failed"
    assert failed.error is not None
    assert DEATHS[name] in failed.error.message
    assert odd_ends.ledger()[-1] == "lists"


@pytest.mark.scenario("F5")
def test_a_step_holds_no_descriptor_but_its_streams(odd_ends: Project) -> None:
    """Neither the lock nor the journal nor what whoever started rerail left open and inheritable."""
    assert (odd_ends.root / "descriptors").read_text().split() == ["0", "1", "2"]


@pytest.mark.scenario("H10")
def test_a_step_that_reads_its_input_is_at_its_end_at_once(odd_ends: Project) -> None:
    """rerail's own standard input stayed open and held something; the step neither waited for it nor took it."""
    assert "reads" in odd_ends.ledger()
    assert (odd_ends.root / "read").read_bytes() == b""


@pytest.mark.scenario("H11")
def test_what_cannot_be_started_is_named(odd_ends: Project) -> None:
    """A variable beyond what the kernel takes, a file without its x bit: another attempt would not help either."""
    big, plain = unit(odd_ends, "big"), unit(odd_ends, "plain")

    assert big.error is not None
    assert big.error.type == "CouldNotStart"
    assert big.error.message.startswith("could not start: ")
    assert big.error.message.endswith("Argument list too long")
    assert big.attempts == 1
    assert plain.error is not None
    assert plain.error.exit_code == 126
    assert [name for name in odd_ends.ledger() if name in ("big", "plain")] == ["plain"]


TWO = 'steps: [{id: a, run: echo a >> "$LEDGER"}, {id: b, run: "test -e ok && echo b >> $LEDGER"}]'


@pytest.mark.scenario("C6")
def test_a_descriptor_beyond_the_limit_keeps_no_step_from_starting(project: Project) -> None:
    project.pipeline(TWO)
    (project.root / "ok").touch()
    high = 100
    os.dup2(0, high)
    try:
        limit = "import os,resource,sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); os.execv(sys.argv[1], sys.argv[1:])"
        done = subprocess.run(
            [sys.executable, "-c", limit, *RERAIL, "run", "pipeline.yaml", "--id", "r"],
            cwd=project.root,
            env=project.env,
            pass_fds=(high,),
            capture_output=True,
            text=True,
        )
    finally:
        os.close(high)

    assert done.returncode == 0, done.stderr
    assert project.ledger() == ["a", "b"]
