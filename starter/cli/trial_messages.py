"""`redrive events send` and `redrive messages send`: put one message on a broker, to try a bridge out."""

import uuid
from typing import Annotated

import aiormq
from aiormq.exceptions import AMQPError, ChannelNotFoundEntity
from cyclopts import Parameter
from cyclopts.validators import Number
from pamqp.commands import Basic
from pydantic import ValidationError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from redrive.bridges.events.settings import EventSettings
from redrive.bridges.rabbitmq.retry_message_pb2 import RetryMessage
from redrive.bridges.rabbitmq.settings import RetrySettings
from redrive.documents import parse_payload, validation_sentence
from redrive.errors import InvalidInput, Unavailable
from redrive.events import Envelope
from redrive.settings import read_environment, read_settings
from redrive.starter.cli.terminal import console

_PERSISTENT = 2
_TIMEOUT = 10.0


async def send_event(
    event_type: Annotated[str, Parameter(name="TYPE")],
    /,
    *,
    payload: str = "{}",
    key: str | None = None,
    source: str = "redrive-cli",
    tenant: str | None = None,
) -> None:
    """Put an event on the stream that the bridge reads, to try it out.

    It goes to REDIS_URL, or to the Redis of `redrive up --with redis` in this directory.

    **Example**

    `redrive events send interview.completed --payload '{"user": "ada", "score": 3}'`

    Parameters
    ----------
    event_type
        The event's type; `interview.completed` starts the pipeline `interview-completed`.
    payload
        The event's payload, a JSON object.
    key
        Its dedupe key; by default a new one. Sent twice with the same key, it is one event.
    source
        The sender.
    tenant
        The tenant; by default that of the bridge.
    """
    settings = read_environment(EventSettings)
    fields = {"type": event_type, "source": source, "payload": parse_payload(payload), "tenant": tenant}
    try:
        event = Envelope.model_validate(fields | {"dedupe_key": key or f"{event_type}:{uuid.uuid4()}"})
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error)) from error
    text = event.model_dump_json(by_alias=True, exclude_none=True)
    try:
        redis = Redis.from_url(
            settings.url(read_settings()),
            socket_timeout=_TIMEOUT,
            socket_connect_timeout=_TIMEOUT,
            decode_responses=True,
        )
        async with redis:
            entry = str(await redis.xadd(settings.stream, {"event": text}))
    except (RedisError, OSError) as error:
        raise Unavailable(f"Redis did not take the event: {error}") from error
    console.print(f"sent to {settings.stream} as {entry}, key {event.dedupe_key}", markup=False)
    console.print("`redrive events list` shows it, `redrive events dead` if it could not become a run", markup=False)


async def send_message(
    queue: Annotated[str, Parameter(name="QUEUE")],
    /,
    *,
    payload: str = "",
    error: str = "sent by redrive messages send",
    retries: Annotated[int, Parameter(validator=Number(gte=0, lte=1000))] = 0,
    max_retries: Annotated[int, Parameter(validator=Number(gte=0, lte=1000))] = 0,
) -> None:
    """Give the retry scheduler a message, as if its consumer had failed, to try it out.

    It goes to RABBITMQ_URL, or to the RabbitMQ of `redrive up --with rabbitmq` in this directory. The queue is created
    if it does not exist.

    **Examples**

    `redrive messages send billing.invoices --payload "invoice 7"` comes back to its queue after two seconds.

    `redrive messages send billing.invoices --payload "invoice 7" --retries 3` has no retry left: `redrive messages
    list` shows it.

    Parameters
    ----------
    queue
        The queue that it came from, and returns to.
    payload
        Its content.
    error
        Why its consumer failed.
    retries
        Retries made so far.
    max_retries
        How many there are; 0 for DEFAULT_MAX_RETRIES.
    """
    settings = read_environment(RetrySettings)
    message = RetryMessage(
        message_id=str(uuid.uuid4()),
        original_payload=payload.encode(),
        original_queue=queue,
        error_reason=error,
        retry_count=retries,
        max_retries=max_retries,
    )
    try:
        connection = await aiormq.connect(settings.url(read_settings()))
        try:
            await _create(connection, queue)
            channel = await connection.channel()
            properties = Basic.Properties(delivery_mode=_PERSISTENT)
            body = message.SerializeToString()
            await channel.basic_publish(
                body, routing_key=settings.retry_queue, properties=properties, mandatory=True, timeout=_TIMEOUT
            )
        finally:
            await connection.close()
    except (AMQPError, OSError) as problem:
        raise Unavailable(f"RabbitMQ did not take the message: {problem}") from problem
    console.print(f"sent to {settings.retry_queue} as {message.message_id}", markup=False)


async def _create(connection: aiormq.abc.AbstractConnection, queue: str) -> None:
    """Create the queue, unless it exists, in whatever form."""
    try:
        await (await connection.channel()).queue_declare(queue, passive=True)
    except ChannelNotFoundEntity:
        await (await connection.channel()).queue_declare(queue, durable=True)
