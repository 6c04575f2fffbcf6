"""Labels of a run, checked before they are stored: none has the name of a log field, none holds a secret."""

from collections.abc import Mapping

from temporalio.service import RPCError, RPCStatusCode

from redrive.contracts import LABELS_ATTRIBUTE
from redrive.errors import InvalidInput
from redrive.keys import check_identifier
from redrive.logs import FIELDS


def checked_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels, or raise which one has the name of a log field, or holds a secret."""
    for name, value in labels.items():
        if name in FIELDS:
            raise InvalidInput(f"labels.{name}: every log line has a field of this name; choose another")
        if isinstance(value, str):
            check_identifier(f"labels.{name}", value)
    return dict(labels)


def check_attribute(error: RPCError) -> None:
    """Raise InvalidInput if Temporal refused a request because its namespace does not know the labels' attribute."""
    if error.status is RPCStatusCode.INVALID_ARGUMENT and LABELS_ATTRIBUTE in error.message:
        raise InvalidInput(
            f"labels: the Temporal namespace lacks the search attribute {LABELS_ATTRIBUTE}; create it with "
            f"`temporal operator search-attribute create --name {LABELS_ATTRIBUTE} --type KeywordList`"
        ) from error
