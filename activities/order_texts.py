"""Orders as they may be stored: without secrets in what people wrote."""

from typing import TypeVar

from redrive.dead_letters import Continue, Discard, Replay, Resolve, Restart
from redrive.identifiers import shown_identifier
from redrive.redaction import Redactor

Order = TypeVar("Order", bound=Replay | Resolve | Discard | Restart | Continue)


def storable(order: Order, redactor: Redactor) -> Order:
    """Return an order without secrets in its texts. An accepted one keeps its ids: they were checked."""
    texts = {
        "reason": redactor.text(order.reason),
        "request_id": shown_identifier(order.request_id),
        "requested_by": shown_identifier(order.requested_by),
    }
    written: Order = order.model_copy(update=texts)  # type: ignore[assignment]  # a copy is of the same kind
    return written
