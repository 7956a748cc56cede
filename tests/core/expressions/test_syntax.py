"""Expressions that cannot be parsed, names and functions that do not exist: the piece at fault, and the help."""

from __future__ import annotations

import pytest

from rerail.core.expressions import language
from rerail.core.expressions.language import VisibleNames

VISIBLE = VisibleNames(params=("topic",), steps=("a", "my-step"), all_steps=("a", "late", "my-step"))

# expression → (piece, message, help)
TABLE = {
    "params.topic = 'x'": ("=", "`=` is no operator", "use `==`"),
    "params.topic === 'x'": ("===", "`===` is no operator", "use `==`"),
    "params.topic && true": ("&&", "`&&` is no operator", "use `and`"),
    "params.topic || true": ("||", "`||` is no operator", "use `or`"),
    "!params.topic": ("!", "`!` is no operator", "use `not`"),
    "params.topic ? 1 : 2": ("?", "`?` is no operator", "A if CONDITION else B"),
    "${{ params.topic }}x": ("${{", "`${{` is no operator", "an expression already"),
    "params.topic == 'x": ("'", "the quote ' is never closed", "close it"),
    "(params.topic": ("(", "`(` is never closed", "`)`"),
    "params.topic)": (")", "`)` closes nothing", "remove it"),
    "params.topic ==": ("==", "a value is missing after `==`", ""),
    "== 'x'": ("==", "a value is missing before `==`", ""),
    "params..topic": (".", "a value is missing before `.`", ""),
    "params.topic 'x'": ("'x'", "two values follow each other", "operator"),
    "params.topic | round(method='floor') = 1": ("=", "`=` is no operator", "use `==`"),
    "params.topic | uper": ("uper", "unknown filter `uper`", "did you mean `upper`?"),
    "params.topic | map('uper')": ("uper", "unknown filter `uper`", "did you mean `upper`?"),
    "params.topic is match('h.*')": ("match", "unknown test `match`", "there are no patterns"),
    "[1] | select('od') | list": ("od", "unknown test `od`", "did you mean `odd`?"),
    "params.topic | even": ("even", "unknown filter `even`", "is a test"),
    "params.tpic": ("tpic", "no param `tpic`", "did you mean `topic`?"),
    "steps.b.status": ("b", "no step `b`", "known here: a, late, my-step"),
    "steps.late.status": ("late", "step `late` may not have run yet; add it to `needs`", ""),
    "steps.a.output.x": ("output", "a step has outputs, status, exit_code", "steps.a.outputs"),
    "steps.my-step.status == 'failed'": ("steps.my-step", "needs brackets", "steps['my-step']"),
    "topic": ("topic", "unknown name `topic`", "did you mean `params.topic`?"),
    "inputs.topic": ("inputs", "unknown name `inputs`", "did you mean `params`?"),
    "parms.topic": ("parms", "unknown name `parms`", "did you mean `params`?"),
    "contains(params.topic, 'x')": ("contains", "unknown name `contains`", "use `'…' in …`"),
    "foo": ("foo", "unknown name `foo` (available: params, env, steps, run)", ""),
}


@pytest.mark.sweep("all")
@pytest.mark.parametrize("expression", TABLE)
def test_the_piece_at_fault_is_named(expression: str) -> None:
    piece, message, fix = TABLE[expression]
    found = language.check(expression, VISIBLE)

    assert found is not None
    assert message in found.message
    assert fix in found.help
    assert found.piece == piece
    assert expression[found.offset :].startswith(piece)


def test_known_names_are_in_order_whatever_the_order_of_their_set() -> None:
    names = frozenset({"deploy", "test", "build", "publish", "zip", "lint", "fetch", "scan"})
    found = language.check("steps.monitoring.status", VisibleNames(params=(), steps=names, all_steps=names))

    assert found is not None
    assert found.help == "known here: build, deploy, fetch, lint, publish, scan, test, zip"


@pytest.mark.parametrize(
    ("expression", "word", "fix"),
    [
        ("steps.a.status == 'failure'", "'failure'", "did you mean `failed`?"),
        ("'success' == steps.a.status", "'success'", "did you mean `completed`?"),
        ("run.status != 'succeeded'", "'succeeded'", "did you mean `completed`?"),
        ("steps.a.status in ['failed', 'cancelled']", "'cancelled'", "did you mean `interrupted`?"),
        ("not (steps.a.status == 'zzz')", "'zzz'", "one of pending, running"),
    ],
)
def test_a_status_is_compared_with_words_that_it_can_be(expression: str, word: str, fix: str) -> None:
    assert language.check(expression, VISIBLE) is None
    (warning,) = language.warnings(expression, VISIBLE)

    assert warning.piece == word
    assert fix in warning.help


@pytest.mark.parametrize(
    "expression", ["steps.a.status == 'failed'", "params.topic == 'failure'", "run.status", "1 == '1'"]
)
def test_true_comparisons_are_not_warned_about(expression: str) -> None:
    assert list(language.warnings(expression, VISIBLE)) == []
