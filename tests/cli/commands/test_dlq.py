"""`rerail dlq`: items that failed for good, and what is done about them."""

from __future__ import annotations

import pytest

from tests.conftest import Project
from tests.pipelines import ledger, results


def test_the_dead_letter_queue_from_end_to_end(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: [{id: a, n: 1}, {id: b, n: 0}, {id: c, n: 0}, {id: d, n: 2}], key: "${{ item.id }}", max_failures: 50%}
    steps:
      - id: one
        run: echo "one ${{ item.id }}" >> "$LEDGER"
      - id: two
        retry: {attempts: 2, delay: 0}
        run: |
          echo "two ${{ item.id }} ${{ item.n }}" >> "$LEDGER"
          test ${{ item.n }} != 0 || { echo "rate limit for ${{ item.id }}" >&2; exit 4; }
  - {id: after, run: 'echo "after ${{ steps.m.outputs.completed }}" >> "$LEDGER"'}
""")
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    assert "2 items failed permanently: m[b], m[c]" in done.stderr
    assert "4/4, 2 failed" in project.rerail("list", check=0).stdout
    assert "4 of 4 items, 2 failed" in project.rerail("show", "r", check=0).stdout
    assert project.json("list")[0]["dead_letters"] == 2
    shown = project.rerail("show", "r", check=0).stdout
    assert "2 items failed permanently: rerail dlq list r" in shown
    assert "dead letter queue" in project.rerail("history", "r", check=0).stdout
    assert "nothing to resume" in project.rerail("resume", "r", check=0).stderr  # the map itself completed

    letters = project.json("dlq", "list", "r", "--error", "for b")
    assert [(one["key"], one["attempts"], one["value"]) for one in letters] == [("b", 1, {"id": "b", "n": 0})]
    assert [error["stderr_tail"] for error in letters[0]["errors"]] == ["rate limit for b"] * 2
    assert [error["step"] for error in letters[0]["errors"]] == ["m/two"] * 2
    told = project.rerail("dlq", "show", "r", "c", check=0).stdout
    assert told.count("rate limit for c") == 2
    assert "no item 'x'" in project.rerail("dlq", "retry", "r", "x", check=2).stderr

    project.ledger_file.write_text("")
    project.rerail("dlq", "edit", "r", "b", "--value", '{"id": "b", "n": 5}', check=0)
    project.rerail("dlq", "drop", "r", "c*", check=0)
    project.rerail("resume", "r", check=0)
    assert ledger(project) == ["one b", "two b 5", "after 3"]
    assert project.json("dlq", "list", "r") == []
    assert [one["key"] for one in results(project)] == ["a", "b", "d"]
    assert project.json("show", "r")["status"] == "completed"


def test_retry_from_the_queue_completes_the_map_and_what_depends_on_it(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: [a, b, c], parallel: 1, max_failures: 2}
    steps: [{run: 'echo "m ${{ item }}" >> "$LEDGER"; test ${{ item }} = a -o -e ok'}]
  - {id: after, run: 'echo "after ${{ steps.m.outputs.completed }}" >> "$LEDGER"'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    (project.root / "ok").touch()
    project.ledger_file.write_text("")
    project.rerail("dlq", "retry", "r", "b", check=0)
    assert ledger(project) == ["m b", "after 2"]
    assert [one["key"] for one in project.json("dlq", "list", "r")] == ["c"]
    project.rerail("dlq", "retry", "r", check=0)

    assert ledger(project) == ["m b", "after 2", "m c", "after 3"]


def test_a_dead_letter_survives_a_later_map_with_an_item_of_that_name(project: Project) -> None:
    project.pipeline("""
steps:
  - {id: one, map: {over: [a, b], max_failures: 2}, steps: [{run: 'test ${{ item }} != b'}]}
  - {id: two, map: {over: [a, b]}, steps: [{run: 'true'}]}
""")
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert "1 item failed permanently: one[b]" in done.stderr
    assert [one["item"] for one in project.json("dlq", "list", "r")] == ["b"]


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


def test_a_dropped_item_of_a_completed_map_changes_what_depends_on_it(project: Project) -> None:
    project.pipeline(NESTED)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.ledger_file.write_text("")
    project.rerail("dlq", "drop", "r", "y::2", check=0)
    project.rerail("resume", "r", check=0)

    assert ledger(project)[0] == "t 2 1"


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


def test_files_of_a_dropped_item_are_no_longer_checked(project: Project) -> None:
    project.pipeline(
        """
steps:
  - id: m
    map: {over: [x, y]}
    steps:
      - id: a
        run: 'echo a-${{ item }} >> "$LEDGER"; echo ${{ item }} > ${{ item }}.txt'
        artifacts: [{path: "${{ item }}.txt", keep: false}]
      - {id: b, needs: [a], run: 'test ${{ item }} = y'}
"""
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.rerail("dlq", "drop", "r", "x", check=0)
    (project.root / "x.txt").unlink()

    planned = project.rerail("plan", "r", check=0)
    project.rerail("resume", "r", check=0)

    assert "x.txt" not in planned.stderr
    assert sorted(project.ledger()) == ["a-x", "a-y"]
    assert project.json("show", "r")["status"] == "completed"
    project.rerail("verify", "r", check=0)
    (project.root / "y.txt").unlink()  # of an item that was not dropped
    assert "y.txt" in project.rerail("plan", "r", check=0).stderr
