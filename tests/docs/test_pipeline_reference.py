"""docs/reference/pipeline.md against the schema, the loader and the model: one row per option, true defaults, examples that load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from rerail.artifacts.seal import DEFAULT_KEEP
from rerail.core import model
from rerail.core.expressions.sandbox import FILTERS, METHODS, TESTS
from rerail.errors import PipelineInvalid
from rerail.loaders.actions import KINDS
from rerail.loaders.schema import schema
from rerail.loaders.yaml import load_pipeline

PAGE = Path(__file__).parent.parent.parent / "docs/reference/pipeline.md"
TEXT = PAGE.read_text(encoding="utf-8")
COLUMNS = ["option", "type", "default", "meaning", "example"]
ONE_OF = "exactly one"  # of several options that exclude each other


class Row(NamedTuple):
    """One option as the page describes it."""

    heading: str
    option: str
    type: str
    default: str
    meaning: str
    example: str


class Place(NamedTuple):
    """Where the options under a heading stand: in the schema, in a smallest pipeline, in the model."""

    schema: tuple[str, ...]  # paths as `mappings` names them; the first is the one that is compared in detail
    before: str  # the lines of a pipeline up to the options
    indent: int
    others: tuple[str, ...] = ()  # options without which the mapping is not valid; one that is tried replaces its own
    struct: type[msgspec.Struct] | None = None


STEP = "params: {level: draft, count: 1}\nsteps:\n  - {id: plan, run: make}\n  - {id: draft, run: make}\n  -\n"
MAPPED = f"{STEP}    steps: [{{id: review, run: make}}]\n"
PLACES = {
    "Pipeline": Place(("",), "", 0, ("steps: [{id: build, run: make}]",), model.Pipeline),
    "`params`": Place(("params.*",), "steps: [{run: make}]\nparams:\n  level:\n", 4, struct=model.Param),
    "`defaults`": Place(("defaults",), "steps: [{run: make}]\ndefaults:\n", 2, struct=model.Step),
    "`checkpoint`": Place(("checkpoint",), "steps: [{run: make}]\ncheckpoint:\n", 2, struct=model.CheckpointPolicy),
    "`concurrency`": Place(
        ("concurrency",),
        "params: {level: a}\nsteps: [{run: make}]\nconcurrency:\n",
        2,
        ("group: x",),
        model.Concurrency,
    ),
    "Kinds of steps": Place(("steps",), STEP, 4, struct=None),
    "Options of steps": Place(("steps",), STEP, 4, ("run: make",), model.Step),
    "`write`": Place(("steps.write",), f"{STEP}    write:\n", 6, ("path: x",), model.Write),
    "`approve`": Place(("steps.approve",), f"{STEP}    approve:\n", 6, ("message: x",), model.Approve),
    "`outputs`": Place(("steps.outputs.*",), f"{STEP}    run: make\n    outputs:\n      x:\n", 8),
    "`retry`": Place(
        ("steps.retry", "defaults.retry"), f"{STEP}    run: make\n    retry:\n", 6, ("attempts: 2",), model.Retry
    ),
    "`rate_limit`": Place(
        ("steps.rate_limit", "defaults.rate_limit"),
        f"{STEP}    run: make\n    rate_limit:\n",
        6,
        struct=model.RateLimit,
    ),
    "`budget`": Place(
        ("steps.budget", "budget", "steps.map.item_budget"),
        f"{STEP}    run: make\n    budget:\n",
        6,
        ("cost_usd: 1", "tokens: 1"),
        model.Budget,
    ),
    "`map`": Place(("steps.map",), f"{MAPPED}    map:\n", 6, ("over: [a]",), model.Map),
    "`over`": Place(("steps.map.over",), f"{MAPPED}    map:\n      over:\n", 8, struct=model.Source),
    "`loop`": Place(("steps.loop",), f"{MAPPED}    loop:\n", 6, ("max_iterations: 1",), model.Loop),
    "Artifacts and inputs": Place(
        ("steps.artifacts", "steps.inputs"),
        f"{STEP}    run: make\n    artifacts:\n",
        6,
        ("path: out.md",),
        model.Artifact,
    ),
}
# Options that go only with another one.
WITH: dict[tuple[str, str], tuple[str, ...]] = {
    ("Kinds of steps", "with"): ("python: builder:build",),
    ("Kinds of steps", "steps"): ("map: {over: [a]}",),
    ("Kinds of steps", "map"): ("steps: [{run: make}]",),
    ("Kinds of steps", "loop"): ("steps: [{run: make}]",),
    ("`over`", "path"): ("json: index.json",),
    ("`over`", "as"): ("command: make list",),
}
# Defaults that no value in the file can stand for, and the words for them.
IN_WORDS = {
    ("Pipeline", "name"): "file name without extension",
    ("Options of steps", "id"): "`step-1`, `step-2`, … by position",
    ("Options of steps", "needs"): "the previous step",
    ("Options of steps", "cwd"): "directory of the file",
    ("`map`", "key"): "the item itself, or its digest",
    ("`map`", "parallel"): "value of `--parallel`",
    ("Artifacts and inputs", "min_size"): "1 byte (`inputs`: 0)",
    ("Artifacts and inputs", "keep"): f"up to {DEFAULT_KEEP >> 20} MiB a file",
}
MEMBER = {"while": "while_", "finally": "finally_", "as": "form"}  # names of options that Python does not take


def tables() -> Iterator[tuple[str, list[list[str]]]]:
    """Every table of the page under its heading."""
    heading, rows = "", []
    for line in [*TEXT.splitlines(), ""]:
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            rows.append([cell.strip().replace("\\|", "|") for cell in cells])
            continue
        if rows:
            yield heading, rows
            rows = []
        if line.startswith("#"):
            heading = line.lstrip("# ")


def code(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


ROWS = [
    Row(heading, code(cells[0])[0], cells[1], cells[2], cells[3], code(cells[4])[0])
    for heading, rows in tables()
    if rows[0] == COLUMNS
    for cells in rows[2:]
]


def mappings(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping with named options in the schema, by the options that lead to it."""
    if "properties" in node:
        yield path, node["properties"]
    for name, inner in node.get("properties", {}).items():
        yield from mappings(inner, f"{path}.{name}".lstrip("."))
    for inner in node.get("anyOf", ()):
        yield from mappings(inner, path)
    for key, ending in (("additionalProperties", ".*"), ("items", "")):
        if isinstance(node.get(key), dict):
            yield from mappings(node[key], path + ending)


def options() -> dict[str, dict[str, Any]]:
    """The options of every place; `steps` stands for steps wherever they are."""
    whole = schema()
    found: dict[str, dict[str, Any]] = {}
    steps = whole["definitions"]["steps"]["items"]
    for path, properties in (*mappings(whole), *mappings(steps, "steps")):
        found.setdefault(path, {}).update(properties)
    return found


def pipeline(row: Row, line: str | None) -> str:
    """The smallest pipeline in which an option can stand, with that line or without the option."""
    place = PLACES[row.heading]
    others = WITH.get((row.heading, row.option), place.others)
    lines = [other for other in others if not other.startswith(f"{row.option}:")]
    if line is not None:
        lines.append(line)
    if not lines:
        return place.before.rstrip("\n") + " {}\n" if place.before else ""
    return place.before + "".join(f"{' ' * place.indent}{one}\n" for one in lines)


def loaded(text: str, directory: Path) -> model.Pipeline:
    (directory / "greet.yaml").write_text("params: {name: Bob}\nsteps: [{run: make}]\n", encoding="utf-8")
    return load_pipeline(text.encode(), str(directory / "p.yaml"))


def ids(row: Row) -> str:
    return f"{row.heading} {row.option}".replace("`", "")


def test_every_option_of_every_place_has_exactly_one_row() -> None:
    there = options()
    claimed = [path for place in PLACES.values() for path in place.schema]
    assert sorted(set(claimed)) == sorted(there), "places of the schema without a table, or tables without a place"
    assert {row.heading for row in ROWS} == set(PLACES)

    for path in there:
        rows = [row for row in ROWS if path in PLACES[row.heading].schema]
        if path == "steps.inputs":
            rows = [row for row in rows if "`artifacts` only" not in row.meaning]
        assert sorted(row.option for row in rows) == sorted(there[path]), path


def test_rows_are_whole() -> None:
    for row in ROWS:
        assert all(row), row
        assert row.example.startswith(f"{row.option}: "), row
        assert row.meaning.endswith((".", "?")), row


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_an_example_loads_and_is_not_the_default(row: Row, tmp_path: Path) -> None:
    given = loaded(pipeline(row, row.example), tmp_path)

    try:
        without = loaded(pipeline(row, None), tmp_path)
    except PipelineInvalid:
        assert row.default in ("required", ONE_OF), "the pipeline is not valid without it"
    else:
        assert row.default not in ("required", ONE_OF), "the pipeline is valid without it"
        if row.option != "from":  # it has one value
            assert given != without


@pytest.mark.parametrize("row", [row for row in ROWS if row.default not in ("required", ONE_OF)], ids=ids)
def test_a_stated_default_is_the_default(row: Row, tmp_path: Path) -> None:
    if (row.heading, row.option) in IN_WORDS:
        assert row.default == IN_WORDS[row.heading, row.option]
    elif row.default == "none":
        struct = PLACES[row.heading].struct
        assert struct is not None
        field = {field.name: field for field in msgspec.structs.fields(struct)}[MEMBER.get(row.option, row.option)]
        assert not field.required
        assert field.default is not False
        assert not field.default, "the model has a default"
    else:
        (value,) = code(row.default)
        assert row.default == f"`{value}`"
        assert loaded(pipeline(row, f"{row.option}: {value}"), tmp_path) == loaded(pipeline(row, None), tmp_path)


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_a_stated_type_is_the_type(row: Row) -> None:
    there = options()
    node = there[PLACES[row.heading].schema[0]][row.option]
    choices = node.get("enum") or ([node["const"]] if "const" in node else [])
    types: dict[str, bool] = {
        **{kind: node.get("type") == kind for kind in ("boolean", "integer", "number")},
        "duration": node == there["checkpoint"]["interval"],
        "steps": node == there[""]["steps"],
        ", ".join(f"`{choice}`" for choice in choices): bool(choices),
    }

    true = [name for name, is_it in types.items() if is_it]
    assert [row.type] == true if true else row.type not in types
    assert choices or not re.fullmatch(r"(`\w+`(, )?)+", row.type)


def may_hold_expressions(row: Row) -> bool:
    return re.search("template|script|expression", row.type) is not None


def is_judged_elsewhere(row: Row) -> bool:
    """Whether the loader finds a wrong name in an option of another type: in parts that have rows of their own, or too strictly."""
    if row.heading == "Artifacts and inputs":
        return row.option != "path"  # names are checked in all of an artifact, and filled in in its path alone
    if row.heading == "`write`":
        return row.option == "mode"  # likewise
    return row.option in ("steps", "write")


@pytest.mark.parametrize(
    "row", [row for row in ROWS if may_hold_expressions(row) or not is_judged_elsewhere(row)], ids=ids
)
def test_expressions_may_stand_where_the_type_says(row: Row, tmp_path: Path) -> None:
    value = "{x: '${{ params.nope }}'}" if row.type.startswith("mapping of") else "${{ params.nope }}"
    problems = ""
    try:
        loaded(pipeline(row, f"{row.option}: {value}"), tmp_path)
    except PipelineInvalid as error:
        problems = str(error)

    assert ("no param `nope`" in problems) == may_hold_expressions(row), problems


def rows_of(first: str, heading: str) -> list[list[str]]:
    (found,) = [rows[2:] for name, rows in tables() if name == heading and rows[0][0] == first]
    return found


STEP_OPTIONS = [row for row in ROWS if row.heading == "Options of steps"]
SMALLEST = {row.option: row.example for row in ROWS if row.heading == "Kinds of steps"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_takes_the_options_that_its_row_says(kind: str, tmp_path: Path) -> None:
    (said,) = [cells[1] for cells in rows_of("kind", "Options of steps") if kind in code(cells[0])]
    named = [row.option for row in STEP_OPTIONS] if said == "all" else code(said)
    body = f"\n    {SMALLEST['steps']}" if kind in ("map", "loop") else ""
    taken = []
    for row in STEP_OPTIONS:
        try:
            loaded(f"{STEP}    {SMALLEST[kind]}{body}\n    {row.example}\n", tmp_path)
        except PipelineInvalid:
            continue
        taken.append(row.option)

    assert sorted(taken) == sorted(named)


@pytest.mark.parametrize("hooks", ["finally:\n", "    on_failure:\n"])
def test_a_hook_takes_what_the_page_says(hooks: str, tmp_path: Path) -> None:
    begin = f"{STEP}    run: make\n{hooks}"
    indent = "      " if hooks.startswith(" ") else "  "
    kinds = []
    for kind in KINDS:
        body = f"\n{indent}  {SMALLEST['steps']}" if kind in ("map", "loop") else ""
        try:
            loaded(f"{begin}{indent}- {SMALLEST[kind]}{body}\n", tmp_path)
        except PipelineInvalid:
            continue
        kinds.append(kind)
    refused = []
    for row in STEP_OPTIONS:
        try:
            loaded(f"{begin}{indent}- run: make\n{indent}  {row.example}\n", tmp_path)
        except PipelineInvalid:
            refused.append(row.option)

    (said,) = re.findall(r"are hooks: (.*?) steps without (.*?)\.$", TEXT, re.MULTILINE)
    assert (kinds, refused) == (code(said[0]), code(said[1]))


def test_what_expressions_can_call_is_listed() -> None:
    named = {cells[0].split()[0]: code(cells[1]) for cells in rows_of("kind", "Filters, tests and methods")}
    other_names = {"equalto", "lessthan", "greaterthan"}

    assert sorted(named["filters"]) == sorted(FILTERS)
    assert sorted(named["tests"]) == sorted(name for name in TESTS if name.isalpha() and name not in other_names)
    assert sorted(named["methods"]) == sorted(METHODS)


def test_the_example_at_the_top_loads(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)

    assert len(loaded(example, tmp_path).steps) == 4


def test_links_to_headings_lead_somewhere() -> None:
    docs = PAGE.parent.parent
    for page in docs.rglob("*.md"):
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
            text = ((page.parent / target) if target else page).read_text(encoding="utf-8")
            anchors = [
                re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
                for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            ]
            assert anchors.count(anchor) == 1, f"{page.name} → {target}#{anchor}"
