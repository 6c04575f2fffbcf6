"""The events of a stream, and whether it came to its end."""

from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

from redrive.categories import Category
from redrive.errors import ServiceError
from redrive.http import ServiceResponse


class ErrorEvent(Exception):
    """The stream told of an error. It goes no further than the client, which knows what may be recorded of it."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__("an error event")
        self.body = body


def events(response: ServiceResponse, last: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a stream until the data, or the type of an object, is `last`.

    A stream without it was broken off, whatever the connection says: chunked encoding and proxies end it politely.
    """
    for data in _data(response.text):
        if data == last:
            return
        event = _object(data)
        if event.get("error"):
            raise ErrorEvent(event)
        yield event
        if event.get("type") == last:
            return
    raise broken("it ended before the answer did")


def broken(why: str) -> ServiceError:
    """Return the error of a stream that cannot be read to its end. Asking again may help."""
    return ServiceError(f"the stream is broken: {why}", category=Category.NETWORK)


def _data(text: str) -> Iterator[str]:
    """Yield the data of each event. Lines of other fields, and comments, which keep connections open, are left out."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("data:"):
            lines.append(line[5:].removeprefix(" "))
        elif not line and lines:
            yield "\n".join(lines)
            lines = []
    # One without the empty line after it is not whole.


def _object(data: str) -> dict[str, Any]:
    try:
        event = from_json(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise broken("an event is not a JSON object")
    return event
