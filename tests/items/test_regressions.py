"""What attacks on maps, loops and the dead letter queue found, each by its smallest reproduction."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Project
from tests.pipelines import keys, ledger, results, resumed_without


def test_maps_at_the_same_time_may_have_items_of_the_same_name(project: Project) -> None:
    project.pipeline("""
steps:
  - id: one
    needs: []
    map: {over: [a, b], parallel: 1}
    steps: [{id: x, run: 'echo "one x ${{ item }}" >> "$LEDGER"; sleep 0.1'}, {id: y, run: 'true'}]
  - id: two
    needs: []
    map: {over: [a, b], parallel: 1}
    steps: [{id: x, run: 'echo "two x ${{ item }}" >> "$LEDGER"'}, {id: y, run: sleep 0.15}]
  - {id: three, needs: [], loop: {max_iterations: 2}, steps: [{id: x, run: sleep 0.05}, {id: y, run: 'true'}]}
  - {id: four, needs: [], loop: {max_iterations: 2}, steps: [{id: x, run: 'true'}, {id: y, run: sleep 0.07}]}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "8", check=0)
    project.rerail("verify", "r", check=0)

    assert sorted(ledger(project)) == [f"{which} x {item}" for which in ("one", "two") for item in "ab"]


def test_a_dead_letter_survives_a_later_map_with_an_item_of_that_name(project: Project) -> None:
    project.pipeline("""
steps:
  - {id: one, map: {over: [a, b], max_failures: 2}, steps: [{run: 'test ${{ item }} != b'}]}
  - {id: two, map: {over: [a, b]}, steps: [{run: 'true'}]}
""")
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert "1 item failed permanently: one[b]" in done.stderr
    assert [one["item"] for one in project.json("dlq", "list", "r")] == ["b"]


def test_only_what_is_lost_of_an_item_is_made_again(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: [a, b], parallel: 1}
    steps:
      - {id: pay, idempotent: false, run: 'echo "pay ${{ item }}" >> "$LEDGER"'}
      - id: make
        run: echo "make ${{ item }}" >> "$LEDGER"; echo ${{ item }} > out-${{ item }}
        artifacts: [{path: "out-${{ item }}", keep: false}]
      - {id: use, run: 'echo "use ${{ item }}" >> "$LEDGER"'}
  - {id: last, run: test -e ok}
""")
    assert resumed_without(project, "out-a") == ["make a"]


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


def test_what_is_restored_behind_what_is_made_again_waits_for_it(project: Project) -> None:
    body = "steps: [{run: 'echo %s ${{ item }} > %s-${{ item }}', artifacts: [{path: \"%s-${{ item }}\", keep: %s}]}]"
    project.pipeline(f"""
steps:
  - {{id: m1, map: {{over: [a, b]}}, {body % ("1", "one", "one", "false")}}}
  - {{id: m2, map: {{over: [a, b]}}, {body % ("2", "two", "two", "true")}}}
  - {{id: last, run: test -e ok}}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "one-a").unlink()
    (project.root / "two-a").unlink()
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)

    assert (project.root / "one-a").read_text() == "1 a\n"
    assert (project.root / "two-a").read_text() == "2 a\n"


def broken(run_dir: Path) -> None:
    """Cut the newest journal in half."""
    newest = max(run_dir.glob("journal-*.jsonl"))
    data = newest.read_bytes().rstrip(b"\n")
    newest.write_bytes(data[: len(data) // 2] + b"\n" + data[-200:])


MANY = """
steps:
  - id: m
    map: {over: [a, b, c, d], parallel: 1, max_failures: %s}
    steps: [{run: 'echo ${{ item }} >> "$LEDGER"; test ${{ item }} != d -o -e ok; echo v=${{ item }} >> $RERAIL_OUTPUT'}]
  - {id: after, run: 'echo after >> "$LEDGER"'}
"""


def test_a_run_can_be_repaired_again_and_again(project: Project) -> None:
    project.pipeline(MANY % 0)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    for _ in range(3):
        project.rerail("resume", "r", check=1)
        broken(project.run_dir("r"))
        assert project.rerail("resume", "r").returncode == 6
        project.rerail("repair", "r", check=0)
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)

    assert keys(project) == ["a", "b", "c", "d"]
    assert all(one["outputs"] == {"v": one["key"]} for one in results(project))
    assert ledger(project)[-1] == "after"


@pytest.mark.parametrize("kept", [4, 6, 8, 10, 12])
def test_items_whose_records_a_repair_gave_up_run_again(project: Project, kept: int) -> None:
    project.pipeline(MANY % 0)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    journal = project.run_dir("r") / "journal-0001.jsonl"
    lines = journal.read_bytes().split(b"\n")
    lines[kept] = lines[kept].replace(b'"step"', b'"stop"')
    journal.write_bytes(b"\n".join(lines))
    assert project.rerail("resume", "r").returncode == 6
    project.rerail("repair", "r", check=0)
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)

    assert keys(project) == ["a", "b", "c", "d"]
    assert all(one["outputs"] == {"v": one["key"]} for one in results(project))


def test_a_fork_of_a_map_that_lost_a_file_has_every_item(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: [a, b], parallel: 1}
    steps:
      - run: echo "made ${{ item }}" >> "$LEDGER"; echo x > out-${{ item }}
        artifacts: [{path: "out-${{ item }}", keep: false}]
  - {id: red, run: 'echo "red ${{ steps.m.outputs.completed }} of ${{ steps.m.outputs.total }}" >> "$LEDGER"'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.rerail("fork", "r", "--from", "red", "--id", "whole", check=0)
    assert ledger(project)[3:] == ["red 2 of 2"]
    (project.root / "out-a").unlink()
    project.ledger_file.write_text("")
    project.rerail("fork", "r", "--from", "red", "--id", "f", check=0)

    assert ledger(project) == ["made a", "made b", "red 2 of 2"]
    assert project.json("list")[0]["items_done"] == 2


NESTED = """
steps:
  - id: outer
    map: {over: [x, y], parallel: 1}
    steps:
      - id: inner
        map: {over: [1, 2, 3], parallel: 1, max_failures: 1}
        steps: [{run: 'echo "${{ item }} $RERAIL_STEP_KEY" >> "$LEDGER"; test ${{ item }} != 2'}]
      - {id: t, run: 'echo "t ${{ steps.inner.outputs.completed }} ${{ steps.inner.outputs.skipped }}" >> "$LEDGER"'}
  - {id: red, run: 'echo red >> "$LEDGER"'}
"""


def test_an_edited_item_inside_an_item_is_tried_again(project: Project) -> None:
    project.pipeline(NESTED)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.ledger_file.write_text("")
    assert "NUL" in project.rerail("dlq", "edit", "r", "x::2", "--value", '"a\\u0000"', check=2).stderr
    project.rerail("dlq", "edit", "r", "x::2", "--value", "7", check=0)
    project.rerail("resume", "r", check=0)

    found = ledger(project)
    assert found[0].startswith("7 r/outer/inner/x::2/round-1")  # another item: new work
    assert found[1] == "t 3 0"
    assert [one["item"] for one in project.json("dlq", "list", "r")] == ["y::2"]
    assert "nothing to resume" in project.rerail("resume", "r", check=0).stderr


def test_a_dropped_item_of_a_completed_map_changes_what_depends_on_it(project: Project) -> None:
    project.pipeline(NESTED)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.ledger_file.write_text("")
    project.rerail("dlq", "drop", "r", "y::2", check=0)
    project.rerail("resume", "r", check=0)

    assert ledger(project)[0] == "t 2 1"


def test_an_edit_survives_a_change_of_the_source(project: Project) -> None:
    (project.root / "l").write_text("a\nbad\n")
    project.pipeline("""
steps: [{id: m, map: {over: {lines: l}, parallel: 1}, steps: [{run: 'echo ${{ item }} >> "$LEDGER"; test ${{ item }} != bad'}]}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.rerail("dlq", "edit", "r", "bad", "--value", '"good"', check=0)
    (project.root / "l").write_text("a\nbad\nnew\n")
    project.rerail("resume", "r", check=0)

    assert ledger(project) == ["a", "bad", "good", "new"]


def test_a_value_that_only_python_takes_for_the_same_has_changed(project: Project) -> None:
    text = '[{"id": "a", "n": %s}, {"id": "bad", "n": 0}]'
    (project.root / "l.json").write_text(text % "1")
    project.pipeline("""
steps:
  - id: m
    map: {over: {json: l.json}, key: "${{ item.id }}", parallel: 1}
    steps: [{run: 'echo "${{ item.id }} ${{ item.n }}" >> "$LEDGER"; test ${{ item.id }} != bad -o -e ok'}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "l.json").write_text(text % "true")
    (project.root / "ok").touch()
    assert "1 changed" in project.rerail("resume", "r", check=0).stderr

    assert ledger(project) == ["a 1", "bad 0", "a true", "bad 0"]


@pytest.mark.parametrize("where", ["relisted", "key"])
def test_no_secret_becomes_an_item_by_another_door(project: Project, where: str) -> None:
    project.env["TOKEN"] = "hunter2-hunter2"
    key = ', key: "${{ env.TOKEN }}-${{ item }}"' if where == "key" else ""
    (project.root / "l").write_text("a\n")
    project.pipeline(f"secrets: [TOKEN]\nsteps: [{{id: m, map: {{over: {{lines: l}}{key}}}, steps: [{{run: 'false'}}]}}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "l").write_text("a\nhunter2-hunter2\n")
    assert "holds a secret" in project.rerail("resume", "r", check=1).stderr

    for path in project.run_dir("r").rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path


def test_an_item_that_failed_by_a_persons_word_is_in_the_queue(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: [a, b], parallel: 1, max_failures: 1}
    steps: [{run: 'test ${{ item }} != b || kill -9 $PPID; sleep 0.1', idempotent: false}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=-9)
    project.rerail("resume", "r", check=5)
    project.rerail("mark", "r", "m[b]", "failed", check=0)

    assert "marked failed" in project.json("dlq", "list", "r")[0]["error"]["message"]
    project.rerail("resume", "r", check=0)


ODD: list[tuple[str, Any]] = [("a::b", "x"), ("a%3A%3Ab", "y"), (":c:", "z"), ("*", "s"), ("a[1]", "t"), ("a1", "u")]


def test_odd_keys_are_told_apart_and_named_exactly(project: Project) -> None:
    (project.root / "l.json").write_text(json.dumps([{"id": key, "v": value} for key, value in ODD]))
    project.pipeline("""
steps:
  - id: m
    map: {over: {json: l.json}, key: "${{ item.id }}", max_failures: 100%}
    steps: [{run: 'exit 1'}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    assert len(project.json("dlq", "list", "r")) == len(ODD)
    assert [one["value"]["v"] for one in project.json("dlq", "list", "r", "a[1]")] == ["t"]
    project.rerail("dlq", "drop", "r", "*", check=0)

    assert len(project.json("dlq", "list", "r")) == len(ODD) - 1


@pytest.mark.scenario("J16")
def test_lines_about_items_are_one_line_each(project: Project) -> None:
    (project.root / "l.json").write_text(json.dumps(["x\n::error::y"]))
    project.env["CI"] = "1"
    project.pipeline("steps: [{id: m, map: {over: {json: l.json}, max_failures: 1}, steps: [{run: 'exit 1'}]}]")
    done = project.rerail("run", "pipeline.yaml", "--id", "r", "-v", check=0)

    assert not [line for line in done.stderr.splitlines() if line.startswith("::")]


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


@pytest.mark.scenario("E8")
def test_results_that_were_lost_are_put_back_from_the_journal(project: Project) -> None:
    project.pipeline("""
steps:
  - {id: m, map: {over: [a, b]}, steps: [{run: 'echo v=${{ item }} >> $RERAIL_OUTPUT'}]}
  - {id: use, run: 'test -e ok; cat ${{ steps.m.outputs.results_file }} >> "$LEDGER"'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.run_dir("r") / "results/m.jsonl").write_text("tampered with\n")
    (project.root / "ok").touch()
    assert "rebuilt from the journal" in project.rerail("resume", "r", check=0).stderr

    assert [json.loads(line)["key"] for line in ledger(project)] == ["a", "b"]


def test_a_map_with_retry_tries_its_failed_items_again(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    retry: {attempts: 2, delay: 0}
    map: {over: [a, b], parallel: 1}
    steps: [{run: 'echo ${{ item }} >> "$LEDGER"; test ${{ item }} = a -o -e flag || { touch flag; exit 1; }'}]
""")
    project.rerail("run", "pipeline.yaml", check=0)

    assert ledger(project) == ["a", "b", "b"]


def test_a_retry_in_a_map_whose_failure_is_allowed(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    allow_failure: true
    map: {over: [a, b], parallel: 1}
    steps: [{run: 'echo ${{ item }} >> "$LEDGER"; test -e ok -o ${{ item }} != a'}]
  - {id: z, run: 'echo z >> "$LEDGER"'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    assert "nothing to resume" in project.rerail("resume", "r", check=0).stderr
    (project.root / "ok").touch()
    project.rerail("dlq", "retry", "r", check=0)

    assert ledger(project) == ["a", "b", "z", "a", "z"]
    assert project.json("dlq", "list", "r") == []
    assert keys(project) == ["a", "b"]


DEEP = """
steps:
  - id: o
    map: {over: [p, q], parallel: 1, max_failures: %s}
    steps:
      - id: n
        map: {over: [a, b], parallel: 1}
        steps: [{run: 'echo "${{ item }}" >> "$LEDGER"; test ${{ item }} != b -o -e ok'}]
"""


@pytest.mark.parametrize("allowed", ["0", "2"])
@pytest.mark.parametrize("how", ["retry", "edit", "drop"])
def test_an_item_inside_a_dead_item(project: Project, how: str, allowed: str) -> None:
    project.pipeline(DEEP % allowed)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0 if allowed == "2" else 1)
    project.ledger_file.write_text("")
    match how:
        case "retry":
            (project.root / "ok").touch()
            project.rerail("dlq", "retry", "r", "q::b")
        case "edit":
            project.rerail("dlq", "edit", "r", "q::b", "--value", '"c"', check=0)
            project.rerail("resume", "r")
        case _:
            project.rerail("dlq", "drop", "r", "q::b", check=0)
            project.rerail("resume", "r")

    # A map that failed tries again all that failed in it, whatever was done about one of them.
    others = ["b"] if allowed == "0" and how != "retry" else []
    assert ledger(project) == others + {"retry": ["b"], "edit": ["c"], "drop": []}[how]
    dead = {one["item"] for one in project.json("dlq", "list", "r")}
    assert not dead & {"q", "q::b"}
    if how != "retry" and allowed == "2":
        assert dead == {"p", "p::b"}


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
    assert "is in an iteration of l that is over" in refused.stderr
    project.rerail("dlq", "drop", "r", "2::b", check=0)
    project.rerail("resume", "r", check=0)
    (project.root / "ok").touch()
    project.rerail("dlq", "retry", "r", "1::b", check=0)

    # The last iteration is open to a person: what stands on the map runs again there, and nothing before it does. To
    # try again what failed in an earlier one all iterations run again.
    assert ledger(project) == ["t1", "t2", "t2", "t1", "t2"]
    assert project.json("dlq", "list", "r") == []


@pytest.mark.scenario("L9")
def test_what_is_new_in_a_list_is_new_work(project: Project) -> None:
    listed = project.root / "l.json"
    project.pipeline("""
steps:
  - id: m
    map: {over: {json: l.json}, key: "${{ item.id }}", parallel: 1}
    steps: [{run: 'echo "$RERAIL_STEP_KEY $RERAIL_ATTEMPT" >> "$LEDGER"; test -e ok -o ${{ item.id }} != c'}]
""")
    for a, b in ((1, 1), (2, None), (3, 1)):
        items = [{"id": "a", "v": a}, *([{"id": "b", "v": b}] if b else []), {"id": "c", "v": 0}]
        listed.write_text(json.dumps(items))
        project.rerail("run", "pipeline.yaml", "--id", "r", "--resume", check=1)

    found = ledger(project)
    assert len(set(found)) == len(found), found
    assert {line.split()[0] for line in found if "/c" in line} == {"r/m/c"}  # the same item all the time: the same work


@pytest.mark.scenario("H7", "L9")
def test_items_with_odd_keys_keep_their_place_in_a_changed_list(project: Project) -> None:
    listed = project.root / "l"
    listed.write_text("a::b\nc\n")
    project.pipeline("""
steps:
  - id: m
    map: {over: {lines: l}, parallel: 1, max_failures: 1}
    steps:
      - run: |
          echo ${{ item }} >> "$LEDGER"; test ${{ item }} != a::b -o -e ok
          test ${{ item }} != c -o -e killed || { touch killed; kill -9 $PPID; sleep 1; }
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=-9)
    listed.write_text("new\nc\na::b\n")
    project.rerail("resume", "r", check=0)
    assert ledger(project) == ["a::b", "c", "new", "c"]
    (project.root / "ok").touch()
    project.rerail("dlq", "retry", "r", check=0)

    assert ledger(project)[4:] == ["a::b"]
    assert keys(project) == ["new", "c", "a%3A%3Ab"]


def test_an_edit_survives_every_change_of_the_source(project: Project) -> None:
    listed = project.root / "l"
    listed.write_text("a\nb\nc\n")
    project.pipeline("""
steps:
  - id: m
    map: {over: {lines: l}, parallel: 1}
    steps: [{run: 'echo ${{ item }} >> "$LEDGER"; test ${{ item }} = bb -o ${{ item }} = a'}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.rerail("dlq", "edit", "r", "b", "--value", '"bb"', check=0)
    for more in "de":
        listed.write_text(listed.read_text() + f"{more}\n")
        project.rerail("resume", "r", check=1)

    assert ledger(project).count("b") == 1
    assert ledger(project).count("bb") == 1


def test_a_fork_outlives_its_parent(project: Project) -> None:
    project.pipeline("""
steps:
  - {id: m, map: {over: [a, b]}, steps: [{run: 'echo v=${{ item }} >> $RERAIL_OUTPUT'}]}
  - {id: z, run: 'cat ${{ steps.m.outputs.results_file }} >> "$LEDGER"'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.rerail("fork", "r", "--from", "z", "--id", "f", check=0)
    project.rerail("delete", "r", "--yes", check=0)
    project.rerail("mark", "f", "z", "pending", check=0)
    project.rerail("resume", "f", check=0)

    assert len(ledger(project)) == 6


def test_the_plan_of_a_map_under_way_says_on_what_it_depends(project: Project) -> None:
    text = """
steps:
%s  - {id: m, map: {over: [a, b], parallel: 1}, steps: [{run: 'test ${{ item }} = a'}]}
"""
    project.pipeline(text % "")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.pipeline(text % "  - {id: mid, run: 'true'}\n")

    told = project.rerail("resume", "r", "--dry-run", check=0).stderr
    assert "retrying 1; restarts if the result of mid changes" in told


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


def test_names_as_they_are_shown_are_names_that_are_taken(project: Project) -> None:
    project.pipeline("steps: [{id: m, map: {over: [a, b]}, steps: [{run: 'echo ${{ item }}'}]}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert project.rerail("logs", "r", "m[b]", check=0).stdout == "b\n"
    assert "an item 'x' of m" in project.rerail("logs", "r", "m", "x", check=2).stderr


def test_a_step_of_unknown_outcome_inside_an_item_is_asked_about(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: [a, b, c], parallel: 1}
    steps:
      - {id: pre, run: 'echo "pre ${{ item }}" >> "$LEDGER"'}
      - id: pay
        idempotent: false
        run: echo "pay ${{ item }}" >> "$LEDGER"; test ${{ item }} != b || kill -9 $PPID; sleep 0.2
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=-9)
    done = project.rerail("resume", "r", check=5)
    assert "rerail mark r 'm/pay[b]' completed|failed|pending" in done.stderr
    assert ledger(project) == ["pre a", "pay a", "pre b", "pay b", "pre c", "pay c"]  # the others went on
    project.rerail("mark", "r", "m/pay[b]", "completed", check=0)
    project.rerail("resume", "r", check=0)

    assert len(ledger(project)) == 6
    assert keys(project) == ["a", "b", "c"]


def test_results_are_gathered_only_once_they_are_durable(project: Project) -> None:
    """As after a power cut that lost the last batch: all steps of the last item are done, and the item is not."""
    project.pipeline("""
steps:
  - id: m
    map: {over: [a]}
    steps:
      - {id: one, run: 'echo one >> "$LEDGER"; echo v=1 >> $RERAIL_OUTPUT'}
      - {id: two, run: 'echo two >> "$LEDGER"'}
  - {id: after, run: 'true'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    journal = project.run_dir("r") / "journal-0001.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    last = next(at for at, line in enumerate(lines) if b'"step-completed"' in line and b'"step":"m/two"' in line)
    journal.write_bytes(b"".join(lines[: last + 1]))
    (project.run_dir("r") / "checkpoint.json").unlink()
    for old in (project.run_dir("r") / "history").iterdir():
        old.unlink()
    done = project.rerail("resume", "r", check=0)

    assert ledger(project) == ["one", "two"]
    assert "lost" not in done.stderr.replace("later records, if any, are lost", "")
    assert results(project) == [{"key": "a", "outputs": {"v": 1}}]
