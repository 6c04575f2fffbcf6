"""Messages that wait, and messages that were given up, as tests make them."""

import uuid
from datetime import timedelta
from typing import Any

from redrive.store.messages.dead import MessageKind, NewDeadMessage
from redrive.store.messages.retry_queue import NewRetry


def new_retry(**changes: Any) -> NewRetry:
    """Make one that is due at once."""
    fields: dict[str, Any] = {
        "message_id": uuid.uuid4(),
        "original_payload": b"order 7",
        "original_queue": "billing",
        "error_reason": "timed out",
        "retry_count": 0,
        "max_retries": 3,
        "delay": timedelta(0),
    }
    return NewRetry(**(fields | changes))


def new_dead(**changes: Any) -> NewDeadMessage:
    """Make one whose retries are used up."""
    fields: dict[str, Any] = {
        "message_id": uuid.uuid4(),
        "kind": MessageKind.EXHAUSTED,
        "original_queue": "billing",
        "original_payload": b"order 7",
        "error_reason": "timed out",
        "retry_count": 3,
        "max_retries": 3,
    }
    return NewDeadMessage(**(fields | changes))
