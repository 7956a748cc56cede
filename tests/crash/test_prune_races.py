"""Prune and fork beside a run that starts, seals and completes: at every call, no copy that anybody needs is removed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import RERAIL, Project, eventually
from tests.crash import figures

INTERLEAVE = Path(__file__).parent / "interleave.py"


PIPELINE = """
steps:
  - id: make
    run: |
      mkdir -p out; echo $RERAIL_RUN_ID > out/a; echo $RERAIL_RUN_ID >> "$LEDGER"
    artifacts: [out]
  - {id: after, run: 'true'}
"""


def interleaved(project: Project, at: int, program: str, *arguments: str) -> int:
    """Run a command with a program beside it from its n-th call on; how many calls there were."""
    report = project.root.parent / "calls"
    command = (sys.executable, str(INTERLEAVE), str(at), str(report), program, "--")
    process = project.spawn(*arguments, program=command)
    out, err = process.communicate(timeout=280)
    assert process.returncode in (0, 3), (out, err)  # the parent of a fork may be gone: it says so, and that is no loss
    return int(report.read_text())


def rerail(*arguments: str) -> str:
    return " ".join((*RERAIL, *arguments))


def judge(project: Project, run_id: str) -> None:
    """The artifact of a completed run is lost: it must come back from its copy, and the step must not run again."""
    (project.root / "out" / "a").unlink(missing_ok=True)
    project.rerail("resume", run_id, check=0)
    assert (project.root / "out" / "a").exists()


@pytest.mark.parametrize(
    ("command", "beside", "executions", "stride"),
    [
        (("prune", "--keep", "0"), ("run", "pipeline.yaml", "--id", "new", "-q"), ["new"], 1),
        (("prune", "--keep", "0"), ("fork", "old", "--from", "after", "--id", "new", "-q"), [], 1),
        (("fork", "old", "--from", "after", "--id", "new", "-q"), ("prune", "--keep", "0"), [], 3),
        (("run", "pipeline.yaml", "--id", "new", "-q"), ("prune", "--keep", "0"), ["new"], 4),
    ],
    ids=["a run beside prune", "a fork beside prune", "prune beside a fork", "prune beside a run"],
)
def test_no_copy_is_removed_that_a_run_needs(
    project: Project, command: tuple[str, ...], beside: tuple[str, ...], executions: list[str], stride: int
) -> None:
    project.pipeline(PIPELINE)
    project.rerail("run", "pipeline.yaml", "--id", "old", "-q", check=0)
    shutil.copytree(project.root, project.root.parent / "before", symlinks=True)
    at, total, moments = 1, 1, 0
    while at <= total:
        shutil.rmtree(project.root)
        shutil.copytree(project.root.parent / "before", project.root, symlinks=True)
        project.ledger_file.write_text("")
        total = interleaved(project, at, f"cd {project.root} && {rerail(*beside)} || test $? = 3", *command)
        if (project.run_dir("new") / "run.json").exists():
            judge(project, "new")
            assert project.ledger() == executions, f"at call {at} of {total}"
        at += 1 if "RERAIL_EVERY_MOMENT" in os.environ else stride
        moments += 1
    figures.figure("T1", "moments of prune, fork and run at which another of them took place", moments)


@pytest.mark.scenario("E8")
def test_nothing_that_a_live_run_may_need_is_removed(project: Project) -> None:
    """The copy of an artifact is kept before the journal says so: who prunes in between must not see it as nobody's."""
    project.pipeline("""
steps:
  - {id: a, artifacts: [made], run: 'echo $RERAIL_RUN_ID > made'}
  - {id: b, run: 'test "$RERAIL_RUN_ID" = old || { echo b >> "$LEDGER"; until test -e go; do sleep 0.02; done; }'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "old", check=0)
    live = project.spawn("run", "pipeline.yaml", "--id", "live")
    eventually(lambda: project.ledger() == ["b"], "it runs")
    objects = project.root / ".rerail" / "objects"
    before = {path for path in objects.rglob("*") if path.is_file()}

    said = project.rerail("prune", "--keep", "0", check=0).stderr

    assert "no copies of artifacts removed: a live run may need them" in said
    assert before <= {path for path in objects.rglob("*") if path.is_file()}
    (project.root / "go").touch()
    live.communicate()
    project.rerail("verify", "live", check=0)
    assert "removed 1 cop" in project.rerail("prune", "--keep", "1", check=0).stderr
