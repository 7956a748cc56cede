"""Formats: newer ones are refused with one text, older ones become the present one step by step."""

from __future__ import annotations

import pytest

from rerail.core.formats import Format, check_version, upgraded
from rerail.errors import FormatTooNew

THIRD = Format("thing.json", 3, {1: lambda old: old + b" two", 2: lambda old: old + b" three"})


def test_an_old_document_goes_through_every_version_up_to_the_present_one() -> None:
    assert upgraded(THIRD, 1, b"one") == b"one two three"
    assert upgraded(THIRD, 2, b"second") == b"second three"
    assert upgraded(THIRD, 3, b"third") == b"third"


def test_a_newer_document_is_refused_with_where_it_is_and_who_wrote_it() -> None:
    check_version(THIRD, 3, where="here")
    with pytest.raises(FormatTooNew) as refused:
        check_version(THIRD, 4, where="here", writer="9.0")

    assert refused.value.message == "here: thing.json format 4, written by rerail 9.0; this rerail reads up to 3"
    assert refused.value.hint == "pip install --upgrade rerail"
