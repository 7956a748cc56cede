"""Loops and inner pipelines: what they carry on, when they end, how they go on after a crash; and all of them nested."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Project
from tests.pipelines import ledger, results

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


INNER = """
params: {name: {type: string, required: true}, times: 2}
env: {GREETING: hello}
outputs: {text: "${{ steps.say.outputs.text }}", times: "${{ params.times }}"}
steps:
  - id: say
    run: |
      echo "say ${{ params.name }} $GREETING $(basename "$PWD")" >> "$LEDGER"
      echo "text=$GREETING ${{ params.name }}" >> "$RERAIL_OUTPUT"
      echo ${{ params.name }} > said.txt
    artifacts: [said.txt]
  - id: check
    run: echo "check ${{ steps.say.outputs.text }}" >> "$LEDGER"; test -e "$LEDGER.ok"
finally:
  - run: echo "finally ${{ run.status }}" >> "$LEDGER"
"""
OUTER = """
params: {who: world}
steps:
  - {id: sub, pipeline: lib/inner.yaml, with: {name: "${{ params.who }}"}}
  - {id: after, run: 'echo "after ${{ steps.sub.outputs.text }} ${{ steps.sub.outputs.times }}" >> "$LEDGER"'}
"""


def test_another_pipeline_is_a_step_of_this_run(project: Project) -> None:
    (project.root / "lib").mkdir()
    project.pipeline(INNER, "lib/inner.yaml")
    project.pipeline(OUTER)
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    assert "check: exited with code 1" in done.stderr
    first = ["say world hello lib", "check hello world"]
    assert ledger(project) == [*first, "finally failed"]
    project.ledger_file.with_suffix(".ok").touch()
    project.rerail("resume", "r", check=0)

    assert ledger(project) == [*first, "finally failed", "check hello world", "finally completed", "after hello world 2"]
    assert (project.root / "lib/said.txt").read_text() == "world\n"
    frozen = (project.run_dir("r") / "pipeline.yaml").read_text()
    assert "say ${{ params.name }}" in frozen  # the run keeps what it was made of


@pytest.mark.scenario("L6")
def test_an_edited_inner_pipeline_is_noticed_and_a_lost_one_is_not_missed(project: Project) -> None:
    (project.root / "lib").mkdir()
    project.ledger_file.with_suffix(".ok").touch()
    project.pipeline(INNER, "lib/inner.yaml")
    project.pipeline(OUTER + "  - {id: last, run: test -e ok}\n")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "pipeline.yaml").unlink()
    (project.root / "lib/inner.yaml").unlink()
    assert "reuse" in project.rerail("resume", "r", "--dry-run", check=0).stderr
    project.pipeline(INNER.replace("GREETING: hello", "GREETING: good day"), "lib/inner.yaml")
    project.pipeline(OUTER + "  - {id: last, run: test -e ok}\n")
    assert "definition changed" in project.rerail("resume", "r", "--dry-run", check=0).stderr
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)

    assert ledger(project)[-1] == "after good day world 2"


BAD = [
    ("steps: [{id: s, pipeline: gone.yaml}]", "gone.yaml: cannot be read"),
    ("steps: [{id: s, pipeline: pipeline.yaml}]", "cannot be part of itself: pipeline.yaml → pipeline.yaml"),
    ("steps: [{id: s, pipeline: a.yaml}]", "cannot be part of itself: pipeline.yaml → a.yaml → b.yaml → a.yaml"),
    ("steps: [{id: s, pipeline: inner.yaml}]", "needs the param `name` in `with`"),
    ("steps: [{id: s, pipeline: inner.yaml, with: {name: x, nam: y}}]", "its pipeline has no param `nam`"),
    ("steps: [{id: s, pipeline: broken.yaml}]", "broken.yaml:1:10: unknown key `runn`, did you mean `run`?"),
    ("steps: [{id: s, map: {over: [1]}}]", "step `s` has no `steps`"),
    (
        "steps: [{id: s, map: {over: x}, steps: [{run: x}]}]",
        "must be a list, an expression, or one of glob, lines, json, command, not 'x'",
    ),
    (
        "steps: [{id: s, map: {over: 3}, steps: [{run: x}]}]",
        "must be a list, an expression, or one of glob, lines, json, command, not 3",
    ),
    ("steps: [{id: s, map: {}, steps: [{run: x}]}]", "has no `over`"),
    ("steps: [{id: s, map: {over: {glob: x, lines: y}}, steps: [{run: x}]}]", "exactly one of glob, lines"),
    ("steps: [{id: s, map: {over: {json: x, path: a.b}}, steps: [{run: x}]}]", "must begin with $"),
    ("steps: [{id: s, map: {over: {json: x, path: '$.a[?(@.b)]'}}, steps: [{run: x}]}]", "conditions go into `filter`"),
    ("steps: [{id: s, map: {over: [1], max_failures: 101%}, steps: [{run: x}]}]", "between 0% and 100%"),
    ("steps: [{id: s, map: {over: [1], parallel: 0}, steps: [{run: x}]}]", "at least 1"),
    ("steps: [{id: s, map: {over: [1]}, timeout: 3s, steps: [{run: x}]}]", "`timeout` of step `s` goes into the steps"),
    ("steps: [{id: s, loop: {until: 'true'}, steps: [{run: x}]}]", "has no `max_iterations`"),
    ("steps: [{id: s, loop: {max_iterations: 2, until: steps.x.status}, steps: [{run: x}]}]", "no step `x`"),
    ("steps: [{id: s, loop: {max_iterations: 2}, steps: [{run: 'echo ${{ item }}'}]}]", "there is no `item` here"),
    ("steps: [{id: s, run: 'echo ${{ loop.iteration }}'}]", "there is no `loop` here"),
    ("steps: [{id: s, run: x, steps: [{run: y}]}]", "goes with `map` and `loop` only"),
    ("steps: [{run: x}]\nfinally: [{map: {over: [1]}, steps: [{run: y}]}]", "`map` makes no sense in `finally`"),
    (
        "steps: [{id: s, map: {over: [1]}, steps: [{id: a, run: x}, {id: b, needs: [c], run: x}]}]",
        "no step `c`; there is a, b",
    ),
    (
        "steps: [{id: s, map: {over: [1]}, steps: [{id: a, run: 'echo ${{ steps.b.status }}'}, {id: b, run: x}]}]",
        "step `b` may not have run yet",
    ),
    (
        "steps: [{id: s, needs: [], map: {over: '${{ steps.t.outputs.x }}'}, steps: [{run: x}]}, {id: t, run: x}]",
        "step `t` may not have run yet",
    ),
    ("steps: [" + "{map: {over: [1]}, steps: [" * 9 + "{run: x}" + "]}" * 9 + "]", "inside 8 others already"),
]


@pytest.mark.scenario("J13")
@pytest.mark.parametrize(("text", "words"), BAD, ids=[bad[1] for bad in BAD])
def test_bad_bodies_are_found_when_the_file_is_loaded(project: Project, text: str, words: str) -> None:
    project.pipeline(INNER, "inner.yaml")
    project.pipeline("steps: [{runn: x}]", "broken.yaml")
    project.pipeline("steps: [{pipeline: b.yaml}]", "a.yaml")
    project.pipeline("steps: [{pipeline: a.yaml}]", "b.yaml")
    project.pipeline(text)
    done = project.rerail("check", "pipeline.yaml", check=2)

    assert words in done.stderr
    assert not (project.root / ".rerail").exists()


NESTED = """
steps:
  - id: books
    map: {over: [x, y], parallel: 2}
    steps:
      - id: chapters
        map: {over: ["1", "2"], parallel: 2}
        steps:
          - run: |
              echo "write ${{ item }}" >> "$LEDGER"
              echo "n=${{ item }}" >> "$RERAIL_OUTPUT"
              %s
      - id: polish
        loop: {max_iterations: 2}
        steps:
          - {id: edit, run: 'echo "edit ${{ item }} ${{ loop.iteration }}" >> "$LEDGER"'}
          - id: sub
            pipeline: inner.yaml
            with: {name: "${{ item }}-${{ loop.iteration }}"}
      - id: sum
        run: |
          echo "sum=${{ steps.chapters.outputs.results | map(attribute="outputs.n") | sum }}" >> "$RERAIL_OUTPUT"
          echo "text=${{ steps.polish.outputs.text }}" >> "$RERAIL_OUTPUT"
  - id: rounds
    loop: {max_iterations: 2}
    steps:
      - id: fan
        map: {over: [p, q]}
        steps: [{run: 'echo "fan ${{ loop.iteration }} ${{ item }}" >> "$LEDGER"; echo r=${{ loop.iteration }} >> $RERAIL_OUTPUT'}]
"""
NESTED_INNER = """
params: {name: {type: string, required: true}}
outputs: {text: "${{ steps.say.outputs.text }}"}
steps: [{id: say, run: 'echo "say ${{ params.name }}" >> "$LEDGER"; echo text=${{ params.name }} >> $RERAIL_OUTPUT'}]
"""
EVERYTHING = sorted(
    [
        *(f"write {number}" for number in "1122"),
        *(f"edit {book} {number}" for book in "xy" for number in "12"),
        *(f"say {book}-{number}" for book in "xy" for number in "12"),
        *(f"fan {number} {item}" for number in "12" for item in "pq"),
    ]
)


def test_everything_goes_into_everything(project: Project) -> None:
    project.pipeline(NESTED % "")
    project.pipeline(NESTED_INNER, "inner.yaml")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert sorted(ledger(project)) == EVERYTHING
    books = results(project, "books")
    assert [(one["key"], one["outputs"]["sum"], one["outputs"]["text"]) for one in books] == [
        ("x", 3, "x-2"),
        ("y", 3, "y-2"),
    ]
    state = json.loads((project.run_dir("r") / "checkpoint.json").read_text())
    assert len(state["steps"]) == 2  # what is done is forgotten


def test_nested_failures_are_found_and_retried_where_they_were(project: Project) -> None:
    project.pipeline(NESTED % 'test ${{ item }} != 2 -o -e "$LEDGER.ok"')
    project.pipeline(NESTED_INNER, "inner.yaml")
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    assert "2 of 2 items failed" in done.stderr
    assert sorted(ledger(project)) == ["write 1", "write 1", "write 2", "write 2"]
    letters = {(one["step"], one["item"]) for one in project.json("dlq", "list", "r")}
    assert letters == {("books", "x"), ("books", "y"), ("books/chapters", "x::2"), ("books/chapters", "y::2")}
    project.ledger_file.with_suffix(".ok").touch()
    project.rerail("resume", "r", check=0)

    assert sorted(ledger(project)) == sorted([*EVERYTHING, "write 2", "write 2"])
    assert project.json("dlq", "list", "r") == []
