"""Attacks by whoever else is on the machine: links swapped in while files are put back, other users, limits, namespaces."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rerail.app.traces import process_tag_in
from rerail.cli.main import main as rerail_main
from rerail.executors import channels
from rerail.stores.directory import DirectoryStore
from tests.conftest import RERAIL, Project, eventually
from tests.pipelines import note, pipeline, step
from tests.sweeps import Sample

needs_root = pytest.mark.needs_root("to make namespaces")
USAGE, STATE_ERROR, BUSY, NOBODY = 2, 6, 4, 65534

# Links that are swapped in while artifacts are restored

CALLS = frozenset(
    "open os.listdir os.scandir os.remove os.rename os.rmdir os.mkdir os.link os.symlink os.chmod shutil.rmtree".split()
)
MAKER = """\
steps:
  - id: one
    run: |
      test ! -e swapped
      echo one >> $LEDGER
      mkdir -p d/e t/x t/empty; chmod 711 t/empty
      echo made > d/e/one.txt; echo tree > t/x/y.txt; ln -sfn x t/link
    artifacts: [d/e/one.txt, t]
"""
MADE = {"d/e/one.txt": "made\n", "t/x/y.txt": "tree\n"}


def snapshot(top: Path) -> dict[str, tuple[Any, ...]]:
    """Everything about a directory that somebody who changed something in it would have changed."""
    found = {}
    for path in (top, *sorted(top.rglob("*"))):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_mode, status.st_mtime_ns, status.st_ino, status.st_nlink, content)
    return found


def swapping(project: Project, at: int, swap: Callable[[], None], *arguments: str) -> tuple[int, int, str]:
    """Run rerail in a child; at its n-th call about the project's files something is swapped. Exit code, calls, words."""
    said, counted = project.root.parent / "said", project.root.parent / "counted"
    child = os.fork()
    if child == 0:
        code: object = 99
        try:
            os.chdir(project.root)
            os.environ.clear()
            os.environ.update(project.env)
            out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.stdout = sys.stderr = os.fdopen(out, "w")
            count, busy, root = 0, False, str(project.root)

            def hook(event: str, given: tuple[Any, ...]) -> None:
                nonlocal count, busy
                if busy or event not in CALLS:
                    return
                paths = [os.fsdecode(one) for one in given[:2] if isinstance(one, str | bytes)]
                if not any(
                    one and (one[0] != "/" or one.startswith(root)) and "/.rerail" not in one for one in paths[:1]
                ):
                    return
                count += 1
                if count == at:
                    busy = True
                    swap()
                    busy = False

            sys.addaudithook(hook)
            sys.argv = ["rerail", *arguments]
            try:
                rerail_main()
                code = 0
            except SystemExit as left:
                code = left.code or 0
            busy = True
            counted.write_text(str(count))
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code if isinstance(code, int) else 98)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, int(counted.read_text()), said.read_text()


class Race(NamedTuple):
    damage: str  # what happened to the files before
    swapped: str  # what becomes a link


RACES = [
    Race("rm d/e/one.txt", "d/e"),
    Race("rm -r d", "d"),
    Race("rm -r d", "d/e"),
    Race("echo edited > d/e/one.txt", "d/e"),
    Race("rm d/e/one.txt", "d/e/one.txt"),
    Race("echo edited > d/e/one.txt", "d/e/one.txt"),
    Race("rm -r t", "t"),
    Race("rm -r t", "t/x"),
    Race("rm -r t", "t/empty"),
    Race("rm t/link; echo edited > t/x/y.txt; rmdir t/empty", "t"),
    Race("echo edited > t/x/y.txt", "t/x"),
]


@pytest.mark.parametrize("race", RACES, ids=lambda race: f"{race.damage}, {race.swapped}")
def test_nothing_outside_is_touched_whenever_a_link_is_swapped_in_while_files_are_restored(
    project: Project, tmp_path: Path, race: Race, sample: Sample
) -> None:
    project.pipeline(MAKER)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    subprocess.run(["sh", "-ec", race.damage], cwd=project.root, check=True)
    outside = tmp_path / "outside"
    (outside / "e").mkdir(parents=True)
    (outside / "x").mkdir()
    (outside / "empty").mkdir(mode=0o755)
    for name in ("one.txt", "e/one.txt", "y.txt", "x/y.txt", "file", "link"):
        (outside / name).write_text("precious\n")
    target = outside / "file" if race.swapped.endswith(".txt") else outside
    if race.swapped == "t/empty":
        target = outside / "empty"
    before = snapshot(outside)
    template = tmp_path / "template"
    shutil.copytree(project.root, template, symlinks=True)
    victim = project.root / race.swapped

    def swap() -> None:
        (project.root / "swapped").touch()
        if os.path.lexists(victim):
            os.rename(victim, f"{victim}.away")
        if os.path.isdir(victim.parent):
            os.symlink(target, victim)

    at, further = sample.points(6)
    calls = at
    while at <= calls:
        shutil.rmtree(project.root)
        shutil.copytree(template, project.root, symlinks=True)
        code, calls, said = swapping(project, at, swap, "resume", "r")
        where = f"at call {at}: {said}"
        assert snapshot(outside) == before, where
        assert "Traceback" not in said, where
        assert code in (0, 1, USAGE, STATE_ERROR), where
        (project.root / "swapped").unlink(missing_ok=True)
        if victim.is_symlink():
            victim.unlink()
        code, _, said = swapping(project, 0, swap, "resume", "r")
        assert code == 0, where + said
        assert {name: (project.root / name).read_text() for name in MADE} == MADE, where + said
        assert snapshot(outside) == before, where
        at += further
    assert calls > 3


def test_what_blocks_the_way_is_not_moved_out_of_a_place_that_a_link_leads_to(project: Project, tmp_path: Path) -> None:
    """A directory of an artifact has become a link, and where a directory is wanted behind it stands somebody's file."""
    project.pipeline(MAKER.replace("t/x/y.txt", "t/x/w/y.txt").replace("t/x t/empty", "t/x/w t/empty"))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "w").write_text("precious\n")
    before = snapshot(outside)
    shutil.rmtree(project.root / "t" / "x")
    (project.root / "t" / "x").symlink_to(outside)

    project.rerail("resume", "r", check=0)

    assert snapshot(outside) == before
    assert (project.root / "t/x/w/y.txt").read_text() == "tree\n"


# Other users


def killed_with_an_open_account(project: Project) -> str:
    """A run whose owner was killed while its step had counted one dollar; the beginning of its channels' names."""
    project.pipeline(
        pipeline(
            step("a", note()),
            step("b", note("""echo '{"cost_usd": 1}' >> $RERAIL_METRICS\necho go >> $LEDGER\ntest -e go || sleep 300""")),
        )
    )
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a", "b", "go"], "b runs")
    process.kill()
    process.communicate()
    (project.root / "go").touch()
    return channels._prefix(process_tag_in(DirectoryStore(str(project.root / ".rerail")), "r"))


def forged(directory: Path, name: str) -> None:
    """Accounts in a planted directory, of the attempt that was cut off."""
    (directory / f"{name}.metrics").write_text('{"cost_usd": 1000}\n')
    (directory / "death").write_text("4102444800")


@pytest.mark.privileges
@pytest.mark.parametrize("planted", ["anothers", "a link", "open to the group", "open to all"])
def test_accounts_that_another_user_could_have_planted_are_not_counted(project: Project, planted: str) -> None:
    """The beginning of a channel directory's name can be known; what is in one that others can write to proves nothing."""
    if planted == "anothers" and os.geteuid() != 0:
        pytest.skip("needs root: to give files away")
    prefix = killed_with_an_open_account(project)
    (true,) = Path("/dev/shm").glob(prefix + "*")
    (metrics,) = true.glob("*.metrics")
    false = Path(f"/dev/shm/{prefix}00000000")
    elsewhere = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="rerail-attack-"))
    try:
        if planted == "a link":
            false.symlink_to(elsewhere)
            forged(elsewhere, metrics.stem)
        else:
            false.mkdir()
            forged(false, metrics.stem)
            false.chmod({"open to the group": 0o770, "open to all": 0o777}.get(planted, 0o755))
            if planted == "anothers":
                for path in (false, *false.iterdir()):
                    os.chown(path, NOBODY, NOBODY)
        order = sorted([false, true], key=lambda path: os.listdir("/dev/shm").index(path.name))
        kept = snapshot(elsewhere)

        project.rerail("resume", "r", check=0)

        assert project.json("cost", "r")["total"]["cost_usd"] == 2, order
        assert snapshot(elsewhere) == kept
        assert project.ledger() == ["a", "b", "go", "b", "go"]
    finally:
        if false.is_symlink():
            false.unlink()
        for path in (false, elsewhere):
            shutil.rmtree(path, ignore_errors=True)


@pytest.mark.privileges
@pytest.mark.parametrize("place", ["runs", "runs/r", "objects", "runs/r/inbox"])
def test_a_part_of_the_state_that_everybody_may_write_to_is_refused(project: Project, place: str) -> None:
    project.pipeline(MAKER + "  - {id: two, run: test -e go}\n")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    path = project.root / ".rerail" / place
    path.mkdir(exist_ok=True)
    path.chmod(0o777)
    (project.root / "go").touch()

    assert "everybody may write to" in project.rerail("resume", "r", check=STATE_ERROR).stderr
    path.chmod(0o700)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["one"]


# Limits


def limited(kind: int, most: int) -> Callable[[], None]:
    def limit() -> None:
        resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))

    return limit


@pytest.mark.privileges
@pytest.mark.parametrize(
    ("kind", "most"),
    [
        *((resource.RLIMIT_NOFILE, most) for most in (12, 24, 40)),
        *((resource.RLIMIT_FSIZE, most) for most in (0, 1000, 9000)),
        *((resource.RLIMIT_AS, most << 20) for most in (36, 39, 40, 41, 80)),
    ],
)
def test_under_any_limit_a_run_ends_in_words_and_goes_on_without_it(project: Project, kind: int, most: int) -> None:
    """Eight at once; whatever is said to be done under the limit is not done again without it."""
    steps = [step(f"s{number}", note("echo $RERAIL_STEP"), needs="[first]") for number in range(8)]
    project.pipeline(pipeline(step("first", note()), *steps))
    done = project.rerail(
        "run", "pipeline.yaml", "--id", "r", "--parallel", "8", "--json", preexec_fn=limited(kind, most)
    )
    said = done.stdout + done.stderr

    if kind != resource.RLIMIT_AS or "rerail:" in said:  # else Python itself found too little memory to begin with
        assert done.returncode in (0, 1, STATE_ERROR), said
        assert done.returncode == 0 or "next:" in said, said
        assert "Traceback" not in said, said
    if not DirectoryStore(str(project.root / ".rerail")).runs():
        assert project.ledger() == []
        return
    acknowledged = [one["id"] for one in project.json("show", "r")["steps"] if one["status"] == "completed"]
    before = project.ledger()
    project.rerail("resume", "r", check=0)

    assert not set(project.ledger()[len(before) :]) & set(acknowledged), said
    assert set(project.ledger()) == {"first", *(f"s{number}" for number in range(8))}


ORDINARY = 20_000 + os.getpid() % 30_000  # a user with no other process: the limit counts all that a user has
STILL_ITS_FILES = "+dac_override,+dac_read_search"


def as_an_ordinary_user(project: Project, most: int | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run rerail as a user whom the number of processes is limited for; the files of this project are still its own."""
    user = ("setpriv", f"--reuid={ORDINARY}", f"--inh-caps={STILL_ITS_FILES}", f"--ambient-caps={STILL_ITS_FILES}")
    limit = () if most is None else ("prlimit", f"--nproc={most}")
    return subprocess.run(
        [*user, "--clear-groups", *limit, *RERAIL, *arguments],
        cwd=project.root,
        env=project.env,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.needs_root("to be a user whom a limit on processes holds for")
@pytest.mark.parametrize("most", [*range(1, 12), None])
def test_without_room_for_processes_or_threads_a_run_ends_in_words_and_goes_on_without_the_limit(
    project: Project, most: int | None
) -> None:
    """One process only is none for a thread, so nothing begins; with some, steps that cannot start have failed."""
    steps = [step(f"s{number}", note(f"echo > {number}.txt"), needs="[first]") for number in range(4)]
    listed = (
        "  - {id: m, needs: [first], map: {over: {command: 'echo x; echo y'}}, steps: [{run: 'echo m >> $LEDGER'}]}\n"
    )
    project.pipeline(pipeline(step("first", note("echo > first.txt"), artifacts="[first.txt]"), *steps) + listed)

    done = as_an_ordinary_user(project, most, "run", "pipeline.yaml", "--id", "r", "--parallel", "8")
    said = done.stdout + done.stderr

    assert "Traceback" not in said, said
    if most == 1:
        assert done.returncode == STATE_ERROR, said
        assert said.splitlines() == [
            "rerail: error: not enough memory, or no more processes or threads allowed",
            "  next: raise the limits (ulimit -v, ulimit -u, or those of the container), then run it again",
        ]
    elif most is None:
        assert done.returncode == 0, said
    else:
        assert done.returncode in ((1,) if most <= 3 else (0, 1)), said  # with so few the limit certainly holds
        assert done.returncode == 0 or "Resource temporarily unavailable" in said, said
        assert done.returncode == 0 or "next: rerail resume r" in said, said
    before = project.ledger()
    acknowledged = [line.split()[2] for line in said.splitlines() if line.split()[1:2] == ["completed"]]
    resumed = as_an_ordinary_user(project, None, "run", "pipeline.yaml", "--id", "r", "--resume")

    assert resumed.returncode == 0, (said, resumed.stderr)
    assert not set(project.ledger()[len(before) :]) & {one for one in acknowledged if one != "m"}, (said, resumed.stderr)
    assert sorted(project.ledger()) == ["first", "m", "m", "s0", "s1", "s2", "s3"], (said, resumed.stderr)


# Namespaces

CONTAINER = ("unshare", "-p", "-f", "--mount-proc", "--kill-child")


@needs_root
def test_a_run_whose_whole_container_died_is_taken_over_from_outside_and_from_another(project: Project) -> None:
    project.pipeline(pipeline(step("a", note()), step("b", note("test -e go || sleep 300"))))
    for life in (1, 2):
        container = project.spawn(
            *(("run", "pipeline.yaml", "--id") if life == 1 else ("resume",)), "r", program=(*CONTAINER, *RERAIL)
        )
        eventually(lambda: len(project.ledger()) > life, "b runs")  # noqa: B023 - at once
        (first,) = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGKILL)
        container.communicate()
    (project.root / "go").touch()
    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["a", "b", "b", "b"]


@needs_root
def test_a_live_run_outside_is_not_taken_over_from_within_a_container(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("until test -e go; do sleep 0.02; done"))))
    owner = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a"], "a runs")
    refused = project.spawn("resume", "r", program=(*CONTAINER, *RERAIL))
    said = refused.communicate()

    assert refused.returncode == BUSY, said
    assert owner.poll() is None
    (project.root / "go").touch()
    owner.communicate()
    assert (owner.returncode, project.ledger()) == (0, ["a"])


# A store that somebody else has put there


@needs_root
def test_a_store_of_another_user_is_used_only_by_name(project: Project) -> None:
    project.pipeline(pipeline(step("a", note())))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    store = project.root / ".rerail"
    os.chown(store, NOBODY, NOBODY)
    below = project.root / "below"
    below.mkdir()

    for arguments in (["list"], ["resume"], ["show", "r"], ["run", "../pipeline.yaml"]):
        done = subprocess.run([*RERAIL, *arguments], cwd=below, env=project.env, capture_output=True, text=True)
        assert (done.returncode, "another user" in done.stderr) == (USAGE, True), done.stderr
    assert project.ledger() == ["a"]
    project.rerail("list", "--store", str(store), check=0)
    project.env["SUDO_UID"] = str(NOBODY)
    project.rerail("list", check=0)
