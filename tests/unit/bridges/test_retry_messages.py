"""Reading a RetryMessage: what is stored of it, and what is refused."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.bridges.rabbitmq.messages import Malformed, dead_exhausted, dead_malformed, for_review, read_retry
from redrive.bridges.rabbitmq.retry_message_pb2 import RetryMessage
from redrive.policy import MESSAGE
from redrive.redaction.redactor import Redactor
from redrive.store.messages.dead import MessageKind
from redrive.store.messages.retry_queue import DueRetry, NewRetry

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
ID = "0b2f6d3e-6c0a-4c53-9d0e-0d2f3a1b4c5d"
GOOD: dict[str, Any] = {"message_id": ID, "original_payload": b"order 7", "original_queue": "billing"}


def read(body: bytes, draw: float = 0.0) -> NewRetry:
    return read_retry(body, policy=MESSAGE, default_max_retries=3, now=NOW, draw=draw, redactor=Redactor())


def message(**fields: Any) -> bytes:
    return RetryMessage(**(GOOD | fields)).SerializeToString()


@pytest.mark.parametrize(("made", "seconds"), [(0, 2), (1, 4), (2, 8)])
def test_delay_is_the_presets(made: int, seconds: int) -> None:
    """2 s, 4 s, 8 s after 0, 1, 2 retries, and up to a second more."""
    assert read(message(retry_count=made)).delay == timedelta(seconds=seconds)
    assert read(message(retry_count=made), draw=0.5).delay == timedelta(seconds=seconds + 0.5)


def test_delay_ends_at_the_cap() -> None:
    """No retry waits longer than a minute and a second."""
    assert read(message(retry_count=90, max_retries=100)).delay == timedelta(seconds=60)


@pytest.mark.parametrize(("retry_count", "max_retries", "kept"), [(0, 0, 3), (3, 0, 3), (5, 5, 5)])
def test_used_up_message_waits_for_nothing(retry_count: int, max_retries: int, kept: int) -> None:
    """A limit of 0 is the default; a message without a retry left is due at once."""
    retry = read(message(retry_count=retry_count, max_retries=max_retries, next_retry_at_ms=1794830400000))
    assert retry.max_retries == kept
    assert (retry.delay == timedelta(0)) is (retry_count >= kept)
    assert (retry.not_before is None) is (retry_count >= kept)


def test_time_that_the_sender_names_is_kept_beside_the_delay() -> None:
    """The database takes the later of both."""
    at = NOW + timedelta(hours=1)
    assert read(message(next_retry_at_ms=int(at.timestamp() * 1000))).not_before == at


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"message_id": "seven"}, "message_id 'seven' is not a UUID"),
        ({"message_id": ""}, "message_id '' is not a UUID"),
        ({"original_queue": ""}, "original_queue '' is not a queue's name: 1 to 255 bytes, no NUL"),
        ({"original_queue": "ü" * 128}, "original_queue"),
        ({"original_queue": "a\0b"}, "original_queue 'a\\x00b' is not a queue's name"),
        ({"retry_count": -1}, "retry_count -1 is not from 0 to 1000"),
        ({"max_retries": 5000}, "max_retries 5000 is not from 0 to 1000"),
        ({"next_retry_at_ms": -5}, "next_retry_at_ms -5 is not a time"),
        ({"next_retry_at_ms": 2**62}, "is not a time up to 2026-12-16, in milliseconds"),
    ],
)
def test_message_that_can_never_be_sent_is_refused_by_field_and_value(fields: dict[str, Any], sentence: str) -> None:
    """The record says what to mend."""
    with pytest.raises(Malformed) as refusal:
        read(message(**fields))
    assert sentence in str(refusal.value)


@given(st.binary(max_size=300))
def test_no_bytes_do_harm(body: bytes) -> None:
    """Whatever comes in is read or refused; nothing else is raised."""
    try:
        retry = read(body)
    except Malformed:
        return
    assert retry.original_queue


def test_secrets_and_what_postgres_refuses_are_not_kept() -> None:
    """The error's text is redacted, bounded and free of NUL."""
    retry = read(message(error_reason="password=hunter2 \0" + "x" * 20_000))
    assert "hunter2" not in retry.error_reason
    assert "\0" not in retry.error_reason
    assert len(retry.error_reason) < 9000


def test_same_poison_is_the_same_record() -> None:
    """A delivery that comes twice has one record; another body, or another queue, has another."""
    ids = {
        dead_malformed(body, queue, "why", max_retries=3).message_id
        for body, queue in [(b"a", "q"), (b"a", "q"), (b"b", "q"), (b"a", "p")]
    }
    assert len(ids) == 3


def test_review_gets_the_whole_message() -> None:
    """Who reviews it sees payload, queue, reason and counts, and so does the record."""
    due = DueRetry(
        id=1,
        message_id=UUID(ID),
        original_payload=b"order 7",
        original_queue="billing",
        error_reason="timed out",
        retry_count=3,
        max_retries=3,
        status="pending",
    )
    review = RetryMessage.FromString(for_review(due))
    assert (review.message_id, review.original_payload, review.original_queue) == (ID, b"order 7", "billing")
    assert (review.error_reason, review.retry_count, review.max_retries) == ("timed out", 3, 3)
    dead = dead_exhausted(due)
    assert (dead.kind, dead.original_payload, dead.error_reason) == (MessageKind.EXHAUSTED, b"order 7", "timed out")
