"""Inner pipelines, and every controller in every other."""

from __future__ import annotations

import json
import os

import pytest

from tests.conftest import Project
from tests.pipelines import keys, ledger, results

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


def test_an_inner_pipeline_works_in_its_own_directory(project: Project) -> None:
    inner = project.root / "lib[1]"
    inner.mkdir()
    (inner / "one.txt").write_text("1\n")
    (inner / "names").write_text("one.txt\n")
    (project.root / "lib1").mkdir()
    (project.root / "lib1" / "wrong.txt").write_text("wrong\n")
    (inner / "inner.yaml").write_text("""
steps:
  - {id: g, map: {over: {glob: "*.txt"}}, steps: [{run: 'echo "glob ${{ item }} $(cat ${{ item }})" >> "$LEDGER"'}]}
  - {id: l, map: {over: {lines: names}}, steps: [{run: 'echo "lines $(cat ${{ item }})" >> "$LEDGER"'}]}
  - {id: c, map: {over: {command: ls *.txt}}, steps: [{run: 'echo "command $(cat ${{ item }})" >> "$LEDGER"'}]}
""")
    project.pipeline("steps: [{id: s, pipeline: 'lib[1]/inner.yaml'}]")
    project.rerail("run", "pipeline.yaml", check=0)

    assert ledger(project) == ["glob one.txt 1", "lines 1", "command 1"]


def test_small_things(project: Project) -> None:
    os.mkfifo(project.root / "fifo")
    bad = {
        "map: {over: {lines: fifo}}": "fifo is not a regular file",
        "map: {over: [1], limit: '${{ params.x }}'}": "`limit` must evaluate to a whole number",
        "loop: {max_iterations: 2, while: steps.a.outputs.x < 3}": "before the first iteration there are no outputs",
        "loop: {max_iterations: 9, until: (steps.a.outputs.y >= 9), stop_if_no_progress: 2}": "no progress in 2",
        "loop: {max_iterations: 9, until: steps.a.outputs.z == 3, stop_if_no_progress: 2}": "no progress in 2",
    }
    for spec, words in bad.items():
        body = "steps: [{id: a, run: 'echo y=1 >> $RERAIL_OUTPUT; echo z=null >> $RERAIL_OUTPUT'}]"
        project.pipeline(f'params: {{x: "²"}}\nsteps: [{{id: m, {spec}, {body}}}]')
        assert words in project.rerail("run", "pipeline.yaml", check=1).stderr, spec
    project.pipeline("steps: [{id: m, map: {over: {command: 'printf \"a\\r\\nb\\r\\n\"'}}, steps: [{run: 'true'}]}]")
    project.rerail("run", "pipeline.yaml", "--id", "crlf", check=0)
    assert keys(project) == ["a", "b"]
    project.pipeline(
        "steps: [{id: a, run: x}, {id: m, map: {over: [1]},"
        " steps: [{id: b, run: 'echo ${{ steps.a.status }}'}, {id: a, run: x}]}]"
    )
    assert "step `a` may not have run yet" in project.rerail("check", "pipeline.yaml", check=2).stderr
