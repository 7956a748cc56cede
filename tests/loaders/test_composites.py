"""`map`, `loop` and `pipeline`: bad bodies are found when the file is loaded."""

from __future__ import annotations

import pytest

from tests.conftest import Project

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


BAD = [
    ("steps: [{id: s, pipeline: gone.yaml}]", "no such file: gone.yaml"),
    ("steps: [{id: s, pipeline: pipeline.yaml}]", "cannot be part of itself: pipeline.yaml → pipeline.yaml"),
    ("steps: [{id: s, pipeline: a.yaml}]", "cannot be part of itself: pipeline.yaml → a.yaml → b.yaml → a.yaml"),
    ("steps: [{id: s, pipeline: inner.yaml}]", "needs the param `name` in `with`"),
    ("steps: [{id: s, pipeline: inner.yaml, with: {name: x, nam: y}}]", "its pipeline has no param `nam`"),
    ("steps: [{id: s, pipeline: broken.yaml}]", "broken.yaml:1:10: error: unknown key `runn`"),
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
    ("steps: [{id: s, map: {over: [1]}, timeout: 3s, steps: [{run: x}]}]", "`timeout` of step `s` belongs to the steps"),
    ("steps: [{id: s, loop: {until: 'true'}, steps: [{run: x}]}]", "has no `max_iterations`"),
    ("steps: [{id: s, loop: {max_iterations: 2, until: steps.x.status}, steps: [{run: x}]}]", "no step `x`"),
    ("steps: [{id: s, loop: {max_iterations: 2}, steps: [{run: 'echo ${{ item }}'}]}]", "`item` exists only in"),
    ("steps: [{id: s, run: 'echo ${{ loop.iteration }}'}]", "`loop` exists only in"),
    ("steps: [{id: s, run: x, steps: [{run: y}]}]", "is only for `map` and `loop`"),
    ("steps: [{run: x}]\nfinally: [{map: {over: [1]}, steps: [{run: y}]}]", "`map` makes no sense in `finally`"),
    (
        "steps: [{id: s, map: {over: [1]}, steps: [{id: a, run: x}, {id: b, needs: [c], run: x}]}]",
        "unknown step `c` (steps: a, b)",
    ),
    (
        "steps: [{id: s, map: {over: [1]}, steps: [{id: a, run: 'echo ${{ steps.b.status }}'}, {id: b, run: x}]}]",
        "step `b` may not have run yet",
    ),
    (
        "steps: [{id: s, needs: [], map: {over: '${{ steps.t.outputs.x }}'}, steps: [{run: x}]}, {id: t, run: x}]",
        "step `t` may not have run yet",
    ),
    ("steps: [" + "{map: {over: [1]}, steps: [" * 9 + "{run: x}" + "]}" * 9 + "]", "nested deeper than 8 levels"),
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
