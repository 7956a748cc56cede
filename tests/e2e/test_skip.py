"""Steps that a person has skipped: with `--skip`, or by `mark`; dependants run, and the ledger says who did."""

from __future__ import annotations

import pytest

from tests.conftest import Project, eventually
from tests.pipelines import note, pipeline, step


def chain(b: str = "exit 1", **options: str) -> str:
    return pipeline(
        step("a", note()),
        step("b", note(b), needs="[a]", **options),
        step("c", note("echo ${{ steps.b.status }} > status"), needs="[b]"),
    )


def statuses(project: Project, run_id: str = "r") -> list[str]:
    return [one["status"] for one in project.json("show", run_id)["steps"]]


def test_a_new_run_skips_a_step_and_runs_what_depends_on_it(project: Project) -> None:
    project.pipeline(chain())
    assert [one["decision"] for one in project.json("run", "--skip", "b", "--dry-run")["decisions"]][1] == "skip"
    project.rerail("run", "--id", "r", "--skip", "b", check=0)
    assert project.ledger() == ["a", "c"]
    assert statuses(project) == ["completed", "skipped", "completed"]
    assert (project.root / "status").read_text() == "skipped\n"
    assert any(one["event"] == "step-skipped" and one["reason"] == "--skip" for one in project.json("history", "r", "b"))
    assert "nothing to resume" in project.rerail("resume", "r", check=0).stderr  # it stays skipped
    assert project.ledger() == ["a", "c"]


@pytest.mark.parametrize("options", [{}, {"on_failure": "[{run: 'echo clean >> $LEDGER'}]"}, {"idempotent": "false"}])
def test_resume_skips_a_step_that_failed(project: Project, options: dict[str, str]) -> None:
    project.pipeline(chain(**options))
    project.rerail("run", "--id", "r", check=1)
    before = project.ledger()
    project.rerail("resume", "r", "--skip", "b", check=0)
    assert project.ledger() == [*before, "c"]
    assert statuses(project)[:3] == ["completed", "skipped", "completed"]


def test_resume_skips_a_step_that_was_killed(project: Project) -> None:
    project.pipeline(chain("echo x >> $LEDGER; sleep 60", idempotent="false"))
    process = project.spawn("run", "--id", "r")
    eventually(lambda: "x" in project.ledger())
    process.kill()
    process.communicate()
    project.rerail("resume", "r", check=5)  # its outcome is in doubt
    project.rerail("resume", "r", "--skip", "b", check=0)
    assert project.ledger() == ["a", "b", "x", "c"]


def test_a_map_that_was_killed_in_its_middle_is_skipped_whole(project: Project) -> None:
    project.pipeline(
        "steps:\n  - id: m\n    map: {over: [one, two], parallel: 1}\n"
        "    steps: [{run: 'echo ${{ item }} >> $LEDGER; test ${{ item }} = one || exit 1'}]\n"
        "  - {id: c, run: 'echo c >> $LEDGER'}"
    )
    project.rerail("run", "--id", "r", check=1)
    project.rerail("resume", "r", "--skip", "m", check=0)
    assert project.ledger() == ["one", "two", "c"]
    project.rerail("verify", "r", check=0)


def test_a_completed_step_is_kept_and_an_unknown_one_refused(project: Project) -> None:
    project.pipeline(chain("test -e fixed"))
    project.rerail("run", "--id", "r", check=1)
    (project.root / "fixed").touch()
    assert "no step `zz`" in project.rerail("resume", "r", "--skip", "zz", check=2).stderr
    assert "no step `zz`" in project.rerail("run", "--skip", "zz", check=2).stderr
    project.rerail("resume", "r", "--skip", "a", check=0)
    assert statuses(project) == ["completed"] * 3


def test_a_step_marked_skipped_is_not_run_and_what_depends_on_it_is(project: Project) -> None:
    project.pipeline(chain())
    project.rerail("run", "--id", "r", check=1)
    project.rerail("mark", "r", "b", "skipped", check=0)
    decisions = project.json("plan", "r")["decisions"]
    assert [one["decision"] for one in decisions] == ["reuse", "reuse", "run"]
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["a", "b", "c"]
    assert (project.root / "status").read_text() == "skipped\n"
    project.rerail("verify", "r", check=0)
    project.rerail("mark", "r", "b", "pending", check=0)
    project.rerail("resume", "r", check=1)
    assert project.ledger() == ["a", "b", "c", "b"]


def test_marking_a_completed_step_skipped_runs_its_dependants_again(project: Project) -> None:
    project.pipeline(chain("echo n=1 >> $RERAIL_OUTPUT"))
    project.rerail("run", "--id", "r", check=0)
    project.rerail("mark", "r", "b", "skipped", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["a", "b", "c", "c"]
    assert (project.root / "status").read_text() == "skipped\n"
    assert project.json("show", "r", "b")["outputs"] == {}


def test_a_failed_item_marked_skipped_lets_its_map_complete(project: Project) -> None:
    project.pipeline(
        "steps:\n  - id: m\n    map: {over: [one, two]}\n"
        "    steps: [{run: 'test ${{ item }} = one'}]\n  - {id: c, run: 'echo c >> $LEDGER'}"
    )
    project.rerail("run", "--id", "r", check=1)
    project.rerail("mark", "r", "m[two]", "skipped", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["c"]
    assert {one["item"]: one["status"] for one in project.json("show", "r", "m")} == {
        "one": "completed",
        "two": "skipped",
    }


def test_resume_with_a_param_says_how_to_fork(project: Project) -> None:
    project.pipeline(
        pipeline(
            step("a", note()),
            step("b", note("echo ${{ params.lang }} > lang"), needs="[a]"),
            step("c", note("test -e fixed"), needs="[]"),
            top="params: {lang: en}",
        )
    )
    project.rerail("run", "--id", "r", check=1)
    refused = project.rerail("resume", "r", "-p", "lang=de at", check=2)
    assert "next: rerail fork r -p 'lang=de at'" in refused.stderr
    before = len(project.ledger())
    (project.root / "fixed").touch()
    project.rerail("fork", "r", "-p", "lang=de", "--id", "s", check=0)
    assert sorted(project.ledger()[before:]) == ["b", "c"]  # a does not read it
    assert (project.root / "lang").read_text() == "de\n"
    assert "-p NAME=VALUE" in project.rerail("fork", "r", check=2).stderr
