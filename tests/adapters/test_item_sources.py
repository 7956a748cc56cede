"""What maps fan out over, read from where it is."""

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
    ("{glob: '${{ params.pattern }}'}", ["in/1.txt", "in/2.txt"]),
    ("{glob: '${{params.patterns}}'}", ["in/1.txt", "in/2.txt", "in/sub/deep.md"]),
    ("{glob: '${{ params.directory }}/*.txt'}", ["in/1.txt", "in/2.txt"]),
    ("{glob: '${{ params.odd }}/*'}", ["[i]n*/x"]),
    ("{lines: list.txt}", ["one", "two words", "  indented"]),
    ("{json: data.json, path: '$.sections[*].id'}", ["s1", "s2"]),
    ("{json: plain.json}", ["u", "v"]),
    ("{command: 'printf \"c1\\nc 2\\n\"'}", ["c1", "c 2"]),
    ("{command: 'echo [10,20]', as: json}", ["10", "20"]),
]


@pytest.fixture
def sources(project: Project) -> Project:
    (project.root / "in/sub").mkdir(parents=True)
    (project.root / "[i]n*").mkdir()
    (project.root / "[i]n*/x").touch()
    for name in ("in/2.txt", "in/1.txt", "in/sub/deep.md", "in/other"):
        (project.root / name).write_text(name)
    (project.root / "list.txt").write_text("one\n\ntwo words\r\n  indented\n")
    (project.root / "data.json").write_text('{"sections": [{"id": "s1", "n": 2}, {"id": "s2", "n": 1}]}')
    (project.root / "plain.json").write_text('["u", "v"]')
    return project


@pytest.mark.parametrize(("over", "wanted"), SOURCES, ids=[source[0] for source in SOURCES])
def test_a_map_fans_out_over_what_its_source_holds(sources: Project, over: str, wanted: list[str]) -> None:
    sources.pipeline(f"""
params:
  names: {{type: list, default: [x, y]}}
  pattern: "in/*.txt"
  patterns: {{type: list, default: ["in/[12].txt", "in/1*", "in/**/*.md"]}}
  directory: in
  odd: "[i]n*"
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


BAD = [
    ("{over: {lines: gone.txt}}", "gone.txt cannot be read: No such file"),
    ("{over: {json: broken.json}}", "broken.json is not JSON"),
    ("{over: {json: ok.json}}", "`over` must evaluate to a list, not a mapping"),
    ("{over: {command: 'echo x; exit 3'}}", "`over`: exited with code 3"),
    ("{over: {command: 'echo {', as: json}}", "not JSON"),
    ('{over: "${{ params.text }}"}', "`over` must evaluate to a list, not text"),
    ('{over: [{id: a}, {no: b}], key: "${{ item.id }}"}', "the key of item 2"),
    ("{over: [a, b, a]}", "the key 'a' names 2 items, numbers 1 and 3"),
    ('{over: [{id: 1, n: 1}, {id: 1, n: 2}], key: "${{ item.id }}"}', "the key '1' names 2 items"),
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

    assert "m: no items" in done.stderr
    assert ledger(project) == ["0 0"]


@pytest.mark.parametrize(
    "over",
    ['{glob: "${{ params.specs }}"}', "{command: 'cat list.txt'}", "{lines: list.txt}", '"${{ params.names }}"'],
)
def test_fewer_items_than_wanted_fail_the_map_until_there_are_enough(project: Project, over: str) -> None:
    (project.root / "list.txt").write_text("a.md\n")
    (project.root / "a.md").touch()
    project.pipeline(f"""
params: {{specs: "*.md", names: {{type: list, default: [a.md]}}}}
steps:
  - {{id: m, map: {{over: {over}, min_items: 2}}, steps: [{{run: 'echo ${{{{ item }}}} >> $LEDGER'}}]}}
""")
    failed = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    assert "m failed: 1 item, and `min_items` is 2" in failed.stderr
    assert ledger(project) == []

    (project.root / "list.txt").write_text("a.md\nb.md\n")
    (project.root / "b.md").touch()
    if "names" in over:
        project.rerail("resume", "r", check=1)
        return
    project.rerail("resume", "r", check=0)
    assert sorted(ledger(project)) == ["a.md", "b.md"]


def test_min_items_that_was_raised_holds_for_a_recorded_list(project: Project) -> None:
    text = "steps:\n  - {id: m, map: {over: [a, b], min_items: %d}, steps: [{run: 'echo ran >> $LEDGER; %s'}]}\n"
    project.pipeline(text % (0, "exit 1"))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    before = len(ledger(project))
    project.pipeline(text % (3, "exit 1"))

    failed = project.rerail("resume", "r", check=1)

    assert "2 items, and `min_items` is 3" in failed.stderr
    assert len(ledger(project)) == before


@pytest.mark.parametrize("value", ['{"a": 1}', "[1]", '""', '["a*", ""]'])
def test_a_glob_that_evaluates_to_no_pattern_is_refused(project: Project, value: str) -> None:
    project.pipeline(f"""
steps:
  - {{id: a, run: 'echo ''{{"v": {value}}}'' >> $RERAIL_OUTPUT'}}
  - {{id: m, map: {{over: {{glob: "${{{{ steps.a.outputs.v }}}}"}}}}, steps: [{{run: 'true'}}]}}
""")
    failed = project.rerail("run", "pipeline.yaml", check=1)

    assert "`glob` must evaluate to a pattern or a list of patterns" in failed.stderr
