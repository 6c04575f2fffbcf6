"""Commands in the form in which they are stored: without secrets in what people wrote."""

from typing import TypeVar, cast

from redrive.dead_letters import Continue, LetterOrder
from redrive.identifiers import shown_identifier
from redrive.redaction.redactor import Redactor

Order = TypeVar("Order", bound=LetterOrder | Continue)


def storable(order: Order, redactor: Redactor) -> Order:
    """Return a command without secrets in its texts. An accepted one keeps its ids: they were checked."""
    texts = {
        "reason": redactor.text(order.reason),
        "request_id": shown_identifier(order.request_id),
        "requested_by": shown_identifier(order.requested_by),
    }
    return cast("Order", order.model_copy(update=texts))
