"""Whose a message is, read without parsing it: surely or not at all, at a cost that its size bounds."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.bridges.events.settings import EVENT_LIMIT
from redrive.bridges.labels import LOOKED_AT, Labels, labels_of
from redrive.errors import TooLarge
from redrive.events import parse_envelope

BETA = Labels("beta")


@pytest.mark.parametrize(
    ("body", "labels"),
    [
        (b'{"tenant": "beta", "type": "a.b", "dedupeKey": "k"}', Labels("beta", "a.b", "k")),
        (b'{"tenant": "beta", "payload": {', BETA),
        (b'{"payload": {"tenant": "alpha"}, "tenant": "beta"', BETA),
        (b'{"payload": [[{"a": "}]"}]], "tenant": "beta", nonsense', BETA),
        (b'{"payload": {"tenant": "alpha"}}', Labels()),
        (b'{"payload": "\\"tenant\\": \\"alpha\\"", "tenant": "beta"}', BETA),
        (b'{"payload": "tenant", "x": "alpha"}', Labels()),
        (b'{"ten\\u0061nt": "beta"}', BETA),
        (b'{"tenant": "alpha", "ten\\u0061nt": "beta"}', Labels()),
        (b'{"tenant": "beta", "tenant": "beta"}', BETA),
        (b'{"tenant": "Not A Name"}', Labels()),
        (b'{"tenant": "beta\\n"}', Labels()),
        (b'{"tenant": "(quarantine)"}', Labels()),
        (b'{"tenant": "*"}', Labels()),
        (b'{"tenant": 5}', Labels()),
        (b'{"tenant": {"tenant": "alpha"}}', Labels()),
        (b'{"tenant": "be', Labels()),
        (b'[{"tenant": "alpha"}]', Labels()),
        (b'"tenant": "alpha"', Labels()),
        (b'{} {"tenant": "alpha"}', Labels()),
        (b"", Labels()),
        (b"\xff\xfe{", Labels()),
        (b'{"type": "' + b"x" * 300 + b'"}', Labels()),
    ],
)
def test_only_members_of_the_outermost_object_count(body: bytes, labels: Labels) -> None:
    """What a payload, a text or a second document calls a tenant is nobody's name for the message."""
    assert labels_of(body) == labels


@pytest.mark.parametrize(
    ("named", "tenant"),
    [("beta", "beta"), ("alpha", None), (None, "beta"), ("no name", "beta"), ("(quarantine)", "beta")],
)
def test_field_of_the_broker_counts_where_it_does_not_differ(named: str | None, tenant: str | None) -> None:
    """Two names are none: the message would be shown to one of them wrongly."""
    assert labels_of(b'{"tenant": "beta"', named).tenant == tenant
    assert labels_of(b"nonsense", "beta").tenant == "beta"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.just("tenant"), inner, max_size=4),
    max_leaves=8,
)


@given(document=st.dictionaries(st.text() | st.just("tenant"), JSON | st.just("beta")), cut=st.integers(0, 400))
def test_what_is_found_in_a_document_that_was_cut_is_what_it_says(document: dict[str, Any], cut: int) -> None:
    """The beginning of a document names the tenant of the whole one, or none."""
    assert labels_of(json.dumps(document).encode()[:cut]).tenant in [None, document.get("tenant")]


@given(body=st.binary(max_size=300))
def test_any_bytes_have_labels(body: bytes) -> None:
    """Nothing that a producer can write makes it raise."""
    labels_of(body)
    labels_of(b'{"tenant":' + body)


@pytest.mark.parametrize(
    "piece", [b'"', b"\\", b"[", b"{", b'"\\', b'""', b",", b' "a"', b'{"a":', b" ", b"a", b"\xff"]
)
def test_look_costs_little_however_the_message_is_made(piece: bytes) -> None:
    """A megabyte of any piece costs no more than the beginning of it."""
    body = b'{"x":' + piece * (1024 * 1024 // len(piece))
    started = time.process_time()
    labels_of(body)
    assert time.process_time() - started < 1.0
    assert len(body) > LOOKED_AT


def test_limit_of_an_entry_is_that_of_the_envelope() -> None:
    """What the stream cuts is exactly what can never be read."""
    with pytest.raises(TooLarge, match=f"the limit is {EVENT_LIMIT}"):
        parse_envelope(b" " * (EVENT_LIMIT + 1))
    with pytest.raises(Exception, match="not valid JSON"):
        parse_envelope(b" " * EVENT_LIMIT)
