"""`redrive bridge rabbitmq`: the retry scheduler."""

from redrive.bridges.rabbitmq.settings import RetrySettings
from redrive.contracts import DEFAULT_TENANT
from redrive.processes.program import prepare
from redrive.processes.rabbitmq_bridge import serve
from redrive.settings import read_environment, read_settings


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
    settings = read_settings()
    prepare(settings)
    await serve(settings, read_environment(RetrySettings), tenant)
