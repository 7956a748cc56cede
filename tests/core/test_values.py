"""Values that steps hand out: exactly what JSON can hold, or refused with a place."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.core.values import parse_metrics, parse_outputs, problem, typed

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.sweep("all")
@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("-7", -7), ("0", 0), ("2.5", 2.5), ("true", True), ("null", None), ("1e+16", 1e16)]
    + [(text, text) for text in ("007", "1.10", "1.0e3", "+1", "True", "nan", "1e999", "9" * 40, "", " 1", "0x10")],
)
def test_only_canonical_json_is_typed(text: str, value: Any) -> None:
    assert typed(text) == value
    assert type(typed(text)) is type(value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.scenario("E12")
@given(JSON)
def test_whatever_json_can_hold_comes_back_exactly(value: Any) -> None:
    if not problem(value):
        assert parse_outputs(json.dumps({"v": value}).encode()) == {"v": value}


@pytest.mark.scenario("E11", "E12")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": float("nan")}, "outputs.a is nan"),
        ({"a": [1, {2: 3}]}, "outputs.a[1] has a key that is not text"),
        ({"a": (1, 2)}, "a tuple"),
        ({"a": {1, 2}}, "a set"),
        ({"a": b"x"}, "a bytes"),
        ({"a": 2**63}, "beyond 64 bits"),
        ({"a": "\ud800"}, "lone surrogate"),
        ({"a": AT}, "a datetime"),
    ],
)
def test_what_json_would_alter_is_refused_with_its_place(value: Any, words: str) -> None:
    assert words in problem(value)


def test_outputs_are_lines_or_objects() -> None:
    data = b'a=1\n\n{"b": [1], "c": {"d": null}}\n  e = f g=h\na=two\n'

    assert parse_outputs(data) == {"a": "two", "b": [1], "c": {"d": None}, "e": " f g=h"}


@pytest.mark.scenario("E11")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a=1\nnonsense\n", "line 2: neither name=value nor a JSON object"),
        (b"{broken\n", "line 1: not JSON"),
        (b"1a=2\n", "cannot be the name"),
        (b"\xff=1\n", "line 1: not UTF-8"),
        (b"a=" + b"x" * 1_000_001, "1000000 at most"),
        (b'{"a": NaN}', "not JSON"),
    ],
)
def test_malformed_outputs_are_named_by_line(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        parse_outputs(data)


def test_metrics_add_up_and_must_be_numbers() -> None:
    usage, nothing = parse_metrics(b'{"cost_usd": 0.5, "n": 1}\n{"cost_usd": 0.25}\n')
    assert (usage.metrics, nothing) == ({"cost_usd": 0.75, "n": 1}, ())
    for bad in (b'{"n": "1"}', b'{"n": true}', b"[1]", b'{"n": 1e999}', b'{"n": 1e308}', b"\xff", b"nonsense"):
        counted, wrong = parse_metrics(bad + b'\n{"cost_usd": 5}\n')
        assert counted.metrics == {"cost_usd": 5}
        assert "RERAIL_METRICS line 1" in wrong[0]
