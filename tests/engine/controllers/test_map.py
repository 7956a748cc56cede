"""Maps: what they fan out over, how items are told apart, what a failed one means. All through the command line."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.conftest import Project
from tests.pipelines import keys, ledger, results, resumed_without

NOTE = 'echo "$RERAIL_STEP[$RERAIL_ITEM] $RERAIL_ATTEMPT" >> "$LEDGER"'


HOSTILE = [
    "it's",
    'a "quoted" one',
    "line\nbreak",
    "$(touch pwned)",
    "`id`",
    "emoji 🎉 ü",
    "-n",
    "*",
    "a\\b",
    "${{ x }}",
    "; rm x",
]


@pytest.mark.scenario("V6")
def test_text_of_items_arrives_unharmed_as_one_word(project: Project) -> None:
    (project.root / "items.json").write_text(json.dumps(HOSTILE))
    project.pipeline("""
steps:
  - id: m
    map: {over: {json: items.json}, parallel: 4}
    steps:
      - run: |
          count() { echo $#; }
          test "$(count ${{ item }})" = 1
          python3 -c 'import json,os,sys; print(json.dumps({"word": sys.argv[1], "env": json.loads(os.environ["RERAIL_ITEM"])}))' ${{ item }} >> "$RERAIL_OUTPUT"
""")
    project.rerail("run", "pipeline.yaml", check=0)

    assert [result["outputs"] for result in results(project)] == [{"word": text, "env": text} for text in HOSTILE]
    assert not (project.root / "pwned").exists()


FAILING = """
steps:
  - id: m
    map: {over: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], parallel: 2, %s}
    steps: [{run: 'echo ${{ item }} >> "$LEDGER"; test ${{ item }} != 3 -a ${{ item }} != 7'}]
  - {id: after, run: 'echo after ${{ steps.m.outputs.failed }} ${{ steps.m.outputs.skipped }} >> "$LEDGER"'}
"""


@pytest.mark.parametrize(
    ("policy", "code", "last"),
    [
        ("key: '${{ item }}'", 1, None),
        ("max_failures: 1", 1, None),
        ("max_failures: 2", 0, "after 2 0"),
        ("max_failures: 20%", 0, "after 2 0"),
        ("max_failures: 19%", 1, None),
        ("on_item_failure: skip", 0, "after 0 2"),
    ],
)
def test_how_many_items_may_fail(project: Project, policy: str, code: int, last: str | None) -> None:
    project.pipeline(FAILING % policy)
    project.rerail("run", "pipeline.yaml", check=code)

    found = ledger(project)
    assert sorted(found[:10], key=int) == [str(number) for number in range(1, 11)]  # the others run all the same
    assert found[10:] == ([last] if last else [])
    dead = [letter["key"] for letter in project.json("dlq", "list", "last")]
    assert sorted(dead) == ([] if "skip" in policy else ["3", "7"])


def test_on_item_failure_stop_starts_no_further_item(project: Project) -> None:
    project.pipeline((FAILING % "on_item_failure: stop").replace("parallel: 2", "parallel: 1"))
    done = project.rerail("run", "pipeline.yaml", check=1)

    assert ledger(project) == ["1", "2", "3"]
    assert "stopped after m[3] failed" in done.stderr


def test_items_retry_like_steps_and_a_resume_retries_what_failed(project: Project) -> None:
    project.pipeline(f"""
steps:
  - id: m
    map: {{over: [a, b], parallel: 2}}
    steps:
      - {{run: '{NOTE}; test -e ok-${{{{ item }}}}', retry: {{attempts: 2, delay: 0}}}}
  - {{id: after, run: 'echo after >> "$LEDGER"'}}
""")
    (project.root / "ok-a").touch()
    done = project.rerail("run", "pipeline.yaml", check=1)
    assert "1 of 2 items failed (max_failures: 0): b: exited with code 1" in done.stderr
    assert re.search(r"details: rerail dlq show \S+ b", done.stderr)
    (project.root / "ok-b").touch()
    project.rerail("resume", check=0)

    assert sorted(ledger(project)[:3]) == ['m["a"] 1', 'm["b"] 1', 'm["b"] 2']
    assert ledger(project)[3:] == ['m["b"] 3', "after"]
    assert project.json("dlq", "list", "last") == []


GROWING = """
steps:
  - id: m
    map: {over: {lines: list.txt}, parallel: 1}
    steps: [{run: 'echo ${{ item }} >> "$LEDGER"; test ${{ item }} != bad'}]
"""


@pytest.mark.scenario("L9")
def test_a_source_that_changed_is_shown_and_decided(project: Project) -> None:
    listed = project.root / "list.txt"
    listed.write_text("a\nb\nbad\n")
    project.pipeline(GROWING)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    listed.write_text("new\nb\nbad2\n")
    project.ledger_file.write_text("")

    refused = project.rerail("resume", "r", "--changes", "refuse", check=2)
    assert "2 new, 2 gone (a, bad)" in refused.stderr
    assert "2 new, 2 gone" in project.rerail("resume", "r", "--dry-run", check=0).stderr
    project.rerail("resume", "r", "--changes", "keep", check=1)
    assert ledger(project) == ["bad"]  # the list as it was
    project.rerail("resume", "r", check=0)

    assert ledger(project) == ["bad", "new", "bad2"]
    assert keys(project) == ["new", "b", "bad2"]


def test_an_edited_script_runs_all_items_again_unless_it_is_kept(project: Project) -> None:
    (project.root / "list.txt").write_text("a\nbad\n")
    project.pipeline(GROWING)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.pipeline(GROWING.replace("!= bad", "!= other"))
    project.ledger_file.write_text("")
    project.rerail("resume", "r", check=0)

    assert ledger(project) == ["a", "bad"]


def test_an_edited_source_keeps_the_items_that_are_still_in_it(project: Project) -> None:
    text = """
steps:
  - id: m
    map: {over: [%s], parallel: 1}
    steps: [{run: 'echo ${{ item }} >> "$LEDGER"; echo v=${{ item }} >> $RERAIL_OUTPUT'}]
  - {id: after, run: 'echo ${{ steps.m.outputs.results | map(attribute="key") | join("+") }} >> "$LEDGER"'}
"""
    project.pipeline(text % "a, b")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.pipeline(text % "c, b")
    project.rerail("resume", "r", check=0)

    assert ledger(project) == ["a", "b", "a+b", "c", "c+b"]


MADE = """
steps:
  - id: m
    map: {over: [a, b, c], parallel: 1}
    steps:
      - run: echo "made ${{ item }}" >> "$LEDGER"; mkdir -p out; echo ${{ item }} > out/${{ item }}.txt
        artifacts: [{path: "out/${{ item }}.txt", keep: %s}]
  - {id: after, run: 'echo after >> "$LEDGER"; cat out/*.txt > all.txt'}
  - {id: last, run: 'test -e ok'}
"""


@pytest.mark.parametrize(("kept", "again"), [("true", []), ("false", ["made b"])])
def test_what_items_made_is_proved_restored_or_made_again(project: Project, kept: str, again: list[str]) -> None:
    project.pipeline(MADE % kept)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.ledger_file.write_text("")
    (project.root / "out/b.txt").write_text("tampered with")
    (project.root / "ok").touch()
    told = project.rerail("resume", "r", check=0).stderr

    assert ledger(project) == again  # only what is lost, and nothing behind it: it came out the same
    assert (project.root / "out/b.txt").read_text() == "b\n"
    assert ("restored" in told) == (not again)


@pytest.mark.scenario("H7")
def test_an_item_of_unknown_outcome_is_asked_about_and_the_others_go_on(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: [a, b, c], parallel: 1}
    steps:
      - {run: 'echo ${{ item }} >> "$LEDGER"; test ${{ item }} != b || kill -9 $PPID; sleep 0.2', idempotent: false}
  - {id: after, run: 'echo after >> "$LEDGER"'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=-9)
    done = project.rerail("resume", "r", check=5)
    assert "rerail mark r 'm[b]' completed|failed|pending" in done.stderr
    assert ledger(project) == ["a", "b", "c"]
    project.rerail("mark", "r", "m[b]", "completed", check=0)
    project.rerail("resume", "r", check=0)

    assert ledger(project) == ["a", "b", "c", "after"]
    assert keys(project) == ["a", "b", "c"]


def test_secrets_are_no_items(project: Project) -> None:
    project.env["TOKEN"] = "hunter2-hunter2"
    (project.root / "list.txt").write_text("fine\nhunter2-hunter2\n")
    project.pipeline("secrets: [TOKEN]\n" + GROWING)
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)

    assert "item 2 holds a secret" in done.stderr
    for path in project.run_dir("r").rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes()


@pytest.mark.scenario("C9", "V3")
def test_logs_and_pages_of_items(project: Project) -> None:
    (project.root / "list.txt").write_text("".join(f"{number}\n" for number in range(120)))
    project.pipeline("""
steps:
  - id: m
    map: {over: {lines: list.txt}, parallel: 4, max_failures: 1}
    steps: [{run: 'echo "out ${{ item }}"; echo "err ${{ item }}" >&2; test ${{ item }} != 7'}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert project.rerail("logs", "r", "m", "17", check=0).stdout.splitlines() == ["out 17", "err 17"]
    every = project.rerail("logs", "r", check=0).stdout.splitlines()
    assert len(every) == 240
    assert "m[119] | out 119" in every
    assert len(list((project.run_dir("r") / "logs").iterdir())) <= 2 * 4 + 2  # pooled
    page = project.rerail("show", "r", "m", "--page", "3", check=0)
    assert page.stdout.splitlines()[1].startswith("100")
    assert "page 3 of 3, 120 of 120 items" in page.stderr
    assert [one["item"] for one in project.json("show", "r", "m", "--status", "failed")] == ["7"]


@pytest.mark.parametrize("body", ["one step", "two steps"])
def test_as_many_items_as_parallel_says_are_under_way(project: Project, body: str) -> None:
    second = "\n      - {run: 'true'}" if body == "two steps" else ""
    project.pipeline(f"""
steps:
  - id: m
    map: {{over: {{command: seq 12}}, parallel: 4}}
    steps:
      - run: |
          echo "+" >> "$LEDGER"
          n=0; while [ "$(grep -c + "$LEDGER")" -lt 4 ] && [ $n -lt 200 ]; do n=$((n + 1)); sleep 0.02; done
          echo "-" >> "$LEDGER"{second}
""")
    project.rerail("run", "pipeline.yaml", "--parallel", "1", check=0)

    under_way, most = 0, 0
    for line in ledger(project):
        under_way += 1 if line == "+" else -1
        most = max(most, under_way)
    assert most == 4  # whatever --parallel says: it is about everything else


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


def test_names_as_they_are_shown_are_names_that_are_taken(project: Project) -> None:
    project.pipeline("steps: [{id: m, map: {over: [a, b]}, steps: [{run: 'echo ${{ item }}'}]}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert project.rerail("logs", "r", "m[b]", check=0).stdout == "b\n"
    assert "no output of item 'x' of step 'm'" in project.rerail("logs", "r", "m", "x", check=2).stderr


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
