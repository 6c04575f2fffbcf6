"""What a broker's message carries, as it is written down for people."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.console.message_contents import READ, SHOWN, Encoding, content
from redrive.redaction.redactor import MARK, Redactor

REDACTOR = Redactor()


@given(st.binary(max_size=200))
def test_bytes_that_are_no_text_can_be_read_back(body: bytes) -> None:
    """Hex gives the bytes as they were; text is never hex."""
    shown = content(body, REDACTOR)
    if shown.encoding is Encoding.HEX:
        assert bytes.fromhex(shown.text) == body
    else:
        body.decode()


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Nd"]), max_size=200))
def test_text_is_shown_as_it_is(text: str) -> None:
    """What holds neither secrets nor control characters is shown unchanged."""
    assert content(text.encode(), REDACTOR).text == REDACTOR.text(text)


@given(st.text(alphabet="abcdefghij", min_size=8, max_size=30), st.booleans())
def test_secrets_are_left_out(secret: str, is_json: bool) -> None:
    """A secret is not shown, in a document or in any other text."""
    secret = f"zz{secret}"
    body = json.dumps({"card": {"password": [secret]}, "n": 1}) if is_json else f"n=1 password={secret}"
    shown = content(body.encode(), REDACTOR)
    assert secret not in shown.text
    assert MARK in shown.text


@pytest.mark.parametrize(("size", "is_cut"), [(SHOWN, False), (SHOWN + 1, True)])
def test_a_long_message_is_cut(size: int, is_cut: bool) -> None:
    """No more than the beginning is shown, and that is said."""
    shown = content(b"a" * size, REDACTOR)
    assert (len(shown.text), shown.is_cut) == (SHOWN, is_cut)


def test_a_character_that_is_cut_in_two_is_left_out() -> None:
    """The end of the beginning may be half a character: the message is text nevertheless."""
    shown = content(b"a" * (READ - 1) + "é".encode(), REDACTOR)
    assert (shown.encoding, shown.text) == (Encoding.TEXT, "a" * (SHOWN - 1))
