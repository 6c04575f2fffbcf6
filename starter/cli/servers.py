"""`redrive worker`, `console` and `bridge`: the programs that serve until SIGTERM or Ctrl-C.

Each imports its own program when it runs: the worker's, for one, takes a quarter of a second.
"""

from redrive.bridges.events.settings import EventSettings
from redrive.bridges.rabbitmq.settings import RetrySettings
from redrive.contracts import DEFAULT_TENANT
from redrive.outbox.installation import checked_schema
from redrive.outbox.settings import OutboxSettings
from redrive.processes.program import prepare
from redrive.settings import read_environment, read_settings


async def worker(*, modules: str | None = None, debug: bool = False) -> None:
    """Run a worker until SIGTERM or Ctrl-C. Any number may run side by side, on any number of machines.

    It uses TEMPORAL_ADDRESS or the Temporal profile of the environment; by default, the stack that `redrive up` runs
    in this directory.

    **Examples**

    `redrive worker --modules hello` runs the modules of your hello.py.

    `REDRIVE_LOG_FORMAT=json redrive worker` logs one JSON object a line.

    `redrive worker --modules hello --debug` beside `redrive up --workers 0`: write `breakpoint()` into a module, and
    step through it.

    Parameters
    ----------
    modules
        Python modules or files below this directory, separated by commas: `hello` or `hello.py`. By default
        REDRIVE_MODULES, or the examples.
    debug
        For a debugger: one step at a time, each may take a day, and none is ended because it blocks the worker. Let no
        other worker run on the task queue. Not for production.
    """
    from redrive.worker import serve  # noqa: PLC0415

    settings = read_settings() if modules is None else read_settings(modules=modules)
    prepare(settings)
    await serve(settings, debug=debug)


async def console(*, address: str | None = None) -> None:
    """Serve the operators' API and pages until SIGTERM or Ctrl-C. Any number may run side by side.

    It uses TEMPORAL_ADDRESS and DATABASE_URL; by default, the stack that `redrive up` runs in this directory. Signing
    in takes a token: `redrive tokens create --role admin --tenant acme --name laptop`.

    **Example**

    `redrive console --address 0.0.0.0:8300`

    Parameters
    ----------
    address
        Where to listen; by default REDRIVE_CONSOLE_ADDRESS, or 127.0.0.1:8300.
    """
    from redrive.processes.console import serve  # noqa: PLC0415

    settings = read_settings() if address is None else read_settings(console_address=address)
    prepare(settings)
    await serve(settings, read_environment(EventSettings), read_environment(OutboxSettings))


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
        Python modules or files below this directory, separated by commas, to check payloads by. By default
        REDRIVE_MODULES, or what the workers have published.
    """
    from redrive.processes.redis_bridge import serve  # noqa: PLC0415

    settings = read_settings() if modules is None else read_settings(modules=modules)
    changes = {name: value for name, value in {"stream": stream, "group": group}.items() if value is not None}
    prepare(settings)
    await serve(settings, read_environment(EventSettings, **changes))


async def outbox(*, schema: str | None = None, modules: str | None = None) -> None:
    """Make a run of every row of an outbox, and keep each row up with its run. Any number of bridges may run.

    The table is made by `redrive outbox install`; rows by `redrive.enqueue(…)` in SQL or `redrive.outbox.enqueue` in
    Python, inside your own transaction. Of each row one run starts, whatever crashes.

    **Examples**

    `redrive bridge outbox` takes from the outbox in Redrive's own database.

    `OUTBOX_URL=postgresql://redrive@db.internal/shop redrive bridge outbox --schema jobs`

    Parameters
    ----------
    schema
        The schema that has the outbox; by default REDRIVE_OUTBOX_SCHEMA, or `redrive`.
    modules
        Python modules or files below this directory, separated by commas, to check payloads by. By default
        REDRIVE_MODULES, or what the workers have published.
    """
    from redrive.processes.outbox_bridge import serve  # noqa: PLC0415

    settings = read_settings() if modules is None else read_settings(modules=modules)
    changes = {} if schema is None else {"schema_name": checked_schema(schema)}
    prepare(settings)
    await serve(settings, read_environment(OutboxSettings, **changes))


async def rabbitmq(*, tenant: str = DEFAULT_TENANT) -> None:
    """Retry failed messages with exponential backoff, in the queue that they came from.

    Takes `RetryMessage`s (docs/bridges.md has their schema) from the queue RETRY_QUEUE, keeps them in PostgreSQL until
    they are due, and sends them again. When a message's retries are used up it goes to MANUAL_REVIEW_QUEUE and becomes
    a dead message: `redrive messages list`. Any number of bridges may run side by side. Health and metrics are at
    HTTP_PORT.

    **Examples**

    `redrive bridge rabbitmq` takes from RABBITMQ_URL, or from the RabbitMQ of `redrive up --with rabbitmq` in this
    directory.

    `RABBITMQ_URL=amqp://user:password@10.0.0.5 BASE_DELAY_MS=500 redrive bridge rabbitmq --tenant acme`

    Parameters
    ----------
    tenant
        Whose messages these are. A tenant has one broker.
    """
    from redrive.processes.rabbitmq_bridge import serve  # noqa: PLC0415

    settings = read_settings()
    prepare(settings)
    await serve(settings, read_environment(RetrySettings), tenant)
