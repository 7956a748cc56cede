"""What expressions may call, all of it, with hostile arguments, in processes that the system limits."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rerail.core.expressions import language, sandbox
from rerail.core.expressions.language import ExpressionError
from rerail.core.expressions.render import StepResults
from rerail.core.run_state import RunState, UnitState
from rerail.core.unit_id import UnitId
from tests.conftest import Project
from tests.sweeps import Sample

# What Jinja has and expressions do not. A new release may add to it: then decide, and put it here or into the sandbox.
ABSENT_FILTERS = set(
    "attr batch capitalize center count d e escape filesizeformat forceescape format groupby indent pprint random safe slice"
    " striptags truncate urlencode urlize wordcount wordwrap xmlattr".split()
)
ABSENT_TESTS = {"callable", "escaped", "filter", "sameas", "test"}
ABSENT_METHODS = set(
    "append as_integer_ratio bit_count bit_length capitalize casefold center clear conjugate copy denominator encode expandtabs"
    " extend format format_map from_bytes fromhex fromkeys hex imag insert is_integer isalnum isalpha isascii isdecimal isdigit"
    " isidentifier islower isnumeric isprintable isspace istitle isupper join ljust maketrans numerator partition pop popitem"
    " real remove removeprefix removesuffix replace reverse rfind rindex rjust rpartition rsplit setdefault sort swapcase title"
    " to_bytes translate update zfill from_number".split()
)


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_everything_that_could_be_called_has_been_looked_at() -> None:
    fresh = ImmutableSandboxedEnvironment()
    ours = sandbox.environment()

    assert set(fresh.filters) == set(sandbox.FILTERS) | ABSENT_FILTERS
    assert set(fresh.tests) == set(sandbox.TESTS) | ABSENT_TESTS
    assert set(ours.filters) == set(sandbox.FILTERS)
    assert set(ours.tests) == set(sandbox.TESTS)
    assert ours.globals == {}
    methods = set().union(*map(public, (str, list, tuple, dict, int, float, bool, type(None))))
    assert methods - ABSENT_METHODS == sandbox.METHODS


VALUES = [
    "params.text",
    "params.other",
    "params.list",
    "params.texts",
    "params.object",
    "params.number",
    "1",
    "'1'",
    "1.5",
    "[]",
]
FIRST = ["params.text", "params.list", "params.number", "-params.number", "'a'", "''", "params.object", "30000000"]
SECOND = ["params.text", "params.number", "'floor'", "'a'", "params.list"]
NAMED = {
    "round": ["precision=30000000, method='floor'", "precision=-params.number, method='ceil'", "30000000, 'ceil'"],
    "tojson": ["indent=params.number"],
    "int": ["base=params.number", "default=params.text, base=16", "0, 36"],
    "sum": ["start=[]", "attribute=params.text", "start=params.text"],
    "join": ["params.text, attribute=params.text", "attribute='a.b'"],
    "sort": ["attribute=params.text", "attribute='a,b'", "case_sensitive=true"],
    "map": ["'round', 30000000, 'floor'", "'replace', 'a', params.text", "'join', params.text", "'map', 'map', 'list'",
            "attribute=params.text", "'tojson'", "'string'", "'list'", "'trim', params.text"],
    "select": ["'in', params.list", "'in', params.text", "'eq', params.text", "'divisibleby', 0"],
    "reject": ["'in', params.list", "'ne', params.list"],
    "selectattr": ["params.text", "'a', 'in', params.list"],
    "replace": ["'', params.text", "'a', params.text", "params.text, params.other", "'a', params.text, params.number"],
    "trim": ["params.other", "params.text ~ 'b'"],
    "default": ["params.text, true"],
}  # fmt: skip
REPEATED = " ~ ".join(["params.large"] * 120)
OPERATORS = [
    "params.number ** params.number", "2 ** 1000 ** 1000", "(999999 ** 1000) ** 1000", " * ".join(["(999999 ** 1000)"] * 100),
    "params.large * params.number", "params.list * params.number", "params.number * params.list", "[0] * params.number",
    "'%1000000000d' % 1", "'%s' % params.large", "'%*d' % (params.number, 1)", REPEATED, REPEATED.replace("~", "+"),
    "[" + ", ".join(["params.large"] * 120) + "]", "([" + ", ".join(["params.list"] * 120) + "])|tojson",
    "[" + ", ".join(["params.large"] * 120) + "]|join", " + ".join(["params.list"] * 120), "params.large // 1", "-params.large",
    "{'a': params.large}|string ~ " + REPEATED, "params.number // 0", "params.number % 0", "1e308 * 1e308", "10 ** -1000",
    "params.list|map('list')|list", "params.texts|map('replace', 'a', params.large)|list", "params.large|list|list|list|list|list",
    "params.list|select('in', params.list)|list", "params.texts|map('upper')|map('lower')|join(params.large)",
    "params.large|map('replace', 'a', params.large)|join", "params.large|map('tojson')|map('string')|sum", "[[1]]|sum(start=[])",
    "params.list|map('string')|sort(attribute='x')|unique|list", "params.texts|join(params.large)|length", "('a' ~ params.large)|int(base=36)",
    "params.list[::-1][::-1]|reverse|list", "params.large[::-1]", "params.large == params.other", "params.large in params.other",
    "[params.list, params.list]|max", "params.list|map(attribute='a.b.c')|list", "params.object|dictsort|list|tojson|length",
]  # fmt: skip
ARGUMENTS = [
    "",
    "params.text",
    "params.other",
    "'a'",
    "''",
    "params.number",
    "params.list",
    "params.text, params.number",
    "'a', -1",
]


def calls() -> dict[str, list[str]]:
    """Every filter, test, method and operator, and the expressions to try it with."""
    found: dict[str, list[str]] = {"operators": OPERATORS}
    for name in sandbox.FILTERS:
        made = [f"{value}|{name}" for value in VALUES] + [
            f"{value}|{name}({more})" for value, more in product(VALUES, FIRST)
        ]
        made += [f"{value}|{name}({a}, {b})" for value, a, b in product(VALUES[:4:2], FIRST[:4], SECOND[:3])]
        made += [f"{value}|{name}({more})" for value, more in product(VALUES, NAMED.get(name, []))]
        found[f"filter {name}"] = made
    for name in sandbox.TESTS:
        if name.isalpha():
            made = [f"{value} is {name}" for value in VALUES]
            found[f"test {name}"] = made + [f"{value} is {name}({more})" for value, more in product(VALUES, FIRST)]
    for name in sandbox.METHODS:
        found[f"method {name}"] = [f"{value}.{name}({more})" for value, more in product(VALUES[:7], ARGUMENTS)]
    return found


CPU_SECONDS = 60
MEMORY = 1_500_000_000
CHILD = """
import json, os, resource, sys
from rerail.core.expressions import sandbox
from jinja2 import TemplateError
size = 20_000
names = {"params": {"text": "a" * size, "other": "b" * (size - 1) + "a", "list": list(range(2_000)), "number": 10**9,
                    "texts": ["a" * 100] * 1_000, "object": {f"k{n}": n for n in range(1_000)}, "large": "a" * 1_000_000}}
sandbox.environment()
for name, expressions in json.load(sys.stdin).items():
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU, CPU))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        for expression in expressions:
            try:
                value = sandbox.evaluated(expression, names)
                if not sandbox.is_undefined(value):
                    sandbox.as_text(value)
            except MemoryError:
                print("no memory left:", name, expression[:100], flush=True)
                os._exit(1)
            except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, TemplateError):
                pass
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if status:
        print("ended with", status, name, flush=True)
"""


@pytest.mark.privileges
@pytest.mark.scenario("J8")
@pytest.mark.timeout(2400)
def test_whatever_is_called_with_whatever_takes_a_bounded_time_and_memory(sample: Sample) -> None:
    code = f"CPU, MEMORY = {CPU_SECONDS}, {MEMORY}\n{CHILD}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(dict(sample.of(list(calls().items()), 6))),
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "expression",
    ["1|round(30000000, 'floor')", "2 ** 1000", "'a' ~ 'b'", "[3, 1]|sort|join(',')", "'x'.upper()", "1 is odd", "'%9999999d' % 1",
     "'a'|replace('a', 'b')", "[1, 2]|map('round', 30000000, 'floor')|list", "not (1 > 2 and 'a' in 'abc')"],
)  # fmt: skip
def test_nothing_is_evaluated_when_an_expression_is_checked(expression: str) -> None:
    evaluating = ("call_binop", "call_unop", "joined", "call_filter", "call_test", "as_const", "call")
    own = {function.__wrapped__.__code__ for function in sandbox.environment().filters.values() if _has_code(function)}
    seen: list[str] = []

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "call" and (frame.f_code.co_name in evaluating or frame.f_code in own):
            seen.append(frame.f_code.co_name)

    known = language.VisibleNames(params=(), steps=(), all_steps=())
    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        assert language.check(expression, known) is None
    finally:
        sys.setprofile(before)
    assert seen == []


def _has_code(function: Any) -> bool:
    return hasattr(function.__wrapped__, "__code__")


@pytest.mark.parametrize("expression", ["1 is callable", "params is sameas(1)", "1|center(9)", "range(9)", "lipsum()"])
def test_what_is_not_there_is_named_when_the_file_is_loaded(expression: str) -> None:
    wrong = language.check(expression, language.VisibleNames(params=(), steps=(), all_steps=()))

    assert wrong is not None
    assert wrong.message.startswith("unknown")
    assert wrong.piece in expression


@pytest.mark.scenario("J8")
def test_a_file_with_a_bomb_in_a_condition_is_checked_at_once_and_its_step_fails(project: Project) -> None:
    project.pipeline("""steps: [{id: b, when: '(1 | round(30000000, "floor")) == 1', run: "true"}]\n""")
    limited = ["sh", "-c", 'ulimit -t 60; exec "$@"', "sh", sys.executable, "-m", "rerail"]

    checked = subprocess.run([*limited, "check", "pipeline.yaml"], cwd=project.root, env=project.env, check=False)
    assert checked.returncode == 0
    ran = subprocess.run(
        [*limited, "run", "pipeline.yaml"], cwd=project.root, env=project.env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert "`round` has a precision of at most 100 digits" in ran.stderr


@pytest.mark.sweep("all")
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("7.25|round(1)", 7.2),
        ("7.25|round(1, 'ceil')", 7.3),
        ("7|round", 7),
        ("1234|round(-2)", 1200),
        ("'12.5'|int", 12),
        ("'x'|int(3)", 3),
        ("'ff'|int(base=16)", 255),
        ("'1.5'|float", 1.5),
        ("'no'|float(2.0)", 2.0),
        ("[1, 2.5]|sum", 3.5),
        ("[{'a': 1}, {'a': 2}]|sum(attribute='a')", 3),
        ("[1, 'a', none]|join('-')", "1-a-None"),
        ("[{'a': 1}, {'a': 2}]|join(',', attribute='a')", "1,2"),
        ("' xx '|trim", "xx"),
        ("'xxaxx'|trim('x')", "a"),
        ("'abc'|replace('b', '-')", "a-c"),
        ("[1, 2] + [3]", [1, 2, 3]),
        ("'a' + 'b' ~ 1", "ab1"),
        ("[3, 1, 2]|sort|map('string')|list", ["1", "2", "3"]),
        ("['a', 'b']|select('in', ['b', 'c'])|list", ["b"]),
        ("{'b': 1, 'a': 2}.keys()", ["b", "a"]),
    ],
)
def test_what_is_left_works_as_it_does_in_jinja(expression: str, expected: Any) -> None:
    assert sandbox.evaluated(expression, {}) == expected


NESTED = {"item": {"name": "a", "deep": {"n": 1}, "none": None, "text": "x", "list": [1]}}


@pytest.mark.sweep("all")
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("item.File.score | default(0)", 0),
        ("item['File']['score'][0].x | default('d')", "d"),
        ("item.none.x.y | default(0)", 0),
        ("item.list[7].x | default(0)", 0),
        ("item.text.x.y | default(0)", 0),
        ("item.File.score is defined", False),
        ("item.File.score is undefined", True),
        ("item.deep.n | default(0)", 1),
        ("item.File.score | default(item.deep.n)", 1),
        ("(item.File.score | default(0)) >= 3", False),
        ("[item] | selectattr('deep.n', 'defined') | list | length", 1),
        ("[item] | selectattr('File.score', 'defined') | list | length", 0),
    ],
)
def test_a_default_helps_however_deep_a_name_is_missing(expression: str, expected: Any) -> None:
    assert sandbox.evaluated(expression, NESTED) == expected


@pytest.mark.sweep("all")
@pytest.mark.parametrize(
    "expression",
    [
        "item.File",
        "item.File.score",
        "item.File.score + 1",
        "item.File.score > 1",
        "item.File.score == 1",
        "not item.File.score",
        "item.File.score or 1",
        "1 if item.File.score else 2",
        "item.File.score | int",
        "item.File.score | tojson",
        "item.File.score | list",
        "item.File.score | length",
        "item.File.score | string",
        "item.File.score is none",
        "item.File.score is string",
        "item.File.score is mapping",
        "item.File.score()",
        "[item.File.score]",
        "{'a': item.File}",
        "item.File.score ~ 'x'",
        "[item] | selectattr('File.score') | list",
        "[item] | sum(attribute='File.score')",
        "item.list | map('default', item.File.score) | list | first",
        "item[item.File.score]",
    ],
)
def test_a_name_that_is_missing_is_an_error_without_a_default(expression: str) -> None:
    with pytest.raises(ExpressionError, match=r"there is no `File` \(there: name, deep, none, text, list\)") as caught:
        language.evaluate(expression, scope_of(NESTED))
    assert "Missing" not in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("item.none.x", "null has no `x`"),
        ("item.text.x.y", "a text has no `x`"),
        ("item.list[3]", "a list of 1 has no element 3"),
        ("item.deep.n.x", "a number has no `x`"),
        ("steps.set.outputs.nope", "step set set no output `nope` (it set: x, y)"),
        ("steps.set.outputs.nope.deeper", "step set set no output `nope` (it set: x, y)"),
        ("steps.bare.outputs.x", "step bare set no output `x` (it set none)"),
        ("steps.skipped.outputs.x + 1", "step skipped was skipped, so it has no output `x`"),
        ("steps.failed.outputs.x", "step failed failed, so it has no output `x`"),
        ("steps.pending.outputs.x", "step pending has not run yet, so it has no output `x`"),
        ("steps.skipped.outputs['my x']", "step skipped was skipped, so it has no output `my x`"),
    ],
)
def test_what_is_missing_says_why(expression: str, words: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        language.evaluate(expression, scope_of(NESTED))

    assert str(caught.value) == f"`{expression}`: {words}"


@pytest.mark.parametrize("member", ["_why_missing", "_step", "_status", "_is_behind", "__class__"])
def test_members_of_our_own_are_not_seen(member: str) -> None:
    for value in ("steps.set.outputs", "steps.skipped.outputs.x"):
        with pytest.raises(ExpressionError):
            language.evaluate(f"{value}.{member}", scope_of(NESTED))


def test_outputs_are_a_plain_object_to_everything_else() -> None:
    assert language.evaluate("steps.set.outputs | tojson", scope_of({})) == '{"x":1,"y":2}'
    assert language.evaluate("steps.set.outputs", scope_of({})) == {"x": 1, "y": 2}
    assert language.evaluate("steps.set.outputs.items() | list | length", scope_of({})) == 2


def scope_of(more: dict[str, Any]) -> language.Scope:
    state = RunState()
    for step, status, outputs in (
        ("set", "completed", {"x": 1, "y": 2}),
        ("bare", "completed", {}),
        ("skipped", "skipped", {}),
        ("failed", "failed", {}),
    ):
        state.units[UnitId(step)] = UnitState(status=status, outputs=outputs)  # type: ignore[arg-type]
    return language.Scope(params={}, env={}, steps=StepResults(state), run={}, more=more)
