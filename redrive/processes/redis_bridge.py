"""The process of a Redis bridge: settings, connections, one consumer. Any number may run side by side."""

import contextlib
import os
import socket
from collections.abc import AsyncIterator
from functools import partial

from redrive.bridges.events.intake import make_intake
from redrive.bridges.events.settings import EventSettings
from redrive.bridges.redis.bridge import Limits, RedisBridge
from redrive.bridges.redis.stream import EventStream
from redrive.connection import database_url
from redrive.errors import InvalidInput
from redrive.keys import new_request_id
from redrive.modules import load_modules
from redrive.postgres.database import Database
from redrive.processes.program import on_stop_signals, say_ready, until_signalled
from redrive.processes.temporal import connect_redrive
from redrive.settings import Settings


@contextlib.asynccontextmanager
async def redis_bridge(settings: Settings, events: EventSettings) -> AsyncIterator[RedisBridge]:
    """Build a bridge; it consumes when its `run` is called."""
    stream = _stream(events.url(settings), events)
    url = database_url(settings)
    async with await connect_redrive(settings) as redrive, Database(url) as database:
        intake = make_intake(redrive, database, settings, events)
        limits = Limits(events.held, events.claim_idle, settings.shutdown_grace)
        try:
            yield RedisBridge(stream, intake, database, limits, partial(say_ready, settings.ready_file))
        finally:
            await stream.close()


def _stream(url: str, events: EventSettings) -> EventStream:
    consumer = f"{socket.gethostname()}-{os.getpid()}-{new_request_id()[-8:]}"
    try:
        return EventStream.connect(url, events.stream, group=events.group, consumer=consumer, kept=events.kept)
    except ValueError as error:
        # Not the address itself: it may hold a password.
        raise InvalidInput("REDIS_URL: not an address like redis://user:password@host:6379/0") from error


async def serve(settings: Settings, events: EventSettings) -> None:
    """Run a bridge until SIGTERM or SIGINT."""
    load_modules(settings.named_modules)
    async with until_signalled(), redis_bridge(settings, events) as bridge:
        # A bridge that consumes ends when what it holds is safe.
        on_stop_signals(bridge.stop)
        await bridge.run()
