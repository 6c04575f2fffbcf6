"""Fingerprints of requests: equal for equal JSON, whoever wrote it and however."""

import json
import math
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import InvalidInput
from redrive.keys import request_hash

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(TEXTS, VALUES, max_size=3)


def backwards(value: Any) -> Any:
    """Return the same JSON with the names of every object in the opposite order."""
    if isinstance(value, dict):
        return {name: backwards(value[name]) for name in reversed(value)}
    return [backwards(item) for item in value] if isinstance(value, list) else value


def respelled(value: Any) -> Any:
    """Return the same JSON with every whole number that a float can hold written as one."""
    if isinstance(value, dict):
        return {name: respelled(item) for name, item in value.items()}
    if isinstance(value, list):
        return [respelled(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    return value


def same(one: Any, other: Any) -> bool:
    """Tell whether two JSON values are equal: numbers by value, true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    return type(one) is type(other) and bool(one == other)


def test_a_fingerprint_never_changes() -> None:
    """It is the same in every version of this code: stored ones are compared with it."""
    assert request_hash("order", {"b": [1, 2.5], "a": "é", "c": None}) == (
        "1670eede044b419924f7094a84ed1d50bc0932957d8804862294df959661bda8"
    )


@given(DOCUMENTS)
def test_the_order_of_names_does_not_matter(document: dict[str, Any]) -> None:
    """Two writers of the same object have the same fingerprint."""
    assert request_hash("p", document) == request_hash("p", backwards(document))


@given(DOCUMENTS)
def test_a_number_is_its_value(document: dict[str, Any]) -> None:
    """1.0 is 1."""
    assert request_hash("p", document) == request_hash("p", respelled(document))


@given(DOCUMENTS)
def test_the_wire_changes_nothing(document: dict[str, Any]) -> None:
    """A request that went through JSON is the same request."""
    assert request_hash("p", document) == request_hash("p", json.loads(json.dumps(document)))


@given(DOCUMENTS, DOCUMENTS)
def test_other_payloads_have_other_fingerprints(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal fingerprints mean equal requests."""
    assert (request_hash("p", one) == request_hash("p", other)) is same(one, other)


@given(DOCUMENTS, st.from_regex(r"[a-z0-9-]{1,10}", fullmatch=True), st.from_regex(r"[a-z0-9-]{1,10}", fullmatch=True))
def test_the_pipeline_counts(document: dict[str, Any], one: str, other: str) -> None:
    """The same payload for another pipeline is another request."""
    assert (request_hash(one, document) == request_hash(other, document)) is (one == other)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"n": 1}, {"n": 1.0}, True),
        ({"n": 100}, {"n": 1e2}, True),
        ({"n": 0}, {"n": -0.0}, True),
        ({"n": 2**53}, {"n": float(2**53)}, True),
        ({"n": 2**53 + 1}, {"n": float(2**53)}, False),
        ({"n": 10**30}, {"n": 10**30 + 1}, False),
        ({"n": 0.1}, {"n": 0.1 + 2**-60}, True),
        ({"n": 0.1}, {"n": math.nextafter(0.1, 1)}, False),
        ({"n": 1}, {"n": "1"}, False),
        ({"n": 1}, {"n": True}, False),
        ({"n": 0}, {"n": False}, False),
        ({"n": None}, {}, False),
        ({"n": [1, 2]}, {"n": [2, 1]}, False),
        ({"n": {}}, {"n": []}, False),
    ],
)
def test_what_is_the_same_is_decided_once(one: dict[str, Any], other: dict[str, Any], *, equal: bool) -> None:
    """The cases that one would argue about."""
    assert (request_hash("p", one) == request_hash("p", other)) is equal


@given(TEXTS)
def test_normal_forms_of_a_text_are_not_mixed_up(text: str) -> None:
    """Texts are compared as they are sent, for that is what a module gets."""
    for form in ("NFC", "NFD"):
        other = unicodedata.normalize(form, text)
        assert (request_hash("p", {"t": text}) == request_hash("p", {"t": other})) is (text == other)


def test_a_number_with_too_many_digits_is_refused() -> None:
    """Python would take very long for it; the caller gets a sentence."""
    with pytest.raises(InvalidInput, match="payload: cannot be compared"):
        request_hash("p", {"n": 10**5000})
