"""Text and JSON for Postgres."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.postgres.values import clean, clean_or_none, json_text

_ANY_TEXT = st.text(alphabet=st.characters(), max_size=50)


@given(_ANY_TEXT)
def test_clean_text_has_nothing_that_postgres_refuses(text: str) -> None:
    """No NUL, and it can be encoded."""
    assert b"\0" not in clean(text).encode()


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    """Only what cannot be stored is replaced."""
    assert clean(text) == text


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_ANY_TEXT, inner, max_size=4),
    max_leaves=10,
)


@given(_JSON)
def test_any_value_becomes_strict_json(value: object) -> None:
    """Neither NUL nor NaN nor Infinity is left in it."""

    def refuse(constant: str) -> object:
        pytest.fail(f"{constant} is not JSON")

    text = json_text(value)
    json.loads(text, parse_constant=refuse)
    assert "\\u0000" not in text.replace("\\\\", "")


def test_missing_text_stays_missing() -> None:
    """None is not a text."""
    assert clean_or_none(None) is None
    assert clean_or_none("a\0") == "a\N{REPLACEMENT CHARACTER}"
