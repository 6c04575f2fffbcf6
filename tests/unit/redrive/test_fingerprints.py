"""Fingerprints: the same for failures that differ in values only."""

import time
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.categories import Category
from redrive.classify import fingerprint
from redrive.contracts import ERROR_TEXT_LIMIT, FailedCycle


def _cycle(message: str, **changes: Any) -> FailedCycle:
    facts = {"step": "charge", "cycle": 1, "category": Category.TIMEOUT, "error_type": "ServiceError", "attempts": []}
    return FailedCycle(message=message, **(facts | changes))


def _mark(message: str, **changes: Any) -> str:
    return fingerprint("orders", _cycle(message, **changes))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no order 28febb3b-96b1-4714-8fd4-74fc7e5d2c62", "no order 7da15ce6-3749-439f-833c-9e2e9a92fa37"),
        ("run-0123456789abcdef0123456789abcdef is gone", "run-zz23456789abcdef0123456789abcdzz is gone"),
        ("charge ch_3MmlLrLkdIwHu7ix0snN0B15 failed", "charge ch_9ZzlLrLkdIwHu7ix0snN0Xyz failed"),
        ("took 1.5 s of 2", "took 10.25 s of 30"),
        ("at 12:00:01", "at 23:59:59"),
        ("name 'Bob' is taken", "name 'Alice and O'Brien' is taken"),
        ('field "a" is missing', 'field "another one" is missing'),
        ("can't reach 'a'", "can't reach 'b'"),
        ("object at 0xdeadbeef", "object at 0xcafe"),
        ("two  words\n", "two words"),
    ],
)
def test_values_do_not_change_it(one: str, other: str) -> None:
    """Ids, numbers, times, quoted values and spaces differ from case to case."""
    assert _mark(one) == _mark(other)


@pytest.mark.parametrize(
    ("one", "other"), [("connection refused", "connection reset"), ("can't read", "can't write"), ("a", "b")]
)
def test_words_change_it(one: str, other: str) -> None:
    """Another sentence is another cause."""
    assert _mark(one) != _mark(other)


@pytest.mark.parametrize("changes", [{"step": "refund"}, {"category": Category.NETWORK}, {"error_type": "ValueError"}])
def test_place_and_kind_change_it(changes: dict[str, Any]) -> None:
    """The same sentence of another step, category or error type is another cause."""
    assert _mark("broken") != _mark("broken", **changes)
    assert fingerprint("orders", _cycle("broken")) != fingerprint("returns", _cycle("broken"))


@pytest.mark.parametrize("changes", [{"cycle": 7}, {"build_id": "build-9"}, {"stack": "elsewhere"}])
def test_cycle_build_and_stack_do_not_change_it(changes: dict[str, Any]) -> None:
    """A replay that fails in the same way belongs to the same group."""
    assert _mark("broken") == _mark("broken", **changes)


_WORDS = st.lists(st.sampled_from(["cannot", "read", "the", "file", "of", "user"]), min_size=1, max_size=80)


@given(words=_WORDS, one=st.uuids(), other=st.uuids(), numbers=st.tuples(st.integers(0), st.integers(0)))
def test_values_anywhere_in_a_sentence_do_not_change_it(
    words: list[str], one: uuid.UUID, other: uuid.UUID, numbers: tuple[int, int]
) -> None:
    """Also in a long sentence, where values of different length move its end."""
    text = " ".join(f"{word} <id> <number>" for word in words)
    shown = [
        text.replace("<id>", str(identity)).replace("<number>", str(number))
        for identity, number in zip((one, other), numbers, strict=True)
    ]
    assert _mark(shown[0]) == _mark(shown[1])


@given(st.text(alphabet=st.characters(), max_size=300))
def test_any_text_has_one(message: str) -> None:
    """It is short, stable and never an error, whatever was raised."""
    mark = _mark(message)
    assert len(mark) == 16
    assert mark == _mark(message)


@pytest.mark.parametrize("piece", ["'", '"', "a-", "a1-", " '", "0", "0x", "1.", "' '", "-_"])
def test_long_texts_cost_little(piece: str) -> None:
    """No text that a module can raise keeps a worker busy."""
    text = (piece * ERROR_TEXT_LIMIT)[:ERROR_TEXT_LIMIT]
    started = time.process_time()
    _mark(text)
    assert time.process_time() - started < 1.0
