"""`RetryMessage` on the wire: read into what is stored, or refused with the field and its value. Pure."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from google.protobuf.message import DecodeError

from redrive.bridges.rabbitmq.retry_message_pb2 import RetryMessage
from redrive.contracts import ERROR_TEXT_LIMIT
from redrive.errors import InvalidInput
from redrive.policy import RetryPolicy
from redrive.postgres.values import clean
from redrive.redaction.redactor import Redactor
from redrive.store.messages.dead import MessageKind, NewDeadMessage
from redrive.store.messages.retry_queue import DueRetry, NewRetry

# The header that names a message's tenant, also of one that cannot be read.
TENANT: Final = "x-tenant"
LONGEST_WAIT: Final = timedelta(days=30)
MOST_RETRIES: Final = 1000
# AMQP: a routing key is a short string.
_NAME_LIMIT: Final = 255


class Malformed(InvalidInput):
    """A message cannot be read, and never will be."""

    code = "malformed_message"


def read_retry(
    body: bytes, *, policy: RetryPolicy, default_max_retries: int, now: datetime, draw: float, redactor: Redactor
) -> NewRetry:
    """Read a message and its delay; `draw` is a random number in [0, 1). Raise Malformed naming what is wrong."""
    message = RetryMessage()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise Malformed(f"not a RetryMessage: {error}") from None
    message_id = _uuid(message.message_id)
    _check(message)
    max_retries = message.max_retries or default_max_retries
    exhausted = message.retry_count >= max_retries
    return NewRetry(
        message_id=message_id,
        original_payload=message.original_payload,
        original_queue=message.original_queue,
        error_reason=error_text(message.error_reason, redactor),
        retry_count=message.retry_count,
        max_retries=max_retries,
        # There is no delay if no retry is left.
        delay=timedelta(0) if exhausted else policy.delay(message.retry_count + 1, draw),
        not_before=None if exhausted else _not_before(message.next_retry_at_ms, now),
    )


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Malformed(f"message_id {text[:80]!r} is not a UUID") from None


def _check(message: RetryMessage) -> None:
    queue = message.original_queue
    if not queue or len(queue.encode()) > _NAME_LIMIT or "\0" in queue:
        raise Malformed(f"original_queue {queue[:80]!r} is not a queue's name: 1 to {_NAME_LIMIT} bytes, no NUL")
    for name in ("retry_count", "max_retries"):
        value: int = getattr(message, name)
        if not 0 <= value <= MOST_RETRIES:
            raise Malformed(f"{name} {value} is not from 0 to {MOST_RETRIES}")


def _not_before(milliseconds: int, now: datetime) -> datetime | None:
    if milliseconds == 0:
        return None
    latest = now + LONGEST_WAIT
    # Compared as numbers: an extreme value does not fit a datetime.
    if not 0 < milliseconds <= latest.timestamp() * 1000:
        raise Malformed(f"next_retry_at_ms {milliseconds} is not a time up to {latest:%Y-%m-%d}, in milliseconds")
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def error_text(text: str, redactor: Redactor) -> str:
    """Return an error's text in the form in which it is stored."""
    return clean(redactor.beginning(text, ERROR_TEXT_LIMIT))


def dead_malformed(
    body: bytes, queue: str, reason: str, *, max_retries: int, full_size: int | None = None
) -> NewDeadMessage:
    """Build the record of a message that cannot be read. A replay puts it into its queue again, unchanged."""
    # The same message, delivered again, gives the same record.
    size = b"" if full_size is None else b"\0%d" % full_size
    digest = hashlib.sha256(queue.encode() + b"\0" + body + size).digest()
    return NewDeadMessage(
        message_id=UUID(bytes=digest[:16], version=5),
        kind=MessageKind.MALFORMED,
        original_queue=queue,
        original_payload=body,
        error_reason=reason,
        retry_count=0,
        max_retries=max_retries,
        full_size=full_size,
    )


def dead_exhausted(retry: DueRetry) -> NewDeadMessage:
    """Build the record of a message whose retries are used up."""
    return NewDeadMessage(
        message_id=retry.message_id,
        kind=MessageKind.EXHAUSTED,
        original_queue=retry.original_queue,
        original_payload=retry.original_payload,
        error_reason=retry.error_reason,
        retry_count=retry.retry_count,
        max_retries=retry.max_retries,
    )


def for_review(retry: DueRetry) -> bytes:
    """Return the content for the manual review queue: the whole RetryMessage."""
    return RetryMessage(
        message_id=str(retry.message_id),
        original_payload=retry.original_payload,
        original_queue=retry.original_queue,
        error_reason=retry.error_reason,
        retry_count=retry.retry_count,
        max_retries=retry.max_retries,
    ).SerializeToString()
