"""Params against their declaration."""

from __future__ import annotations

from rerail.core.model import Param
from rerail.core.params import resolve


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
    names = {"names": Param(type="list")}
    assert resolve(names, {"names": '["a", 1]'}) == ({"names": ["a", 1]}, [])
    assert resolve(names, {"names": "a,b"})[1]
    _, problems = resolve(declared, {"level": "x", "count": "many", "extra": "1"})
    assert len(problems) == 4
    assert all(word in " ".join(problems) for word in ("extra", "task", "one of draft, final", "type integer"))
