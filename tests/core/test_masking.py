"""A stream is masked wherever it is cut, and however a secret is encoded."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.core.masking import Mask, StreamMask


@pytest.mark.scenario("J9")
@given(st.text("ab", min_size=1, max_size=4), st.text("abc*", max_size=40), st.data())
def test_a_stream_is_masked_wherever_it_is_cut(secret: str, text: str, data: st.DataObject) -> None:
    mask = Mask([secret])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    stream = StreamMask(mask)
    raw = text.encode()
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    masked = b"".join(stream.feed(piece) for piece in pieces) + stream.end()

    assert secret.encode() not in masked.replace(b"***", b"|")


@given(st.text("abcXYZ019", min_size=12, max_size=30), st.integers(1, 20), st.sampled_from(["\n", "\r\n"]), st.data())
def test_an_encoded_secret_is_masked_however_it_is_folded_and_cut(
    secret: str, width: int, newline: str, data: st.DataObject
) -> None:
    encoded = base64.b64encode(secret.encode()).decode()
    text = "x" + newline.join(encoded[at : at + width] for at in range(0, len(encoded), width)) + "x"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    stream = StreamMask(Mask([secret]))
    masked = b"".join(
        stream.feed(text[start:end].encode()) for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)
    )
    masked += stream.end()

    assert encoded.rstrip("=")[:-1].encode() not in masked.replace(b"\r", b"").replace(b"\n", b"")
