"""People who approve and reject: what is waited for, by whom, and what a run does meanwhile."""

from __future__ import annotations

import os
import re
from datetime import datetime
from typing import Any

import pytest

from tests.conftest import Project, eventually


def test_an_answer_may_be_changed_while_its_step_waits_for_a_budget(project: Project) -> None:
    project.pipeline("""
steps:
  - id: outer
    loop: {max_iterations: 1}
    budget: {cost_usd: 1}
    steps:
      - {id: pay, run: 'echo "{\\"cost_usd\\": 2}" >> "$RERAIL_METRICS"; echo paid >> "$LEDGER"'}
      - {id: ok, approve: sure?}
  - {id: other, needs: [], approve: really?}
  - {id: long, needs: [], run: 'until test -e go; do sleep 0.05; done'}
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--parallel", "3")
    eventually(lambda: project.ledger() == ["paid"], "the budget is spent")
    for verdict in ("approve", "reject"):
        project.rerail(verdict, "r", "outer/ok[1]", check=0)
        eventually(lambda: os.listdir(project.run_dir("r") / "inbox") == [], "it is taken up")
    (project.root / "go").touch()
    _, said = process.communicate()

    assert "internal error" not in said
    assert process.returncode in (1, 5), said


def test_what_waits_in_an_item_is_not_forgotten_with_one_whose_name_is_shorter(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: ["10", "1"], parallel: 1}
    steps:
      - id: l
        loop: {max_iterations: 1}
        steps:
          - {id: pre, run: 'echo ${{ item }} >> "$LEDGER"'}
          - {id: ok, when: "item == '10'", approve: "ok ${{ item }}?"}
""")
    paused = project.rerail("run", "pipeline.yaml", "--id", "r", check=5)

    assert project.ledger() == ["10", "1"]
    assert "m/l/ok[10::1] waits for approval" in paused.stderr
    project.rerail("approve", "r", "m/l/ok[10::1]", check=0)
    project.rerail("resume", "r", check=0)


# Approval

APPROVE = """
steps:
  - {id: draft, run: echo draft >> $LEDGER}
  - {id: ok, approve: "Publish ${{ run.id }}?"}
  - {id: publish, run: "echo published by ${{ steps.ok.outputs.by }} >> $LEDGER"}
  - {id: side, needs: [draft], run: echo side >> $LEDGER}
"""


def judged(project: Project) -> list[dict[str, Any]]:
    return [event for event in project.json("history", "r") if event["event"] == "approval-given"]


def test_a_run_waits_for_a_person_and_everything_else_goes_on(project: Project) -> None:
    project.pipeline(APPROVE)
    paused = project.rerail("run", "pipeline.yaml", "--id", "r", check=5)

    assert "run r is paused (approval): ok waits for approval" in paused.stderr
    assert "next: rerail approve r ok  # or reject" in paused.stderr
    assert sorted(project.ledger()) == ["draft", "side"]
    assert "paused (approval)" in project.rerail("list", check=0).stdout
    project.rerail("resume", "r", check=5)
    assert sorted(project.ledger()) == ["draft", "side"], "nobody had answered"

    project.rerail("approve", "r", "ok", "-m", "looks good", check=0)
    (said,) = judged(project)
    assert (said["approved"], said["reason"]) == (True, "looks good")
    assert said["by"]
    assert datetime.fromisoformat(said["at"])
    project.rerail("resume", "r", check=0)
    assert project.ledger().count("published") == 1
    project.rerail("approve", "r", "ok", check=2)


def test_a_rejection_fails_the_step_and_can_be_taken_back(project: Project) -> None:
    project.pipeline(APPROVE)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    project.rerail("reject", "r", "ok", "-m", "chapter 3", check=0)
    failed = project.rerail("resume", "r", check=1)

    assert "rejected by " in failed.stderr
    assert ": chapter 3" in failed.stderr
    assert "published" not in project.ledger()
    project.rerail("approve", "r", "ok", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger().count("published") == 1


def test_an_answer_may_come_before_the_question_and_while_the_run_goes_on(project: Project) -> None:
    project.pipeline(
        APPROVE.replace(
            "echo side >> $LEDGER", '"echo side >> $LEDGER; until grep -q published $LEDGER; do sleep 0.05; done"'
        )
    )
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--parallel", "2")
    eventually(lambda: "side" in project.ledger(), "the other branch goes on")
    handed = project.rerail("approve", "r", "ok", check=0)
    _, said = process.communicate(timeout=120)

    assert "run r continues" in handed.stderr
    assert process.returncode == 0, said
    assert project.ledger().count("published") == 1
    assert len(judged(project)) == 1
    assert not list((project.run_dir("r") / "inbox").iterdir())


def test_items_are_approved_one_by_one(project: Project) -> None:
    project.pipeline("""
steps:
  - id: pages
    map: {over: [x, y, z], parallel: 1}
    steps:
      - {id: write, run: 'echo write-${{ item }} >> "$LEDGER"'}
      - {id: ok, approve: 'Is ${{ item }} good?'}
      - {id: put, run: 'echo put-${{ item }} >> "$LEDGER"'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    assert project.ledger() == ["write-x", "write-y", "write-z"], "one that waits does not hold the others up"

    project.rerail("approve", "r", "pages/ok[y]", check=0)
    project.rerail("resume", "r", check=5)
    assert project.ledger()[3:] == ["put-y"]
    for item in "xz":
        project.rerail("approve", "r", f"pages/ok[{item}]", check=0)
    project.rerail("resume", "r", check=0)
    assert sorted(project.ledger()[4:]) == ["put-x", "put-z"]


def test_one_that_waits_in_an_inner_pipeline_or_loop_of_an_item_holds_no_other_item_up(project: Project) -> None:
    project.pipeline("steps: [{id: ok, approve: Good?}, {id: put, run: echo put >> $LEDGER}]", "inner.yaml")
    project.pipeline("""
steps:
  - id: pages
    map: {over: [x, y, z], parallel: 1}
    steps:
      - {id: write, run: 'echo write-${{ item }} >> "$LEDGER"'}
      - {id: one, pipeline: inner.yaml}
      - id: again
        loop: {max_iterations: 1}
        steps: [{id: sure, approve: Really?}, {id: keep, run: 'echo keep >> "$LEDGER"'}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    assert project.ledger() == ["write-x", "write-y", "write-z"]
    for item in "xyz":
        project.rerail("approve", "r", f"pages/one/ok[{item}]", check=0)
    project.rerail("resume", "r", check=5)
    assert project.ledger()[3:] == ["put"] * 3
    for item in "xyz":
        project.rerail("approve", "r", f"pages/again/sure[{item}::1]", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger()[6:] == ["keep"] * 3


@pytest.mark.parametrize("step", ["draft", "nothing", "ok[x]"])
def test_only_what_waits_for_a_person_can_be_approved(project: Project, step: str) -> None:
    project.pipeline(APPROVE)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    before = project.state_digest()
    project.rerail("approve", "r", step, check=2)
    assert project.state_digest() == before


def test_the_last_word_counts_however_it_arrived(project: Project) -> None:
    project.pipeline(
        "steps: [{id: long, run: 'echo long >> $LEDGER; test -e go || sleep 60'}, {id: ok, approve: Go?}, {id: b, run: echo b >> $LEDGER}]"
    )
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["long"], "it runs")
    project.rerail("approve", "r", "ok", check=0)  # a letter nobody has read
    process.kill()
    process.communicate()
    project.rerail("reject", "r", "ok", check=0)
    (project.root / "go").touch()
    project.rerail("resume", "r", check=1)
    assert "b" not in project.ledger()


def test_letters_are_read_in_the_order_of_time_and_before_the_question_too(project: Project) -> None:
    project.pipeline(
        "steps: [{id: long, run: 'echo long >> $LEDGER; until test -e go; do sleep 0.02; done'}, {id: ok, approve: Go?}]"
    )
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["long"], "it runs")
    for answer in ("reject", "approve", "reject", "approve"):
        project.rerail(answer, "r", "ok", check=0)
    (project.root / "go").touch()
    process.communicate(timeout=120)
    assert process.returncode == 0, "the last word was yes"
    assert [event["approved"] for event in reversed(judged(project))] == [False, True, False, True]


def test_an_answer_is_about_what_was_asked(project: Project) -> None:
    project.pipeline(APPROVE)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    project.rerail("approve", "r", "ok", check=0)
    project.pipeline(APPROVE.replace("echo draft >>", "echo another draft >>"))
    project.rerail("resume", "r", check=5)
    assert "published" not in project.ledger()
    project.rerail("approve", "r", "ok", check=0)
    project.rerail("mark", "r", "ok", "pending", check=0)
    project.rerail("resume", "r", check=5)
    project.rerail("approve", "r", "ok", check=0)
    project.rerail("resume", "r", check=0)


def test_a_fork_with_other_params_asks_again(project: Project) -> None:
    project.pipeline("""
params: {target: staging}
steps: [{id: ok, approve: 'Deploy to ${{ params.target }}?'}, {id: deploy, run: 'echo ${{ params.target }} >> "$LEDGER"'}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    project.rerail("approve", "r", "ok", check=0)
    project.rerail("resume", "r", check=0)
    project.rerail("fork", "r", "--from", "deploy", "-p", "target=production", check=5)
    assert project.ledger() == ["staging"]


def test_a_rejected_item_of_a_completed_map_can_be_approved(project: Project) -> None:
    project.pipeline("""
steps:
  - id: pages
    map: {over: [x, y], max_failures: 2}
    steps: [{id: ok, approve: 'Is ${{ item }} good?'}, {id: put, run: 'echo ${{ item }} >> "$LEDGER"'}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    shown = project.rerail("show", "r", check=0).stdout
    assert re.search(r"^next +rerail approve r 'pages/ok\[x\]'  # or reject$", shown, re.M)
    project.rerail("reject", "r", "pages/ok[x]", check=0)
    project.rerail("approve", "r", "pages/ok[y]", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["y"]
    project.rerail("approve", "r", "pages/ok[x]", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["y", "x"]


def test_a_rejection_is_taken_back_while_others_run(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: [x, z], parallel: 2}
    steps:
      - {id: ok, approve: 'Is ${{ item }} good?'}
      - {id: put, run: 'echo ${{ item }} >> "$LEDGER"'}
  - {id: slow, needs: [], run: 'echo slow >> "$LEDGER"; until test -e go; do sleep 0.02; done'}
  - {id: ok, needs: [], allow_failure: true, approve: Fine?}
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--parallel", "4")
    eventually(lambda: project.ledger() == ["slow"], "it runs")
    for unit in ("m/ok[x]", "ok"):
        project.rerail("reject", "r", unit, check=0)
        eventually(lambda unit=unit: said_to_fail(project, unit), "it has failed")  # type: ignore[misc]
        project.rerail("approve", "r", unit, check=0)
    project.rerail("approve", "r", "m/ok[z]", check=0)
    eventually(lambda: "z" in project.ledger(), "the map goes on")
    (project.root / "go").touch()
    _, said = process.communicate(timeout=120)

    assert sorted(project.ledger()) == ["slow", "x", "z"], "the item whose rejection was taken back"
    assert process.returncode == 5, said
    assert "ok was answered again" in said
    project.rerail("resume", "r", check=0)
    assert project.json("show", "r")["steps"][2]["outputs"]["approved"] is True


def test_a_run_goes_on_when_its_rejection_is_taken_back_while_others_run(project: Project) -> None:
    project.pipeline("""
steps:
  - {id: ok, approve: Go on?, on_failure: [{run: 'echo clean >> "$LEDGER"'}]}
  - {id: then, run: 'echo then >> "$LEDGER"'}
  - {id: slow, needs: [], run: 'echo slow >> "$LEDGER"; until test -e go; do sleep 0.02; done'}
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["slow"], "it runs")
    project.rerail("reject", "r", "ok", check=0)
    eventually(lambda: project.ledger() == ["slow", "clean"], "it has failed")
    project.rerail("approve", "r", "ok", check=0)
    eventually(lambda: project.ledger() == ["slow", "clean", "then"], "what comes after it runs")
    (project.root / "go").touch()
    _, said = process.communicate(timeout=120)

    assert process.returncode == 0, said
    assert project.json("show", "r")["error"] is None


def said_to_fail(project: Project, unit: str) -> bool:
    failed = [event for event in project.json("history", "r") if event["event"] == "step-failed"]
    return any(
        f"{event['step']}[{event['item']}]" == unit if event.get("item") else event["step"] == unit for event in failed
    )


def test_a_stopped_map_asks_nobody(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: [x, y], parallel: 2, on_item_failure: stop}
    steps: [{id: a, run: 'test ${{ item }} != y || { sleep 0.3; exit 1; }'}, {id: ok, approve: Fine?}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)


def test_no_words_of_strangers_stop_the_loop(project: Project) -> None:
    lines = ["usage limit reached; try again after 3:30 and/or buy more", "rate limit exceeded, retry" + " " * 4000 + "x"]
    (project.root / "said").write_text("\n".join(lines))
    project.pipeline('steps: [{id: a, run: "cat said >&2; test -e ok", retry: {attempts: 2, delay: 0}}]')
    project.rerail("run", "pipeline.yaml", "--id", "r")
    (project.root / "ok").touch()
    project.rerail("resume", "r", "--no-wait", check=0)


def test_a_step_that_runs_again_asks_again(project: Project) -> None:
    project.pipeline(APPROVE)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    project.rerail("approve", "r", "ok", check=0)
    project.rerail("resume", "r", check=0)
    project.rerail("resume", "r", "--from", "ok", check=5)


def verdicts(project: Project) -> int:
    return (project.run_dir("r") / "journal-0001.jsonl").read_bytes().count(b'"event":"approval-given"')


def answered_while_there_is_no_room(project: Project, *answers: str) -> int:
    """An approval that is given while another step has all the room, and then something else."""
    project.pipeline("""
steps:
  - {id: ok, needs: [], approve: Publish?}
  - {id: slow, needs: [], run: 'echo slow >> "$LEDGER"; until test -e go; do sleep 0.02; done'}
  - {id: publish, needs: [ok], run: 'echo publish >> "$LEDGER"'}
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--parallel", "1")
    eventually(lambda: project.ledger() == ["slow"], "it runs")
    project.rerail(answers[0], "r", "ok", check=0)
    eventually(lambda: verdicts(project) == 1, "it is recorded")
    project.rerail(answers[1], "r", "ok", check=0)
    (project.root / "go").touch()
    process.communicate(timeout=120)
    return process.returncode


def test_the_last_word_before_a_step_starts_is_the_one_that_counts(project: Project) -> None:
    assert answered_while_there_is_no_room(project, "approve", "reject") == 1
    assert project.ledger() == ["slow"]


def test_also_if_it_is_a_yes(project: Project) -> None:
    assert answered_while_there_is_no_room(project, "reject", "approve") == 0
    assert project.ledger() == ["slow", "publish"]


CLEANED = """
steps:
  - {id: slow, needs: [], run: 'echo slow >> "$LEDGER"; until test -e go; do sleep 0.02; done'}
  - id: ok
    needs: []
    approve: Go on?
    on_failure: [{id: clean, run: 'echo clean >> "$LEDGER"; until test -e cleaned$RERAIL_ATTEMPT; do sleep 0.02; done; echo cleaned >> "$LEDGER"'}]
  - {id: then, needs: [ok], run: 'echo then >> "$LEDGER"'}
"""


@pytest.mark.parametrize("again", ["approve", "reject"])
def test_what_cleans_up_after_a_no_is_finished_before_anything_else_comes_of_it(project: Project, again: str) -> None:
    project.pipeline(CLEANED)
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--parallel", "4")
    eventually(lambda: project.ledger() == ["slow"], "it runs")
    project.rerail("reject", "r", "ok", check=0)
    eventually(lambda: project.ledger() == ["slow", "clean"], "it is being cleaned up")
    project.rerail(again, "r", "ok", check=0)
    eventually(lambda: verdicts(project) == 2, "that was heard")
    for name in ("cleaned1", "cleaned2"):
        (project.root / name).touch()
    eventually(lambda: project.ledger().count("cleaned") == (1 if again == "approve" else 2), "it was cleaned up")
    (project.root / "go").touch()
    _, said = process.communicate(timeout=120)

    assert process.returncode == (0 if again == "approve" else 1), said
    expected = ["slow", "clean", "cleaned", "then"] if again == "approve" else ["slow", *["clean", "cleaned"] * 2]
    assert project.ledger() == expected


def test_a_clean_up_that_is_cut_off_after_the_no_was_taken_back_goes_on(project: Project) -> None:
    project.pipeline(CLEANED)
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--parallel", "4")
    eventually(lambda: project.ledger() == ["slow"], "it runs")
    project.rerail("reject", "r", "ok", check=0)
    eventually(lambda: project.ledger() == ["slow", "clean"], "it is being cleaned up")
    project.rerail("approve", "r", "ok", check=0)
    eventually(lambda: b'"approved":true' in (project.run_dir("r") / "journal-0001.jsonl").read_bytes(), "it is recorded")
    process.kill()
    process.communicate()
    for name in ("cleaned2", "go"):  # whoever was killed with the run may take a moment to die, and waits for another
        (project.root / name).touch()
    project.rerail("resume", "r", check=0)

    after = project.ledger()[2:]
    assert sorted(after) == ["clean", "cleaned", "slow", "then"]
    assert after.index("cleaned") < after.index("then")


def test_a_rejected_step_has_outputs_for_its_dependants_and_hooks(project: Project) -> None:
    project.pipeline("""
steps:
  - {id: ok, approve: sure?, allow_failure: true}
  - {id: ship, when: steps.ok.outputs.approved, run: 'echo shipped >> $LEDGER'}
  - {id: mend, when: not steps.ok.outputs.approved, run: 'echo ${{ steps.ok.outputs.reason }} >> $LEDGER'}
  - id: last
    approve: really?
    on_failure: [{run: 'echo hook-${{ steps.last.outputs.reason }} >> $LEDGER'}]
finally:
  - {run: 'echo ${{ steps.last.outputs.approved }}-${{ steps.last.status }} >> $LEDGER'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    project.rerail("reject", "r", "ok", "-m", "too-long", check=0)
    project.rerail("resume", "r", check=5)
    project.rerail("reject", "r", "last", "-m", "no", check=0)
    project.rerail("resume", "r", check=1)

    assert project.ledger() == ["too-long", "hook-no", "false-failed"]


def test_a_loop_that_revises_ends_once_it_is_approved(project: Project) -> None:
    project.pipeline("""
steps:
  - id: draft
    loop: {max_iterations: 3, until: steps.ok.outputs.approved}
    steps:
      - {id: write, run: 'echo "${{ loop.iteration }}:${{ steps.ok.outputs.reason | default("first") }}" >> $LEDGER'}
      - {id: ok, approve: good?, allow_failure: true}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    project.rerail("reject", "r", "draft/ok[1]", "-m", "longer", check=0)
    project.rerail("resume", "r", check=5)
    project.rerail("approve", "r", "draft/ok[2]", check=0)
    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["1:first", "2:longer"]


def test_a_step_that_failed_shows_no_outputs_of_an_earlier_completion(project: Project) -> None:
    project.pipeline("""
params: {n: 1}
steps:
  - {id: a, run: 'echo v=old >> $RERAIL_OUTPUT; test ! -e broken'}
  - {id: b, run: 'exit 1'}
finally:
  - {run: 'echo ${{ steps.a.outputs.v | default("none") }} >> $LEDGER'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "broken").touch()
    project.rerail("resume", "r", "--from", "a", check=1)

    assert project.ledger() == ["old", "none"]


def test_a_fork_shares_the_outputs_of_a_rejection_that_was_allowed(project: Project) -> None:
    project.pipeline("""
params: {n: 1}
steps:
  - {id: ok, approve: sure?, allow_failure: true}
  - {id: b, run: 'echo ${{ steps.ok.outputs.approved }}-${{ params.n }} >> $LEDGER'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    project.rerail("reject", "r", "ok", check=0)
    project.rerail("resume", "r", check=0)
    project.rerail("fork", "r", "--from", "b", "-p", "n=2", check=0)

    assert project.ledger() == ["false-1", "false-2"]
