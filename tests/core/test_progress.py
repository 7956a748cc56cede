"""Goal seeking: which value is nearer to the goal."""

from __future__ import annotations

import pytest

from rerail.core.progress import is_better, watched


@pytest.mark.parametrize(
    ("until", "value", "best", "better"),
    [
        ("steps.a.outputs.x >= 90", 50, 40, True),
        ("steps.a.outputs.x >= 90", 40, 50, False),
        ("steps.a.outputs.x < 3", 4, 5, True),
        ("90 <= steps.a.outputs.x", 50, 40, True),
        ("steps.a.outputs.done", True, False, True),
        ("steps.a.outputs.x == 'ok'", "no", "no", False),
    ],
)
def test_nearer_to_the_goal(until: str, value: object, best: object, better: bool) -> None:
    assert is_better(value, best, until) is better


def test_what_a_goal_watches() -> None:
    assert watched("steps.review.outputs.score >= 90") == "steps.review.outputs.score"
    assert watched("90 < steps.review.outputs.score") == "steps.review.outputs.score"
    assert watched("steps.a.outputs.x > 1 and steps.b.outputs.y > 2") == ""
