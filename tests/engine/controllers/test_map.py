"""Maps: what they fan out over, how items are told apart, what a failed one means. All through the command line."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Project
from tests.pipelines import keys, ledger, results

NOTE = 'echo "$RERAIL_STEP[$RERAIL_ITEM] $RERAIL_ATTEMPT" >> "$LEDGER"'


SOURCES = [
    ("[b, a, 3]", ["b", "a", "3"]),
    ('"${{ params.names }}"', ["x", "y"]),
    ('"${{ steps.before.outputs.list }}"', ["p", "q r"]),
    ("{glob: 'in/*.txt'}", ["in/1.txt", "in/2.txt"]),
    ("{glob: 'in/**/deep*'}", ["in/sub/deep.md"]),
    ("{lines: list.txt}", ["one", "two words", "  indented"]),
    ("{json: data.json, path: '$.sections[*].id'}", ["s1", "s2"]),
    ("{json: plain.json}", ["u", "v"]),
    ("{command: 'printf \"c1\\nc 2\\n\"'}", ["c1", "c 2"]),
    ("{command: 'echo [10,20]', as: json}", ["10", "20"]),
]


@pytest.fixture
def sources(project: Project) -> Project:
    (project.root / "in/sub").mkdir(parents=True)
    for name in ("in/2.txt", "in/1.txt", "in/sub/deep.md", "in/other"):
        (project.root / name).write_text(name)
    (project.root / "list.txt").write_text("one\n\ntwo words\r\n  indented\n")
    (project.root / "data.json").write_text('{"sections": [{"id": "s1", "n": 2}, {"id": "s2", "n": 1}]}')
    (project.root / "plain.json").write_text('["u", "v"]')
    return project


@pytest.mark.parametrize(("over", "wanted"), SOURCES, ids=[source[0] for source in SOURCES])
def test_a_map_fans_out_over_what_its_source_holds(sources: Project, over: str, wanted: list[str]) -> None:
    sources.pipeline(f"""
params: {{names: {{type: list, default: [x, y]}}}}
steps:
  - {{id: before, run: 'echo ''{{"list": ["p", "q r"]}}'' >> $RERAIL_OUTPUT'}}
  - id: m
    map: {{over: {over}}}
    steps: [{{run: 'printf "%s\\n" ${{{{ item }}}} >> "$LEDGER"'}}]
""")
    sources.rerail("run", "pipeline.yaml", check=0)

    assert keys(sources) == wanted
    assert sorted(ledger(sources)) == sorted(wanted)


def test_items_are_filtered_sorted_cut_and_named(sources: Project) -> None:
    sources.pipeline("""
steps:
  - id: m
    map:
      over: [{id: a, n: 5}, {id: b, n: 1}, {id: c, n: 9}, {id: d, n: 7}, {id: e, n: 3}]
      key: "${{ item.id }}-${{ item.n }}"
      filter: item.n > 1
      sort: -item.n
      offset: 1
      limit: "${{ 1 + 1 }}"
    steps: [{run: 'echo n=${{ item.n }} >> $RERAIL_OUTPUT'}]
""")
    sources.rerail("run", "pipeline.yaml", check=0)

    assert results(sources) == [{"key": "d-7", "outputs": {"n": 7}}, {"key": "a-5", "outputs": {"n": 5}}]


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


BAD = [
    ("{over: {lines: gone.txt}}", "gone.txt cannot be read: No such file"),
    ("{over: {json: broken.json}}", "broken.json is not JSON"),
    ("{over: {json: ok.json}}", "`over` must evaluate to a list, not a mapping"),
    ("{over: {command: 'echo x; exit 3'}}", "`over`: exited with code 3"),
    ("{over: {command: 'echo {', as: json}}", "not JSON"),
    ('{over: "${{ params.text }}"}', "`over` must evaluate to a list, not text"),
    ('{over: [{id: a}, {no: b}], key: "${{ item.id }}"}', "the key of item 2"),
    ("{over: [a, b, a]}", "the key 'a' stands for 2 items, number 1 and 3"),
    ('{over: [{id: 1, n: 1}, {id: 1, n: 2}], key: "${{ item.id }}"}', "the key '1' stands for 2 items"),
    ("{over: {json: nul.json}}", "holds a NUL character"),
    ("{over: {json: huge.json}}", "100000 at most: write it to a file"),
    ('{over: [a], limit: "${{ params.text }}"}', "`limit` must evaluate to a whole number"),
    ("{over: [1, a], sort: item}", "cannot be compared"),
    ("{over: [{a: 1}], filter: item.b > 1}", "`filter` has no value for item 1"),
    ('{over: [""]}', "the key of item 1 is empty"),
]


@pytest.mark.scenario("C10")
@pytest.mark.parametrize(("spec", "words"), BAD, ids=[bad[1] for bad in BAD])
def test_a_bad_list_is_named_and_nothing_of_it_runs(project: Project, spec: str, words: str) -> None:
    (project.root / "broken.json").write_text('{"a": ')
    (project.root / "ok.json").write_text('{"a": 1}')
    (project.root / "nul.json").write_text('["fine", "a\\u0000b"]')
    (project.root / "huge.json").write_text(json.dumps(["small", "x" * 10_000_000]))
    project.pipeline(f"""
params: {{text: hello}}
steps:
  - id: m
    map: {spec}
    steps: [{{run: '{NOTE}'}}]
""")
    done = project.rerail("run", "pipeline.yaml", check=1)

    assert words in done.stderr
    assert ledger(project) == []
    state = project.json("show", "last")
    assert state["error"]["type"] in ("ItemsInvalid", "ExitCode", "OutputsInvalid")
    assert sum(path.stat().st_size for path in project.run_dir(state["run_id"]).glob("journal-*")) < 200_000


def test_nothing_that_matches_is_no_failure(project: Project) -> None:
    project.pipeline("""
steps:
  - {id: m, map: {over: {glob: "nothing-*"}}, steps: [{run: "false"}]}
  - {id: after, run: 'echo ${{ steps.m.outputs.total }} ${{ steps.m.outputs.results | length }} >> "$LEDGER"'}
""")
    done = project.rerail("run", "pipeline.yaml", check=0)

    assert "m: there are no items" in done.stderr
    assert ledger(project) == ["0 0"]


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
    assert "rerail dlq list" in done.stderr
    (project.root / "ok-b").touch()
    project.rerail("resume", check=0)

    assert sorted(ledger(project)[:3]) == ['m["a"] 1', 'm["b"] 1', 'm["b"] 2']
    assert ledger(project)[3:] == ['m["b"] 3', "after"]
    assert project.json("dlq", "list", "last") == []


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


def test_the_type_of_a_pipeline_is_told(project: Project) -> None:
    project.pipeline("steps: [{id: m, map: {over: [1]}, steps: [{run: 'true'}]}]")
    project.pipeline("steps: [{id: l, loop: {max_iterations: 1}, steps: [{run: 'true'}]}]", "loop.yaml")
    project.pipeline("steps: [{run: 'true'}]", "plain.yaml")
    for name, kind in (("pipeline.yaml", "mapreduce"), ("loop.yaml", "iterative"), ("plain.yaml", "standard")):
        project.rerail("run", name, "--id", kind, check=0)
        checkpoint = json.loads((project.run_dir(kind) / "checkpoint.json").read_text())
        assert checkpoint["pipeline_type"] == kind
        assert project.json("show", kind)["pipeline_type"] == kind


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
