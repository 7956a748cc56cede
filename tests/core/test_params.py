"""Params against their declaration."""

from __future__ import annotations

from typing import Any

import pytest

from rerail.core.model import Param
from rerail.core.params import resolve, wrong_default


def test_params_are_checked_against_their_declaration() -> None:
    declared = {
        "task": Param(required=True),
        "level": Param(default="draft", choices=("draft", "final")),
        "count": Param(type="integer", default=1),
        "dry": Param(type="boolean", default=False),
    }

    assert resolve(declared, {"task": "7", "count": "3", "dry": "true"}) == (
        {"task": "7", "level": "draft", "count": 3, "dry": True},
        [],
    )
    _, problems = resolve(declared, {"level": "x", "count": "many", "extra": "1"})
    assert len(problems) == 4
    assert all(word in " ".join(problems) for word in ("extra", "task", "one of draft, final", "type integer"))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        *(("boolean", word, True) for word in ("true", "True", "yes", "on", "1")),
        *(("boolean", word, False) for word in ("false", "no", "OFF", "0")),
        ("list", "a,b", ["a", "b"]),
        ("list", " a , b ,", ["a", "b"]),
        ("list", "a", ["a"]),
        ("list", "1,true", ["1", "true"]),
        ("list", "", []),
        ("list", '["a,b", 1]', ["a,b", 1]),
        ("list", " []", []),
    ],
)
def test_text_of_the_command_line_becomes_the_type(kind: Any, text: str, value: Any) -> None:
    values, problems = resolve({"p": Param(type=kind)}, {"p": text})

    assert (values, problems) == ({"p": value}, [])
    assert type(values["p"]) is type(value)


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        ("boolean", "maybe", "must be of type boolean (true, yes, on, 1, or false, no, off, 0), not 'maybe'"),
        ("boolean", "", "must be of type boolean"),
        ("boolean", 1, "must be of type boolean"),
        ("list", "[1, 2", "must be of type list (a,b or JSON such as [1,2]), not '[1, 2'"),
        ("list", "[" * 100_000, "must be of type list"),
        ("string", ["a", "b"], "takes one value of type string, not 2: ['a', 'b']"),
        ("boolean", ["yes", "no"], "takes one value of type boolean, not 2"),
    ],
)
def test_what_is_not_of_the_type_is_said(kind: Any, given: Any, words: str) -> None:
    _, (problem,) = resolve({"p": Param(type=kind)}, {"p": given})

    assert words in problem


def test_a_default_is_not_read_like_the_command_line() -> None:
    assert wrong_default(Param(type="boolean", default="yes"))
    assert wrong_default(Param(type="list", default="a,b"))
    assert not wrong_default(Param(type="list", default=["a"]))
