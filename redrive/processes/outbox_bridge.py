"""The process of an outbox bridge: settings, connections, its lanes. Any number may run side by side."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial

from redrive.bridges.outbox.bridge import OutboxBridge, OutboxLimits
from redrive.bridges.outbox.follower import Follower
from redrive.bridges.outbox.handling import RowHandler
from redrive.connection import database_url
from redrive.modules import load_modules
from redrive.outbox.rows import Outbox
from redrive.outbox.settings import OutboxSettings
from redrive.postgres.database import Database
from redrive.processes.program import on_stop_signals, say_ready, until_signalled
from redrive.processes.temporal import connect_redrive
from redrive.settings import Settings

# Besides the lanes, of which replays have one: the follower, two searches, the release of stuck rows, and one to spare.
_MORE_CONNECTIONS = 6


@contextlib.asynccontextmanager
async def outbox_bridge(settings: Settings, chosen: OutboxSettings) -> AsyncIterator[OutboxBridge]:
    """Build a bridge; it takes rows when its `run` is called."""
    limits = OutboxLimits(chosen.batch, chosen.lanes, chosen.poll_interval, settings.shutdown_grace)
    outbox = Outbox(chosen.url(settings), chosen.schema_name, max_size=limits.lanes + _MORE_CONNECTIONS)
    async with outbox, await connect_redrive(settings) as redrive, Database(database_url(settings)) as database:
        redactor = settings.redactor()
        yield OutboxBridge(
            outbox,
            RowHandler(redrive, database, redactor),
            Follower(outbox, redrive, database, redactor),
            limits,
            partial(say_ready, settings.ready_file),
        )


async def serve(settings: Settings, chosen: OutboxSettings) -> None:
    """Run a bridge until SIGTERM or SIGINT."""
    load_modules(settings.named_modules)
    async with until_signalled(), outbox_bridge(settings, chosen) as bridge:
        # A bridge that takes rows ends when what it holds is settled.
        on_stop_signals(bridge.stop)
        await bridge.run()
