"""How other tools of this kind failed their users, each turned into a test: numbers are those of the field guide."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.conftest import RERAIL, Project
from tests.pipelines import ledger


def test_1_what_ran_before_the_failure_does_not_run_again(project: Project) -> None:
    steps = [f"{{id: s{n}, run: 'echo s{n} >> \"$LEDGER\"; test {n} != 3 -o -e ok'}}" for n in range(1, 6)]
    project.pipeline("steps: [" + ", ".join(steps) + "]")
    project.rerail("run", "pipeline.yaml", check=1)
    (project.root / "ok").touch()
    project.rerail("resume", check=0)

    assert ledger(project) == ["s1", "s2", "s3", "s3", "s4", "s5"]


def test_2_the_resumed_half_has_every_feature_of_the_first(project: Project) -> None:
    features = """
  - id: catch-%(n)s
    run: echo caught-%(n)s
    outputs: {text: {from: stdout, as: text}}
  - {id: slow-%(n)s, run: sleep 30, timeout: 0.2s, allow_failure: true}
  - id: clean-%(n)s
    run: "false"
    allow_failure: true
    on_failure: [{run: 'echo cleaned-%(n)s >> "$LEDGER"'}]
  - {id: checked-%(n)s, run: 'true', checks: ['false'], allow_failure: true}
  - {id: file-%(n)s, write: {path: 'made-%(n)s.txt', content: "made\\n"}}
  - id: fan-%(n)s
    map: {over: [a, b], parallel: 1}
    steps: [{run: 'echo "${{ item }}-%(n)s ${{ steps["catch-%(n)s"].outputs.text }}" >> "$LEDGER"'}]
"""
    project.pipeline("steps:" + features % {"n": 1} + "  - {id: gate, run: test -e ok}\n" + features % {"n": 2})
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)

    halves = [[f"cleaned-{n}", f"a-{n} caught-{n}", f"b-{n} caught-{n}"] for n in (1, 2)]
    assert ledger(project) == halves[0] + halves[1]
    steps = {step["id"]: step for step in project.json("show", "r")["steps"]}
    for n in (1, 2):
        assert steps[f"slow-{n}"]["error"]["type"] == "Timeout"
        assert steps[f"checked-{n}"]["error"]["type"] == "CheckFailed"
        assert (project.root / f"made-{n}.txt").read_text() == "made\n"


def test_3_params_items_and_captured_values_are_known_after_a_resume(project: Project) -> None:
    project.pipeline("""
params: {arg: {required: true}, names: {type: list, default: [x, y]}}
steps:
  - {id: one, run: echo first, outputs: {text: {from: stdout, as: text}}}
  - {id: gate, run: test -e ok}
  - id: four
    map: {over: "${{ params.names }}", parallel: 1}
    steps: [{run: 'echo ${{ params.arg }} ${{ steps.one.outputs.text }} ${{ item }} >> "$LEDGER"'}]
""")
    project.rerail("run", "pipeline.yaml", "-p", "arg=given value", check=1)
    (project.root / "ok").touch()
    project.rerail("resume", check=0)

    assert ledger(project) == ["given value first x", "given value first y"]


def test_10_what_depends_on_something_done_runs_and_skipped_is_not_done(project: Project) -> None:
    project.pipeline("""
steps:
  - {id: a, map: {over: [1]}, steps: [{run: 'echo a >> "$LEDGER"'}]}
  - {id: gate, needs: [], run: test -e ok}
  - {id: b, needs: [a, gate], run: 'echo b >> "$LEDGER"'}
  - {id: never, needs: [gate], when: "false", run: 'echo never >> "$LEDGER"'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    assert project.json("show", "r")["status"] == "failed"
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)

    assert ledger(project) == ["a", "b"]
    steps = {step["id"]: step["status"] for step in project.json("show", "r")["steps"]}
    assert steps == {"a": "completed", "gate": "completed", "b": "completed", "never": "skipped"}


def test_17_resuming_a_completed_run_changes_nothing(project: Project) -> None:
    project.pipeline("steps: [{id: m, map: {over: [1, 2], max_failures: 1}, steps: [{run: 'test ${{ item }} = 1'}]}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    before = project.state_digest()
    done = project.rerail("resume", "r", check=0)

    assert "nothing to resume" in done.stderr
    assert project.json("show", "r")["status"] == "completed"
    assert project.state_digest() == before


def test_19_twenty_starts_at_once_are_twenty_runs(project: Project) -> None:
    project.pipeline("steps: [{id: m, map: {over: [1]}, steps: [{run: 'echo $RERAIL_RUN_ID >> \"$LEDGER\"'}]}]")
    starts = [
        subprocess.Popen([*RERAIL, "run", "pipeline.yaml", "-q"], cwd=project.root, env=project.env) for _ in range(20)
    ]
    assert [start.wait() for start in starts] == [0] * 20

    assert len(set(ledger(project))) == 20
    assert len(project.json("list")) == 20


def test_24_a_failed_item_is_in_the_queue_once_with_all_its_attempts(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: {command: seq 20}, parallel: 4, max_failures: 5}
    steps:
      - run: echo "${{ item }} $RERAIL_ATTEMPT" >> "$LEDGER"; test $(( ${{ item }} % 5 )) != 0
        retry: {attempts: 3, delay: 0}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    letters = project.json("dlq", "list", "r")
    assert {one["key"]: (one["attempts"], len(one["errors"])) for one in letters} == dict.fromkeys(
        ("5", "10", "15", "20"), (3, 3)
    )
    outputs = project.json("show", "r")["steps"][0]["outputs"]
    results = [json.loads(line)["key"] for line in (project.root / outputs["results_file"]).read_text().splitlines()]
    assert sorted([*results, *(one["key"] for one in letters)], key=int) == [str(n) for n in range(1, 21)]
    assert len(ledger(project)) == 16 + 4 * 3


def test_19_two_clones_of_one_name_do_not_know_each_other(tmp_path: Path) -> None:
    clones = []
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        clones.append(Project(tmp_path / place))
    for clone in clones:
        clone.pipeline("steps: [{id: m, map: {over: [1]}, steps: [{run: 'echo ran >> \"$LEDGER\"'}]}]")
        clone.rerail("run", "pipeline.yaml", "--id", "same", check=0)

    assert [ledger(clone) for clone in clones] == [["ran"], ["ran"]]
    assert [len(clone.json("list")) for clone in clones] == [1, 1]
