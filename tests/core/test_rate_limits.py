"""What services say when they want to be left alone."""

from __future__ import annotations

import pytest

from rerail.core.rate_limits import classify
from rerail.core.retry_after import parse_retry_after
from tests.core.services import NOT_SAID, NOW, SAID


@pytest.mark.sweep("all")
@pytest.mark.parametrize(("text", "kind", "seconds"), SAID, ids=[text[:40] for text, _, _ in SAID])
def test_what_services_say_is_understood(text: str, kind: str, seconds: float | None) -> None:
    assert classify(text, "", 1) == kind
    until = parse_retry_after(text, NOW)
    assert (until and (until - NOW).total_seconds()) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.sweep("all")
@pytest.mark.parametrize("text", NOT_SAID)
def test_what_only_looks_like_it_is_none(text: str) -> None:
    assert classify(text, "ExitCode", 1) is None


def test_an_exit_code_and_an_exception_say_it_too() -> None:
    assert classify("", "", 75) == "rate limit"
    assert classify("", "RateLimitError", None) == "rate limit"


@pytest.mark.parametrize("word", ["again", "retry", "retry-after", "wait", "resets", "until", "hit", "exceed", "http"])
@pytest.mark.parametrize("filler", [" ", "1", "\t", "1m", " a", "reset", "hit", "\n", "429"])
def test_nothing_takes_long_however_long_it_is(word: str, filler: str) -> None:
    """What grows faster than its text does not come to an end here."""
    text = word + filler * 200_000
    assert classify(text, "", 1) in (None, "rate limit")
    until = parse_retry_after(text, NOW)
    assert until is None or until > NOW
