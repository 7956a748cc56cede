"""Loops: what they carry on, when they end, how they go on after a crash."""

from __future__ import annotations

import pytest

from tests.conftest import Project
from tests.pipelines import ledger, resumed_without

LOOP = """
steps:
  - id: polish
    loop: {max_iterations: %s, %s}
    steps:
      - id: edit
        run: |
          echo "edit ${{ loop.iteration }} after ${{ steps.review.outputs.score | default(0) }}" >> "$LEDGER"
          echo "draft=${{ loop.iteration }}" >> "$RERAIL_OUTPUT"
      - id: review
        run: |
          echo "review ${{ loop.iteration }}" >> "$LEDGER"
          echo "score=$((%s))" >> "$RERAIL_OUTPUT"
          %s
  - {id: after, run: 'echo "after ${{ steps.polish.outputs.iterations }} ${{ steps.polish.outputs.score }}" >> "$LEDGER"'}
"""


DRAFT = "${{ steps.edit.outputs.draft }} * 30"


def test_a_loop_goes_round_until_its_goal_and_carries_what_was_handed_out(project: Project) -> None:
    project.pipeline(LOOP % (5, "until: steps.review.outputs.score >= 90", DRAFT, ""))
    project.rerail("run", "pipeline.yaml", check=0)

    assert ledger(project) == [
        "edit 1 after 0",
        "review 1",
        "edit 2 after 30",
        "review 2",
        "edit 3 after 60",
        "review 3",
        "after 3 90",
    ]


@pytest.mark.parametrize(("spec", "rounds"), [("while: loop.iteration < 3", 3), ("delay: 0.01s", 4)])
def test_while_and_a_plain_count(project: Project, spec: str, rounds: int) -> None:
    project.pipeline(LOOP % (4, spec, DRAFT, ""))
    project.rerail("run", "pipeline.yaml", check=0)

    assert ledger(project)[-1] == f"after {rounds} {rounds * 30}"


def test_an_exhausted_loop_has_failed_and_goes_on_once_it_may(project: Project) -> None:
    goal = "until: steps.review.outputs.score >= 90"
    project.pipeline(LOOP % (2, goal, DRAFT, ""))
    done = project.rerail("run", "pipeline.yaml", check=1)
    assert " after 2 iterations; raise max_iterations, then resume" in done.stderr
    project.rerail("resume", check=1)
    assert len(ledger(project)) == 4  # nothing was paid for again
    project.pipeline(LOOP % (4, goal, DRAFT, ""))
    project.rerail("resume", check=0)

    assert ledger(project)[4:] == ["edit 3 after 60", "review 3", "after 3 90"]


def test_a_loop_without_progress_is_stopped(project: Project) -> None:
    score = "${{ steps.edit.outputs.draft }} > 2 ? 50 : ${{ steps.edit.outputs.draft }} * 20"
    goal = "until: steps.review.outputs.score >= 90, stop_if_no_progress: 2"
    project.pipeline(LOOP % (50, goal, score, ""))
    done = project.rerail("run", "pipeline.yaml", check=1)

    assert "no progress in 2 iterations: 50, 50, 50" in done.stderr
    assert ledger(project)[-1] == "review 5"


@pytest.mark.scenario("H7")
@pytest.mark.parametrize("killed", ["edit 2", "review 2", "review 3"])
def test_a_killed_loop_goes_on_in_the_middle_of_its_iteration(project: Project, killed: str) -> None:
    iteration = killed.split()[1]
    once = 'test "%s ${{ loop.iteration }}" != "%s" -o -e flag || { touch flag; kill -9 $PPID; sleep 5; }'
    text = LOOP % (5, "until: steps.review.outputs.score >= 90", DRAFT, once % ("review", killed))
    text = text.replace('echo "draft=', once % ("edit", killed) + '\n          echo "draft=')
    project.pipeline(text)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=-9)
    assert f"{int(iteration) - 1} iteration" in project.rerail("resume", "r", "--dry-run", check=0).stderr
    project.rerail("resume", "r", check=0)

    found = ledger(project)
    assert sum(line.startswith(killed) for line in found) == 2
    assert len(found) == 7 + 1
    assert found[-1] == "after 3 90"
    assert [line for line in found if line.startswith("edit")][-1] == "edit 3 after 60"


def test_a_failed_iteration_is_tried_again_where_it_failed(project: Project) -> None:
    project.pipeline(
        LOOP % (3, "until: steps.review.outputs.score >= 60", DRAFT, "test ${{ loop.iteration }} = 1 -o -e ok")
    )
    done = project.rerail("run", "pipeline.yaml", check=1)
    assert "iteration 2: review: exited with code 1" in done.stderr
    (project.root / "ok").touch()
    project.rerail("resume", check=0)

    assert ledger(project)[4:] == ["review 2", "after 2 60"]


def test_a_crash_does_not_shorten_the_pause_between_iterations(project: Project) -> None:
    project.pipeline("""
steps: [{id: l, loop: {max_iterations: 2, delay: 2s}, steps: [{id: a, run: 'date +%s.%N >> "$LEDGER"'}]}]
""")
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--json")
    assert process.stdout is not None
    assert any('"step-completed"' in line and '"item":"1"' in line and '"step":"l"' in line for line in process.stdout)
    process.kill()
    process.communicate()
    project.rerail("resume", "r", check=0)

    first, second = (float(line) for line in ledger(project))
    assert second - first >= 2


def test_a_loop_that_lost_what_an_iteration_made_begins_anew(project: Project) -> None:
    project.pipeline("""
steps:
  - id: l
    loop: {max_iterations: 3}
    steps:
      - id: s
        run: echo "s ${{ loop.iteration }}" >> "$LEDGER"; echo x > out-${{ loop.iteration }}; echo v=${{ loop.iteration }} >> $RERAIL_OUTPUT
        artifacts: [{path: "out-${{ loop.iteration }}", keep: false}]
  - {id: last, run: 'echo "last ${{ steps.l.outputs.v }}" >> "$LEDGER"; test -e ok'}
""")
    assert resumed_without(project, "out-1") == ["s 1", "s 2", "s 3", "last 3"]
    assert (project.root / "out-1").exists()


def test_a_loop_in_an_item_that_lost_what_an_iteration_made_begins_anew(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: [a, b], parallel: 1}
    steps:
      - id: l
        loop: {max_iterations: 2}
        steps:
          - id: s
            run: echo "s ${{ item }} ${{ loop.iteration }}" >> "$LEDGER"; echo x > out-${{ item }}-${{ loop.iteration }}
            artifacts: [{path: "out-${{ item }}-${{ loop.iteration }}", keep: false}]
      - {id: t, run: 'true'}
  - {id: last, run: test -e ok}
""")
    assert resumed_without(project, "out-a-1") == ["s a 1", "s a 2"]


def test_nothing_is_changed_in_an_iteration_that_is_over(project: Project) -> None:
    project.pipeline("""
steps:
  - id: l
    loop: {max_iterations: 2}
    steps:
      - {id: n, map: {over: [a, b], max_failures: 1}, steps: [{run: 'test -e ok -o ${{ item }} != b'}]}
      - {id: t, run: 'echo t${{ loop.iteration }} >> "$LEDGER"'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    refused = project.rerail("dlq", "edit", "r", "1::b", "--value", '"c"', check=2)
    assert "is in an iteration of l that has ended" in refused.stderr
    project.rerail("dlq", "drop", "r", "2::b", check=0)
    project.rerail("resume", "r", check=0)
    (project.root / "ok").touch()
    project.rerail("dlq", "retry", "r", "1::b", check=0)

    # The last iteration is open to a person: what stands on the map runs again there, and nothing before it does. To
    # try again what failed in an earlier one all iterations run again.
    assert ledger(project) == ["t1", "t2", "t2", "t1", "t2"]
    assert project.json("dlq", "list", "r") == []


def test_a_crash_gives_a_loop_no_more_patience(project: Project) -> None:
    project.pipeline("""
steps:
  - id: l
    loop: {max_iterations: 20, until: steps.a.outputs.n >= 9, stop_if_no_progress: 2}
    steps:
      - id: a
        run: |
          echo ${{ loop.iteration }} >> "$LEDGER"; echo n=1 >> $RERAIL_OUTPUT
          test ${{ loop.iteration }} != 5 -o -e killed || { touch killed; kill -9 $PPID; sleep 1; }
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.rerail("resume", "r", check=-9)
    project.rerail("resume", "r", check=1)

    assert ledger(project) == ["1", "2", "3", "4", "5", "5"]  # two more than where it gave up, crash or not


def test_a_loop_without_progress_goes_on_when_it_is_told_to(project: Project) -> None:
    project.pipeline("""
steps:
  - id: l
    loop: {max_iterations: 20, until: steps.a.outputs.n >= 9, stop_if_no_progress: 2}
    steps: [{id: a, run: 'echo a >> "$LEDGER"; echo n=$(test -e ok && echo 9 || echo 1) >> $RERAIL_OUTPUT'}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    assert len(ledger(project)) == 3
    project.rerail("resume", "r", check=1)
    assert len(ledger(project)) == 5
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)

    assert len(ledger(project)) == 6


GOAL = "until: steps.review.outputs.score >= 90"


def test_a_corrected_condition_keeps_the_iterations_that_are_done(project: Project) -> None:
    project.pipeline(LOOP % (5, GOAL.replace("score", "scoer"), DRAFT, ""))
    failed = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    assert "step review set no output `scoer` (it set: score)" in failed.stderr
    assert ledger(project) == ["edit 1 after 0", "review 1"]

    project.pipeline(LOOP % (5, GOAL, DRAFT, ""))
    planned = project.rerail("plan", "r", check=0).stderr
    project.rerail("resume", "r", check=0)

    assert "1 iteration done; its condition was edited" in planned
    assert ledger(project)[2:] == ["edit 2 after 30", "review 2", "edit 3 after 60", "review 3", "after 3 90"]


def test_an_edit_of_condition_limit_and_pause_at_once_keeps_what_is_done(project: Project) -> None:
    project.pipeline(LOOP % (2, f"{GOAL}, delay: 0s", DRAFT, ""))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.pipeline(LOOP % (9, "until: steps.review.outputs.score >= 60, delay: 0.01s", DRAFT, ""))
    project.rerail("resume", "r", check=0)

    assert ledger(project)[4:] == ["after 2 60"]  # it holds by now


def test_an_edited_body_runs_again_from_the_first_iteration(project: Project) -> None:
    project.pipeline(LOOP % (2, GOAL, DRAFT, ""))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.pipeline(LOOP % (2, "until: steps.review.outputs.score >= 60", DRAFT, "true"))
    project.rerail("resume", "r", check=0)

    assert ledger(project)[4:] == ["edit 1 after 0", "review 1", "edit 2 after 30", "review 2", "after 2 60"]


def test_a_loop_that_is_complete_begins_anew_with_another_condition(project: Project) -> None:
    project.pipeline(LOOP % (5, "until: steps.review.outputs.score >= 30", DRAFT, ""))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.pipeline(LOOP % (5, "until: steps.review.outputs.score >= 60", DRAFT, ""))
    planned = project.rerail("plan", "r", check=0).stderr
    project.rerail("resume", "r", check=0)

    assert "definition changed" in planned
    assert ledger(project)[3:] == ["edit 1 after 0", "review 1", "edit 2 after 30", "review 2", "after 2 60"]


ALLOWED = """
steps:
  - id: polish
    allow_failure: true
    loop: {max_iterations: %d, until: %s}
    steps: [{id: edit, run: 'echo "edit ${{ loop.iteration }}" >> "$LEDGER"; echo n=${{ loop.iteration }} >> $RERAIL_OUTPUT'}]
  - {id: after, run: 'echo "after ${{ steps.polish.outputs.iterations | default(0) }}" >> "$LEDGER"'}
"""
ENOUGH = "steps.edit.outputs.n >= 3"


@pytest.mark.parametrize(("most", "until"), [(4, ENOUGH), (2, "steps.edit.outputs.n >= 2")])
def test_an_exhausted_loop_whose_failure_was_allowed_goes_on_as_it_is_told(
    project: Project, most: int, until: str
) -> None:
    project.pipeline(ALLOWED % (2, ENOUGH))
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    assert "after 2 iterations; raise max_iterations, then resume" in done.stderr
    assert "nothing to resume" in project.rerail("resume", "r", check=0).stderr
    assert ledger(project) == ["edit 1", "edit 2", "after 0"]

    project.pipeline(ALLOWED % (most, until))
    project.rerail("resume", "r", check=0)

    assert ledger(project)[3:] == (["edit 3", "after 3"] if most > 2 else ["after 2"])
    assert "nothing to resume" in project.rerail("resume", "r", check=0).stderr


@pytest.mark.parametrize(
    ("outer", "advice"),
    [
        ("map: {over: [a], max_failures: 1}", "; raise max_iterations, then resume, or rerail dlq retry"),
        ("map: {over: [a], on_item_failure: skip}", ""),
        ("{allow_failure: true, map: {over: [a]}}", ""),
        ("loop: {max_iterations: 1}", "; raise max_iterations, then resume"),
    ],
)
def test_the_advice_of_an_exhausted_loop_depends_on_what_it_is_part_of(project: Project, outer: str, advice: str) -> None:
    inner = "{id: inner, loop: {max_iterations: 1, until: 'false'}, steps: [{run: 'true'}]}"
    project.pipeline(f"steps:\n  - {{id: outer, {outer[1:-1] if outer[0] == '{' else outer}, steps: [{inner}]}}\n")
    done = project.rerail("run", "pipeline.yaml")
    shown = [line for line in done.stderr.splitlines() if "after 1 iteration" in line]

    assert any(f"`until` is false (false) after 1 iteration{advice}" in line for line in shown), done.stderr
    assert advice or "raise max_iterations" not in done.stderr
