"""Files that are nearly right, by mutation of good ones: an error in a frame or none, never a bug, never slow."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rerail.cli.render.diagnostics import framed, total
from rerail.cli.render.terminal import Terminal
from rerail.core.expressions import language, syntax
from rerail.core.expressions.language import VisibleNames
from rerail.errors import Diagnostic
from rerail.loaders.yaml import inspected
from tests.e2e.test_hostile_input import FILES

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted(path.read_text() for path in (ROOT / "examples").rglob("*.yaml"))
GOOD = [
    *EXAMPLES,
    (
        "params: {n: 1, topic: {required: true}}\nsteps:\n  - {id: a, run: 'echo ${{ params.topic }}'}\n"
        "  - id: m\n    map: {over: [1, 2], key: '${{ item }}', parallel: 2}\n    steps:\n      - run: ./x.sh ${{ item }}\n"
        "  - id: l\n    loop: {max_iterations: 3, until: \"steps.t.outputs.n == '3'\"}\n    steps:\n      - id: t\n"
        '        run: |\n          echo "n=${{ loop.iteration }}" >> $RERAIL_OUTPUT\n  - approve: really?\n'
    ),
]
PIECES = [
    *"\t \n:-{}[]'\"|>&*!%@`#,?=$\\\r\0\x07\x85\u2028\u202e\U0001f600日",
    *(
        "${{",
        "}}",
        ": ",
        "- ",
        "&&",
        "||",
        "{{ params.n }}",
        "${item.x}",
        "<<: *a",
        "&a ",
        "--- ",
        "\n...\n",
        "if: ",
        "needs: ",
    ),
    *(
        "steps.a.status == 'failure'",
        " is match('x')",
        " | uper",
        "x" * 3000,
        "[" * 200,
        "(" * 200,
        "1e999",
        "./gone.sh\n",
    ),
]
CPU_SECONDS = 1.0
WIDTHS = (0, 20, 80)


def shown(data: bytes) -> list[Diagnostic]:
    """Inspect a file and draw what is found; fail if that takes long or holds anything that steers a terminal."""
    before = time.process_time()
    _, _, problems = inspected(data, "p.yaml", strict=True)
    found = problems.diagnostics
    drawn = [line for width in WIDTHS for line in framed(found, Terminal(width=width))]
    assert time.process_time() - before < CPU_SECONDS
    assert all(line.isprintable() and len(line) < 3000 for line in drawn)
    for one in found:
        assert one.message
        assert one.line >= 1 or one.code == "more"
        assert one.column <= len(one.source) + 1
        assert one.end <= len(one.source) + 1
    assert total(found) == "" or "p.yaml" in total(found)
    return found


@st.composite
def mutated(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(GOOD))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        end = min(at + draw(st.sampled_from([0, 0, 1, 2, 10, 100])), len(text))
        text = text[:at] + draw(st.sampled_from([*PIECES, "", text[end : end + 40]])) + text[end:]
    return text


@pytest.mark.scenario("J6", "J8")
@given(mutated())
@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_a_mutation_of_a_good_file_is_understood_or_explained(text: str) -> None:
    shown(text.encode("utf-8", errors="surrogatepass"))


@pytest.mark.scenario("J8")
@given(
    st.lists(
        st.sampled_from([*PIECES, "params", ".", "n", "steps", "a", "(", ")", "and", "not", " ", "==", "1"]), max_size=12
    )
)
@settings(max_examples=500, deadline=None, derandomize=True)
def test_every_expression_is_understood_or_explained(pieces: list[str]) -> None:
    expression = "".join(pieces).strip()
    visible = VisibleNames(params=("n",), steps=("a",), all_steps=("a", "b"))
    before = time.process_time()
    found = language.check(expression, visible)
    list(language.warnings(expression, visible))
    syntax.explain(expression, "")
    assert time.process_time() - before < CPU_SECONDS
    if found is not None and found.piece:
        assert expression[found.offset :].startswith(found.piece)


@pytest.mark.sweep("all")
@pytest.mark.scenario("J6", "J8")
@pytest.mark.parametrize(("name", "words"), FILES)
def test_a_hostile_file_is_explained_at_once(name: str, words: str) -> None:
    data = FILES[name, words].encode("latin-1" if name == "latin-1" else "utf-8")
    if len(data) < 5_000_000:  # a larger one is not read
        assert any(one.severity == "error" for one in shown(data))


NAME = "abcdefghijklmnopqrstuvwxyz" * 2 + "abcdef"
CROWDS = {
    "needs that are nearly there": [f"{{id: {NAME}{n:05}, run: x, needs: [{NAME}x{n:04}]}}" for n in range(5000)],
    "names that are nearly there": [f"{{id: {NAME}{n:05}, when: steps.{NAME}x{n:04}.status}}" for n in range(2000)],
    "keys of other tools": ["{" + ", ".join(f"script{n}{k}: x" for k in range(20)) + "}" for n in range(500)],
    "foreign expressions": ["{run: './a.sh && ${item.x} {{ params.x }}'}"] * 5000,
    "operators of other languages": ["{run: x, when: steps.step-1.status == 'failure' && x}"] * 2000,
    "statuses of other tools": ["{run: x, when: \"run.status == 'failure'\"}"] * 1000,
}


@pytest.mark.sweep("all")
@pytest.mark.parametrize("name", CROWDS)
def test_guesses_are_bounded(name: str) -> None:
    assert shown(("steps:\n" + "".join(f"  - {step}\n" for step in CROWDS[name])).encode())


def test_warnings_never_hide_an_error() -> None:
    steps = "".join("  - {run: 'echo ${item.x}'}\n" for _ in range(300))
    found = shown(f"steps:\n{steps}  - {{runn: x}}\n".encode())

    assert [one.message for one in found if one.code == "unknown-key"] == ["unknown key `runn`"]
