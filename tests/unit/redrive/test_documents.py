"""Payloads: what is plain JSON, what is not and where, and what a step reads of it."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import InvalidInput
from redrive.contracts import DEPTH_LIMIT, PAYLOAD_LIMIT
from redrive.documents import check_payload, json_problem, number_problem, parse_payload, step_input
from redrive.errors import TooLarge

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def nested(levels: int) -> Any:
    """Return a list nested so deep."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": [1, {"b": float("nan")}]}, ".a[1].b: nan is not a JSON number"),
        ([float("-inf")], "[0]: -inf is not a JSON number"),
        ({"a": "x\0"}, ".a: the character U+0000 cannot be stored; remove it"),
        ({"a": {"b\0": 1}}, ".a: the character U+0000 cannot be stored; remove it"),
        ({"a": "\ud83d"}, ".a: lone surrogate '\\ud83d' is not valid text"),
        ({"\udc00": 1}, ": lone surrogate '\\udc00' is not valid text"),
        ({"a": {1: 2}}, ".a: key 1 is not text"),
        ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, ".a: datetime is not a JSON type"),
        ({"a": (1, 2)}, ".a: tuple is not a JSON type"),
        ({"a": b""}, ".a: bytes is not a JSON type"),
        (object, ": type is not a JSON type"),
    ],
)
def test_what_is_not_json_is_named_with_its_place(value: Any, problem: str) -> None:
    """The path leads to the value, and the sentence says what is wrong with it."""
    assert json_problem(value) == problem


def test_nesting_has_a_limit() -> None:
    """One hundred levels are plain JSON, more are not, and ten thousand give a sentence like any other."""
    assert json_problem(nested(DEPTH_LIMIT)) is None
    assert json_problem(nested(DEPTH_LIMIT + 1)) == "[0]" * 66 + "[…: nested deeper than 100 levels"
    assert str(json_problem(nested(10_000))).endswith("nested deeper than 100 levels")


@given(PLAIN)
def test_plain_json_has_no_problem(value: Any) -> None:
    """Whatever JSON can hold, but U+0000 and lone surrogates, is accepted."""
    assert json_problem(value) is None
    assert number_problem(value) is None


@given(st.dictionaries(TEXTS, PLAIN, max_size=4))
def test_a_payload_survives_its_text(payload: dict[str, Any]) -> None:
    """A payload that is accepted comes out of its JSON text as it went in."""
    assert parse_payload(json.dumps(payload)) == check_payload(payload) == payload


@given(st.text() | st.binary())
def test_any_text_is_a_payload_or_a_sentence(text: str | bytes) -> None:
    """No text makes the parser raise anything but a refusal."""
    try:
        answer: object = parse_payload(text)
    except InvalidInput as refusal:
        answer = str(refusal)
    assert isinstance(answer, dict) or str(answer).startswith("payload")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": [0.0, float("nan")]}, ".a[1]: nan is not a JSON number"),
        ({"a": (float("inf"),)}, ".a[0]: inf is not a JSON number"),
        ({"a": datetime(2026, 1, 1, tzinfo=UTC), "b": b"x", "c": [{}]}, None),
    ],
)
def test_numbers_that_json_cannot_hold_are_found_in_python_values(value: Any, problem: str | None) -> None:
    """Only NaN and infinity count; what pydantic can write is left to it."""
    assert number_problem(value) == problem


@pytest.mark.parametrize("value", [None, 1, "a", [], [{}]])
def test_a_payload_is_an_object(value: Any) -> None:
    """Anything but a JSON object is refused with its type."""
    with pytest.raises(InvalidInput, match=f"a JSON object is needed, not {type(value).__name__}"):
        check_payload(value)


def test_a_payload_over_the_limit_is_refused_with_its_size() -> None:
    """Bytes are counted, not characters."""
    room = PAYLOAD_LIMIT - len('{"a":""}')
    assert check_payload({"a": "x" * room})
    for text in ("x" * (room + 1), "é" * (room // 2 + 1)):
        with pytest.raises(TooLarge, match=f"the limit is {PAYLOAD_LIMIT}"):
            check_payload({"a": text})


def test_a_step_gets_the_fields_that_it_reads() -> None:
    """Fields that are not there are left out, and a step without a list gets everything."""
    document = {"a": 1, "b": 2}
    assert step_input(document, ["b", "c"]) == {"b": 2}
    assert step_input(document, []) == {}
    assert step_input(document, None) == document
