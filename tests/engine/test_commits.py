"""`commit_required` proves that the step itself has committed, in the directory it really ran in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import Project
from tests.pipelines import note, pipeline, step


def repository(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    for arguments in (["init", "-q"], ["config", "user.name", "n"], ["config", "user.email", "e@example.org"],
                      ["commit", "-q", "--allow-empty", "-m", "first"]):  # fmt: skip
        subprocess.run(["git", *arguments], cwd=path, check=True)
    return path


COMMIT = "git commit -q --allow-empty -m done"


@pytest.mark.parametrize("cwd", ["sub", "${{ params.d }}", "${{ run.id | replace('r', 'sub') }}"])
@pytest.mark.parametrize(("script", "code"), [(COMMIT, 0), ("true", 1)])
def test_the_commit_is_looked_for_where_the_step_ran(project: Project, cwd: str, script: str, code: int) -> None:
    repository(project.root)
    repository(project.root / "sub")
    project.pipeline(
        f"params: {{d: {{default: sub}}}}\nsteps: [{{run: '{script}', cwd: \"{cwd}\", commit_required: true}}]\n"
    )
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=code)
    assert ("no commit was created" in done.stderr) == (code == 1)


@pytest.mark.parametrize("parallel", ["", ", parallel: 3"])
def test_items_that_share_a_work_tree_may_not_run_in_parallel(project: Project, parallel: str) -> None:
    project.pipeline(f"""
steps:
  - id: m
    map: {{over: [a, b, c]{parallel}}}
    steps:
      - {{id: x, run: 'true'}}
      - {{id: agent, run: 'true', commit_required: true}}
""")
    for command in ("check", "run"):
        done = project.rerail(command, "pipeline.yaml", check=2)
        assert "pipeline.yaml:4:10" in done.stderr
        assert "step `agent` has `commit_required`, and the items of step `m` run in parallel" in done.stderr
        assert "`parallel: 1`" in done.stderr
    assert not (project.root / ".rerail").exists()


@pytest.mark.parametrize("body", ["loop: {max_iterations: 1}", "map: {over: [1], parallel: 1}"])
def test_that_holds_at_any_depth(project: Project, body: str) -> None:
    project.pipeline(f"""
steps:
  - id: m
    map: {{over: [a, b]}}
    steps:
      - id: n
        {body}
        steps: [{{run: 'true', commit_required: true}}]
""")
    project.rerail("check", "pipeline.yaml", check=2)


def test_one_after_the_other_each_item_has_to_commit(project: Project) -> None:
    repository(project.root)
    project.pipeline(f"""
steps:
  - id: m
    map: {{over: [1, 2, 3], parallel: 1, max_failures: 3}}
    steps: [{{run: 'test ${{{{ item }}}} = 2 || {COMMIT}', commit_required: true}}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    assert [letter["item"] for letter in project.json("dlq", "list", "r")] == ["2"]


def test_work_trees_of_their_own_run_in_parallel(project: Project) -> None:
    repository(project.root)
    for item in ("1", "2", "3"):
        subprocess.run(["git", "worktree", "add", "-q", f"tree-{item}", "-b", f"b{item}"], cwd=project.root, check=True)
    # Each waits for the two others to run: they do run at the same time.
    project.pipeline(f"""
steps:
  - id: m
    map: {{over: [1, 2, 3], parallel: 3, max_failures: 3}}
    steps:
      - cwd: tree-${{{{ item }}}}
        commit_required: true
        run: |
          touch ../here-${{{{ item }}}}
          until test -e ../here-1 -a -e ../here-2 -a -e ../here-3; do sleep 0.02; done
          test ${{{{ item }}}} = 2 || {COMMIT}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    assert [letter["item"] for letter in project.json("dlq", "list", "r")] == ["2"]


def test_directories_that_turn_out_to_be_one_work_tree_are_used_one_after_the_other(project: Project) -> None:
    repository(project.root)
    for item in ("1", "2", "3"):
        (project.root / f"package-{item}").mkdir()
    project.pipeline(f"""
steps:
  - id: m
    map: {{over: [1, 2, 3], parallel: 3, max_failures: 3}}
    steps:
      - cwd: package-${{{{ item }}}}
        commit_required: true
        retry: {{attempts: 2, delay: 0.01}}
        run: |
          mkdir ../alone; rmdir ../alone
          test ${{{{ item }}}} = 2 || {COMMIT}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    assert [letter["item"] for letter in project.json("dlq", "list", "r")] == ["2"]


def test_two_steps_that_have_to_commit_do_not_count_each_others_commits(project: Project) -> None:
    repository(project.root)
    project.pipeline(f"""
steps:
  - {{id: a, run: '{COMMIT}', commit_required: true}}
  - {{id: b, needs: [], run: 'test -e nothing || true', commit_required: true}}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "2", check=1)
    states = {step["id"]: step["status"] for step in project.json("show", "r")["steps"]}
    assert states == {"a": "completed", "b": "failed"}


def git(project: Project, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    subprocess.run(["git", *identity, *arguments], cwd=project.root, check=True, capture_output=True)


def test_commit_required_with_no_commit_fails_with_context_and_resume_retries_exactly_that_step(
    project: Project,
) -> None:
    """The integration case of spec 123."""
    git(project, "init", "-q")
    git(project, "commit", "-q", "--allow-empty", "-m", "start")
    commit = "git -c user.name=t -c user.email=t@example.com commit -q -m work -a"
    project.pipeline(
        pipeline(
            step("before", note()),
            step(
                "implement",
                note(f"echo change > file.txt\ntest ! -e fixed || {{ git add -A; {commit}; }}"),
                commit_required="true",
            ),
            step("after", note()),
        )
    )
    failed = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    assert "commit_required, but no commit was created; changed and not committed:" in failed.stderr
    assert "?? file.txt" in failed.stderr
    saved = project.json("show", "r")
    assert (saved["status"], saved["error"]["type"]) == ("failed", "CommitRequired")
    assert (saved["state"]["kind"], saved["state"]["step"], saved["next_step"]) == ("failed", "implement", "implement")
    (project.root / "fixed").touch()
    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["before", "implement", "implement", "after"]
