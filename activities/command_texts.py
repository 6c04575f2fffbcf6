"""Commands in the form in which they are stored: without secrets in what people wrote."""

from typing import TypeVar, cast

from redrive.dead_letters import Continue, LetterCommand
from redrive.identifiers import shown_identifier
from redrive.redaction.redactor import Redactor

Command = TypeVar("Command", bound=LetterCommand | Continue)


def storable(command: Command, redactor: Redactor) -> Command:
    """Return a command without secrets in its texts. An accepted one keeps its ids: they were checked."""
    texts = {
        "reason": redactor.text(command.reason),
        "request_id": shown_identifier(command.request_id),
        "requested_by": shown_identifier(command.requested_by),
    }
    return cast("Command", command.model_copy(update=texts))
