"""`redrive bridge redis`: events from a Redis stream become runs."""

from redrive.bridges.events.settings import EventSettings
from redrive.processes.program import prepare
from redrive.processes.redis_bridge import serve
from redrive.settings import read_environment, read_settings


async def redis(*, stream: str | None = None, group: str | None = None, modules: str | None = None) -> None:
    """Make a run of every event on a Redis stream. Any number of bridges may share a group.

    An entry has a field `event` that holds JSON: `dedupeKey`, `type`, `source`, `payload`, and optionally `tenant`,
    `userId`, `correlationId` and `occurredAt`. Events of type `order.placed` become runs of the pipeline
    `order-placed`, unless REDRIVE_EVENTS_PIPELINES names another one. What cannot become a run is recorded (`redrive
    events dead`) and added to the stream whose name ends in `.dlq`.

    **Examples**

    `redrive bridge redis` takes from REDIS_URL, or from the Redis of `redrive up --with redis` in this directory.

    `REDIS_URL=redis://10.0.0.5/0 redrive bridge redis --stream grow.events`

    Parameters
    ----------
    stream
        The stream's name; by default REDRIVE_EVENTS_STREAM, or `redrive.events`.
    group
        The consumer group; by default REDRIVE_EVENTS_GROUP, or `redrive`.
    modules
        Python modules to import, separated by commas. For any other pipeline a worker is queried, which takes
        longer.
    """
    settings = read_settings() if modules is None else read_settings(modules=modules)
    changes = {name: value for name, value in {"stream": stream, "group": group}.items() if value is not None}
    prepare(settings)
    await serve(settings, read_environment(EventSettings, **changes))
