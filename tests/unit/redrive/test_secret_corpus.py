"""The corpus of planted secrets: none is left in a text or a document, and harmless lookalikes stay."""

import json
from typing import Any

import pytest

from redrive.redaction.redactor import MARK, Redactor
from tests.hostile.secrets import DOCUMENTS, HARMLESS, HARMLESS_DOCUMENTS, TEXTS, Planted

REDACTOR = Redactor()
NAMED = [pytest.param(planted, id=planted.name) for planted in (*TEXTS, *DOCUMENTS)]


def test_corpus_is_large_enough() -> None:
    """At least a hundred shapes, each with a name of its own and the secret in its carrier."""
    names = [planted.name for planted in (*TEXTS, *DOCUMENTS)]
    assert len(set(names)) == len(names) >= 100
    assert [planted.name for planted in TEXTS if planted.secret not in planted.carrier] == []


@pytest.mark.parametrize("planted", NAMED)
def test_planted_secret_is_hidden(planted: Planted) -> None:
    """Neither as a text of its own, nor in a document, nor in a longer text is the secret left."""
    shown = [
        REDACTOR.value(planted.carrier),
        REDACTOR.value({"error": planted.carrier, "n": [planted.carrier]}),
        REDACTOR.text(f"it said: {_text(planted.carrier)}\nand went on"),
        REDACTOR.value({"log": json.dumps(planted.carrier)}),
    ]
    for each in shown:
        assert planted.secret not in json.dumps(each, ensure_ascii=False).replace(".0", "")
        assert MARK in json.dumps(each)
        assert REDACTOR.value(each) == each


def _text(carrier: Any) -> str:
    return carrier if isinstance(carrier, str) else json.dumps(carrier)


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_stays(text: str) -> None:
    """Words, ids, times and numbers that only resemble a secret are kept."""
    assert REDACTOR.text(text) == text
    assert REDACTOR.value({"text": text}) == {"text": text}


@pytest.mark.parametrize("document", HARMLESS_DOCUMENTS)
def test_harmless_document_stays(document: dict[str, Any]) -> None:
    """Members that only resemble a secret are kept, with their types."""
    assert REDACTOR.value(document) == document


@pytest.mark.parametrize("planted", [pytest.param(planted, id=planted.name) for planted in TEXTS])
def test_secret_that_a_limit_cuts_in_two_is_hidden(planted: Planted) -> None:
    """Wherever the kept beginning or end of a text begins or ends, no half of a secret is left."""
    long = "word " * 2_000 + planted.carrier + " word" * 2_000
    place = long.index(planted.secret)
    for kept in range(3, len(planted.secret) + 1, 3):
        half = planted.secret[: max(6, kept)]
        assert half not in REDACTOR.beginning(long, place + kept)
        half = planted.secret[-max(6, kept) :]
        assert half not in REDACTOR.end(long, len(long) - place - len(planted.secret) + kept)
