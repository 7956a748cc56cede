"""`concurrency`: of the runs of a group one is executed at a time, whoever is killed, stopped or impatient."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import Project, eventually

PIPELINE = """
concurrency: {group: deploy, on_conflict: %s}
params: {n: {required: true}}
steps:
  - id: work
    run: |
      echo in-${{ params.n }} >> "$LEDGER"
      until test -e go-${{ params.n }} -o -e go; do sleep 0.02; done
      echo out-${{ params.n }} >> "$LEDGER"
"""


def start(project: Project, name: str, *more: str) -> subprocess.Popen[str]:
    return project.spawn("run", "pipeline.yaml", "-p", f"n={name}", "--id", name, *more)


def begun(project: Project, name: str, *more: str) -> subprocess.Popen[str]:
    """A run whose step is under way."""
    process = start(project, name, *more)
    eventually(lambda: f"in-{name}" in project.ledger() or process.poll() is not None, f"{name} begins")
    return process


def waiting(project: Project, name: str, *command: str) -> subprocess.Popen[str]:
    """A run that waits for its group."""
    process = project.spawn(*command) if command else start(project, name)
    eventually(lambda: f'"{name}"' in in_line(project) or process.poll() is not None, f"{name} waits")
    assert process.poll() is None, process.communicate()
    return process


def in_line(project: Project) -> str:
    """The records of the runs that wait."""
    found = ""
    for path in (project.root / ".rerail" / "claims").glob("*.json"):
        try:
            text = path.read_text()
        except FileNotFoundError:
            continue
        found += text if '"waiting":true' in text else ""
    return found


def finish(project: Project, process: subprocess.Popen[str], name: str) -> str:
    (project.root / f"go-{name}").touch()
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return err


def overlaps(ledger: list[str]) -> list[str]:
    """The runs that came in while another one was there; one that was killed never went out."""
    inside: list[str] = []
    found = []
    for entry in ledger:
        way, name = entry.split("-", 1)
        if way == "in":
            found += [name] if inside else []
            inside.append(name)
        else:
            inside.remove(name)
    return found


def test_a_second_run_of_the_group_is_refused(project: Project) -> None:
    project.pipeline(PIPELINE % "refuse")
    one = begun(project, "one")

    refused = project.rerail("run", "pipeline.yaml", "-p", "n=two", "--id", "two", check=4)

    assert f"run one (pid {one.pid}, since " in refused.stderr
    assert "holds the concurrency group `deploy`" in refused.stderr
    assert "next: rerail watch one" in refused.stderr
    assert not project.run_dir("two").exists()
    finish(project, one, "one")
    finish(project, start(project, "two"), "two")
    assert overlaps(project.ledger()) == []


def test_groups_are_named_by_what_is_known_at_the_start(project: Project) -> None:
    project.pipeline((PIPELINE % "refuse").replace("deploy", "'${{ pipeline.name }} to ${{ params.n }}'"))
    one, two = begun(project, "one"), begun(project, "two")

    refused = project.rerail("run", "pipeline.yaml", "-p", "n=one", "--id", "again", check=4)

    assert "`pipeline to one`" in refused.stderr
    assert project.json("show", "two")["concurrency"] == "pipeline to two"
    assert "pipeline to two" in project.rerail("show", "two").stdout
    finish(project, one, "one")
    finish(project, two, "two")


def test_who_insists_runs_beside(project: Project) -> None:
    project.pipeline(PIPELINE % "refuse")
    one = begun(project, "one")
    finish(project, begun(project, "two", "--allow-concurrent"), "two")
    finish(project, one, "one")


@pytest.mark.parametrize("how", ["ends", "is killed", "is stopped"])
def test_a_run_waits_until_the_other_one_is_over(project: Project, how: str) -> None:
    project.pipeline(PIPELINE % "wait")
    one = begun(project, "one")
    two = waiting(project, "two")

    shown = project.rerail("show", "two").stdout
    assert f"waiting for run one (pid {one.pid}, since " in shown
    assert "in concurrency group `deploy`" in shown
    if how == "ends":
        finish(project, one, "one")
    elif how == "is killed":
        one.kill()
    else:
        project.rerail("stop", "one", check=0)
    one.communicate()

    assert f"rerail: waiting for run one (pid {one.pid}, since " in finish(project, two, "two")
    assert project.ledger() == (["in-one", "out-one"] if how == "ends" else ["in-one"]) + ["in-two", "out-two"]
    assert project.json("show", "two")["status"] == "completed"


def test_first_come_is_first_served(project: Project) -> None:
    project.pipeline(PIPELINE % "wait")
    one = begun(project, "one")
    names = ["a", "b", "c", "d"]
    line = [waiting(project, name) for name in names]
    line[1].kill()  # its turn is over
    line[1].communicate()
    (project.root / "go").touch()

    for process in (one, *(line[at] for at in (0, 2, 3))):
        _, err = process.communicate(timeout=240)
        assert process.returncode == 0, err

    assert [entry for entry in project.ledger() if entry.startswith("in-")] == ["in-one", "in-a", "in-c", "in-d"]
    assert overlaps(project.ledger()) == []
    assert project.json("show", "b")["status"] == "pending"
    project.rerail("resume", "b", check=0)
    assert project.ledger()[-2:] == ["in-b", "out-b"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_wait_and_nothing_has_begun(project: Project, number: int, code: int) -> None:
    project.pipeline(PIPELINE % "wait")
    one = begun(project, "one")
    two = waiting(project, "two")

    two.send_signal(number)
    _, err = two.communicate(timeout=240)

    assert two.returncode == code
    assert "nothing was started" in err
    assert "Traceback" not in err
    assert not project.run_dir("two").exists()
    assert not in_line(project)
    finish(project, one, "one")
    assert project.ledger() == ["in-one", "out-one"]


def test_a_waiting_run_that_is_stopped_is_gone(project: Project) -> None:
    project.pipeline(PIPELINE % "wait")
    one = begun(project, "one")
    two = waiting(project, "two")

    stopped = project.rerail("stop", "two", check=0)

    assert "which had not begun" in stopped.stderr
    assert two.wait(timeout=240) == 143
    finish(project, one, "one")


@pytest.mark.parametrize("how", ["resume", "fork"])
def test_a_run_that_goes_on_waits_too(project: Project, how: str) -> None:
    project.pipeline(
        PIPELINE % "wait" + "  - {id: ok, approve: Really?}\n  - {id: last, run: 'echo last >> \"$LEDGER\"'}\n"
    )
    (project.root / "go-one").touch()
    project.rerail("run", "pipeline.yaml", "-p", "n=one", "--id", "one", check=5)  # paused: it does not hold the group
    two = begun(project, "two")
    project.rerail("approve", "one", "ok", check=0)
    command = {"resume": ("resume", "one"), "fork": ("fork", "one", "--from", "work", "--id", "new")}[how]
    behind = waiting(project, "new" if how == "fork" else "one", *command)
    assert project.ledger() == ["in-one", "out-one", "in-two"]

    two.send_signal(signal.SIGTERM)
    two.communicate(timeout=240)
    _, err = behind.communicate(timeout=240)

    assert behind.returncode == (5 if how == "fork" else 0), err
    expected = ["in-one", "out-one"] if how == "fork" else ["last"]
    assert project.ledger() == ["in-one", "out-one", "in-two", *expected]


def test_a_resume_that_is_interrupted_in_the_wait_can_be_repeated(project: Project) -> None:
    project.pipeline(PIPELINE % "wait")
    one = begun(project, "one")
    one.send_signal(signal.SIGTERM)
    one.communicate(timeout=240)
    two = begun(project, "two")
    behind = waiting(project, "one", "resume", "one")
    behind.send_signal(signal.SIGINT)
    _, err = behind.communicate(timeout=240)
    assert behind.returncode == 130
    assert "next: rerail resume one" in err
    finish(project, two, "two")
    (project.root / "go-one").touch()
    project.rerail("resume", "one", check=0)
    assert project.ledger() == ["in-one", "in-two", "out-two", "in-one", "out-one"]


def test_the_newest_run_stops_the_others(project: Project) -> None:
    project.pipeline(PIPELINE % "wait")
    one = begun(project, "one")
    two = waiting(project, "two")
    project.pipeline(PIPELINE % "stop_other")

    three = begun(project, "three")

    assert one.wait(timeout=240) == 143
    assert two.wait(timeout=240) == 143
    assert f"stopping run one (pid {one.pid}" in finish(project, three, "three")
    assert project.ledger() == ["in-one", "in-three", "out-three"]
    assert project.json("show", "one")["status"] == "interrupted"
    (project.root / "go-one").touch()
    project.rerail("resume", "one", check=0)
    assert project.ledger()[3:] == ["in-one", "out-one"]


@pytest.mark.parametrize("policy", ["wait", "stop_other"])
def test_a_run_that_a_step_of_the_holder_starts_is_refused(project: Project, policy: str) -> None:
    """Each would wait for the other for ever, or a run would stop the step it is started by."""
    project.pipeline(PIPELINE % policy)
    run = f"{sys.executable} -m rerail run pipeline.yaml -p n=x --id inner"
    project.pipeline(
        f"concurrency: deploy\nsteps: [{{id: nested, run: '{run} || echo code-$? >> \"$LEDGER\"'}}]", "outer.yaml"
    )

    project.rerail("run", "outer.yaml", check=0)

    assert project.ledger() == ["code-4"]
    assert not project.run_dir("inner").exists()


def test_of_many_that_race_and_are_killed_never_two_are_executed(project: Project) -> None:
    """Eight processes, half of which are killed with no warning, some while they wait, some while they are executed."""
    project.pipeline(PIPELINE % "wait")
    (project.root / "go").touch()
    racing = [start(project, f"r{n}") for n in range(8)]
    for process in racing[::2]:
        os.killpg(process.pid, signal.SIGKILL)
    for process in racing[1::2]:
        _, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
    ended = [entry.removeprefix("out-") for entry in project.ledger() if entry.startswith("out-")]
    assert {"r1", "r3", "r5", "r7"} <= set(ended)
    whole = [entry for entry in project.ledger() if entry.split("-")[1] in ended]
    assert overlaps(whole) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("concurrency: ''", "needs the name of its `group`"),
        ("concurrency: {on_conflict: wait}", "needs the name of its `group`"),
        ("concurrency: {group: a, on_conflict: queue}", "one of refuse, wait, stop_other"),
        ("concurrency: '${{ steps.a.outputs.x }}'", "no step `a`"),
        ("concurrency: '${{ pipeline.nam }}'", "`pipeline` has name"),
        ("env: {A: '${{ pipeline.name }}'}", "`pipeline` exists only in `concurrency`"),
    ],
)
def test_a_wrong_group_is_found_when_the_file_is_checked(project: Project, text: str, problem: str) -> None:
    project.pipeline(f"{text}\nsteps: [{{run: 'true'}}]")
    assert problem in project.rerail("check", "pipeline.yaml", check=2).stderr


def test_a_group_without_a_name_is_refused_at_the_start(project: Project) -> None:
    project.pipeline("concurrency: '${{ params.n }}'\nparams: {n: ''}\nsteps: [{run: 'true'}]")
    assert "`concurrency`: the name of the group is empty" in project.rerail("run", "pipeline.yaml", check=2).stderr


def test_the_short_form_refuses(project: Project) -> None:
    project.pipeline((PIPELINE % "x").replace("{group: deploy, on_conflict: x}", "deploy"))
    one = begun(project, "one")
    project.rerail("run", "pipeline.yaml", "-p", "n=two", check=4)
    finish(project, one, "one")
