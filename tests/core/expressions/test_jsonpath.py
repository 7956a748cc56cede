"""Paths into documents."""

from __future__ import annotations

from typing import Any

import pytest

from rerail.core.expressions import jsonpath

DOCUMENT = {"a": [{"b": 1, "c": {"b": 2}}, {"b": 3}], "x y": {"z": [10, 20, 30]}}


@pytest.mark.sweep("all")
@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("$", [DOCUMENT]),
        ("$.a[*].b", [1, 3]),
        ("$.a[0].c.b", [2]),
        ("$['a'][-1]['b']", [3]),
        ('$["x y"].z[1:]', [20, 30]),
        ("$..b", [1, 2, 3]),
        ("$.a.*.b", [1, 3]),
        ("$.nothing[*]", []),
        ("$.a[7]", []),
        ("$['x y'].z[::2]", [10, 30]),
    ],
)
def test_paths_into_documents(path: str, wanted: list[Any]) -> None:
    assert jsonpath.find(DOCUMENT, path) == wanted


@pytest.mark.parametrize("path", ["a.b", "$.", "$.a[", "$a", "$.a[?(@.b>1)]", "$.a b", "$[a]", ""])
def test_what_is_no_path_is_named(path: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        jsonpath.parse(path)
