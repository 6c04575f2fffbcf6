"""Which port a server gets: the requested one, the preferred one, or the next that is free."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from redrive.contracts import Broker
from redrive.errors import StackError

# What a port is for, the requested one, and the preferred one; the answer is a port that is held.
ChoosePort = Callable[[str, int | None, int], int]

LOOPBACK: Final = "127.0.0.1"
# Upward from the preferred one, and not whatever the system offers: its offers come from the range of outgoing
# connections, so that another program may get the same port before our server listens on it.
_TRIES: Final = 200


@dataclass(frozen=True)
class Ports:
    """The ports that a user requested; None leaves the choice to the stack."""

    temporal: int | None = None
    web_ui: int | None = None
    postgres: int | None = None
    console: int | None = None
    brokers: Mapping[Broker, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Reservation:
    """A port that no other stack on this machine will choose until `close`."""

    number: int
    marker: socket.socket | None

    def close(self) -> None:
        """Release the port."""
        if self.marker:
            self.marker.close()


def reserve(what: str, *, asked: int | None, preferred: int) -> Reservation:
    """Reserve the requested port, or one from the preferred on; raise `StackError` naming `what` it was for."""
    if asked is not None:
        found = _try(asked)
        if found is None:
            raise StackError(f"port {asked} for {what} is taken: ask for another one, or leave the choice to Redrive")
        return found
    for number in range(preferred, preferred + _TRIES):
        found = _try(number)
        if found is not None:
            return found
    raise StackError(f"no port from {preferred} to {preferred + _TRIES - 1} is free for {what}")


async def listens(port: int) -> bool:
    """Tell whether a server on this machine accepts connections there."""
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    return True


def _try(number: int) -> Reservation | None:
    with contextlib.ExitStack() as undo:
        try:
            marker = _mark(number)
            if marker:
                undo.callback(marker.close)
            with socket.socket() as probe:
                # As servers do: a port whose last connection was just closed is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((LOOPBACK, number))
        except (OSError, OverflowError):
            return None
        undo.pop_all()
        return Reservation(number, marker)


def _mark(number: int) -> socket.socket | None:
    """Hold a name that only one process can hold, so that two stacks that start at once do not share a server."""
    if sys.platform != "linux":
        return None
    marker = socket.socket(socket.AF_UNIX)
    try:
        marker.bind(f"\0redrive-port-{number}")
    except OSError:
        marker.close()
        raise
    return marker
