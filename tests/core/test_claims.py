"""Whether the paths that two runs may write meet."""

from __future__ import annotations

import pytest

from rerail.core.claims import Claim, meet


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
