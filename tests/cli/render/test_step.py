"""`rerail show RUN STEP`: the page of a step, an item, an iteration."""

from __future__ import annotations

import re

import pytest

from tests.conftest import Project, eventually

PIPELINE = """
name: content
params: {topic: tides}
secrets: [TOKEN]
steps:
  - id: research
    run: 'echo "facts on ${{ params.topic }}" > facts.txt; echo researching; echo n=3 >> $RERAIL_OUTPUT'
    artifacts: [facts.txt]
  - id: write
    map: {over: [one, two, three], max_failures: 1}
    steps:
      - id: draft
        run: 'echo "draft ${{ item }} ${{ steps.research.outputs.n }}"; echo "{\\"cost_usd\\": 0.03}" >> $RERAIL_METRICS'
      - id: proof
        run: 'test ${{ item }} != two'
  - id: polish
    loop: {max_iterations: 4, until: steps.judge.outputs.score >= 9}
    steps:
      - id: judge
        run: echo "score=$((5 + ${{ loop.iteration }} * 2))" >> $RERAIL_OUTPUT
  - id: flaky
    retry: {attempts: 3, delay: 0.1}
    run: 'echo "with ${{ env.TOKEN }}" >&2; test $RERAIL_ATTEMPT = 2'
  - id: publish
    run: 'echo to ${{ params.topic }}; test -e fixed || { echo no such place >&2; exit 3; }'
  - {id: late, run: 'true'}
"""


@pytest.fixture
def failed(project: Project) -> Project:
    project.env["TOKEN"] = "very-secret-1234"
    project.pipeline(PIPELINE)
    project.rerail("run", "--id", "r", check=1)
    return project


def test_a_step_is_shown_with_all_that_is_known(failed: Project) -> None:
    page = failed.json("show", "r", "research")
    assert (page["status"], page["kind"], page["outputs"]) == ("completed", "run", {"n": 3})
    assert page["command"].startswith('echo "facts on tides" > facts.txt')
    assert page["command_source"] == "evaluated"
    assert [(one["path"], one["state"]) for one in page["artifacts"]] == [("facts.txt", "intact")]
    assert page["log_tail"] == ["researching"]
    (failed.root / "facts.txt").write_text("other")
    assert failed.json("show", "r", "research")["artifacts"][0]["state"] != "intact"
    text = failed.rerail("show", "r", "research", check=0).stdout
    for part in (r"outputs +n = 3", r"facts\.txt +15 B", r"\| researching", r"next +rerail resume r"):
        assert re.search(part, text), part


def test_attempts_say_why_each_ran_and_how_it_ended(failed: Project) -> None:
    (failed.root / "fixed").touch()
    failed.rerail("resume", "r", check=0)
    flaky = failed.json("show", "r", "flaky")
    assert [(one["attempt"], one["outcome"], one["why"]) for one in flaky["attempts"]] == [
        (1, "failed", "not run before"),
        (2, "completed", "attempt 1 failed: exited with code 1"),
    ]
    publish = failed.json("show", "r", "publish")
    assert [(one["invocation"], one["outcome"]) for one in publish["attempts"]] == [(1, "failed"), (2, "completed")]
    assert publish["attempts"][0]["error"]["exit_code"] == 3
    assert publish["error"] is None
    assert publish["next"] == ""
    assert failed.json("show", "r", "late")["attempts"][0]["invocation"] == 2


def test_a_failed_step_has_its_command_error_and_next_command(failed: Project) -> None:
    page = failed.json("show", "r", "publish")
    assert page["command"].startswith("echo to tides;")
    assert page["command_source"] == "recorded"
    assert page["error"]["stderr_tail"].strip() == "no such place"
    text = failed.rerail("show", "r", "publish", check=0).stdout
    assert "error  exited with code 3\n  | no such place" in text
    assert failed.json("show", "r", "late")["status"] == "pending"


def test_iterations_are_listed_with_their_outputs(failed: Project) -> None:
    page = failed.json("show", "r", "polish")
    assert [(one["item"], one["outputs"]) for one in page["iterations"]] == [("1", {"score": 7}), ("2", {"score": 9})]
    assert "score=7" in failed.rerail("show", "r", "polish", check=0).stdout
    second = failed.json("show", "r", "polish", "2")
    assert (second["kind"], second["outputs"], second["inside"][0]["step"]) == ("iteration", {"score": 9}, "polish/judge")
    assert failed.json("show", "r", "polish/judge[2]")["command"] == 'echo "score=$((5 + 2 * 2))" >> $RERAIL_OUTPUT'


def test_items_have_pages_by_either_name(failed: Project) -> None:
    page = failed.json("show", "r", "write", "two")
    assert page == failed.json("show", "r", "write[two]")
    assert (page["status"], page["next"]) == ("failed", "rerail dlq show r two")
    assert [(one["step"], one["status"]) for one in page["inside"]] == [
        ("write/draft", "completed"),
        ("write/proof", "failed"),
    ]
    closed = failed.json("show", "r", "write/draft", "one")  # of which the state knows nothing any more
    assert closed["log_tail"] == ["draft one 3"]
    assert closed["command"].startswith('echo "draft one 3"')
    assert closed["metrics"] == {"cost_usd": 0.03}
    assert [one["item"] for one in failed.json("show", "r", "write/proof")["inside"]] == ["one", "two", "three"]
    assert [one["item"] for one in failed.json("show", "r", "write")] == ["one", "two", "three"]


def test_secrets_are_masked(failed: Project) -> None:
    for arguments in (("show", "r", "flaky"), ("show", "r", "flaky", "--json")):
        shown = failed.rerail(*arguments, check=0).stdout
        assert "very-secret-1234" not in shown
        assert "***" in shown


def test_an_unknown_step_or_item_is_refused_with_those_there_are(failed: Project) -> None:
    refused = failed.rerail("show", "r", "polsh", check=2)
    assert "run r has no step 'polsh' (steps: research, write," in refused.stderr
    refused = failed.rerail("show", "r", "write", "four", check=2)
    assert "has no item 'four' with events (items: one, two, three)" in refused.stderr


def test_a_killed_attempt_is_shown_as_interrupted_and_a_live_one_with_its_time(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'echo a >> $LEDGER; until test -e go; do sleep 0.02; done'}]")
    process = project.spawn("run", "--id", "r")
    eventually(lambda: project.ledger() == ["a"])
    page = project.json("show", "r", "a")
    assert (page["status"], page["next"]) == ("running", "rerail watch r")
    text = project.rerail("show", "r", check=0).stdout
    assert re.search(r"next +rerail watch r", text)
    assert re.search(r"a +▸ running +\d+\.\d s", text)
    process.kill()
    process.communicate()
    assert project.json("show", "r", "a")["status"] == "interrupted"
    (project.root / "go").touch()
    project.rerail("resume", "r", check=0)
    attempts = project.json("show", "r", "a")["attempts"]
    assert [(one["outcome"], one["why"]) for one in attempts][1] == ("completed", "attempt 1 was interrupted (crash)")


def test_many_artifacts_are_summed_up_by_step(project: Project) -> None:
    project.pipeline(
        "steps:\n  - id: write\n    map: {over: [1, 2, 3, 4, 5, 6, 7, 8, 9]}\n"
        "    steps: [{run: 'echo ${{ item }} > f-${{ item }}', artifacts: ['f-${{ item }}']}]"
    )
    project.rerail("run", "--id", "r", check=0)
    assert "write: 9 files, 18 B, all intact" in project.rerail("show", "r", check=0).stdout
    (project.root / "f-4").write_text("x")
    text = project.rerail("show", "r", check=0).stdout
    assert "write: 9 files, 18 B, 1 not intact" in text
    assert re.findall(r"f-\d", text) == ["f-4"]
