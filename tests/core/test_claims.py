"""Whether the paths that two runs may write meet."""

from __future__ import annotations

import pytest

from rerail.core.claims import Claim, ClaimRecord, before_in_group, meet


@pytest.mark.sweep("all")
@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (("/w/a", None), ("/w/a", None), True),
        (("/w/a", None), ("/w/ab", None), False),
        (("/w/a", None), ("/w/a/b", None), True),
        (("/w/out-", ".md"), ("/w/out-x.md", None), True),
        (("/w/out-", ".md"), ("/w/out-x.txt", None), False),
        (("/w/out-", ".md"), ("/w/other", None), False),
        (("/w/out/", ""), ("/w/out", None), True),
        (("/w/out-", ".md"), ("/w/out-a-", "b.md"), True),
        (("/w/out-", ".md"), ("/w/out-a-", ".txt"), False),
        (("/w/", ""), ("/w/anything/at/all", None), True),
    ],
)
def test_claims_meet(one: tuple[str, str | None], other: tuple[str, str | None], expected: bool) -> None:
    claims = [Claim(step="s", path=path, end=end) for path, end in (one, other)]
    assert meet(*claims) is expected
    assert meet(*reversed(claims)) is expected


def test_a_holder_and_earlier_turns_come_before() -> None:
    def record(
        run_id: str, number: int, *, waiting: bool = True, group: str = "g", until: int | None = None
    ) -> ClaimRecord:
        return ClaimRecord(run_id=run_id, number=number, claims=[], group=group, waiting=waiting, until=until)

    others = [
        record("late", 9),
        record("early", 3),
        record("holder", 7, waiting=False),
        record("released", 1, waiting=False, until=4),
        record("elsewhere", 2, group="h"),
    ]

    def before(number: int | None) -> list[str]:
        return [one.run_id for one in before_in_group("g", number, others)]

    assert before(5) == ["holder", "early"]
    assert before(2) == ["holder"]
    assert before(None) == ["holder", "early", "late"]
