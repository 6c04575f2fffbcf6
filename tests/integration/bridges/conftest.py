"""Brokers for the bridges: real ones, installed when they are missing and can be."""

import tempfile
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import SecretStr

from redrive.bridges.rabbitmq.settings import RetrySettings
from redrive.starter.stack.rabbitmq import Programs, get_rabbitmq
from tests.debian import find
from tests.integration.bridges.rabbit import RabbitServer, rabbitmq_server


@pytest.fixture(scope="session")
def rabbitmq_programs() -> Programs:
    """RabbitMQ, installed when it is missing. Where it cannot be had: a failure in CI, a skip elsewhere."""
    find("rabbitmq-server", "rabbitmq-server")
    return get_rabbitmq()


@pytest.fixture(scope="session")
async def rabbitmq(rabbitmq_programs: Programs) -> AsyncIterator[RabbitServer]:
    """A real RabbitMQ."""
    with tempfile.TemporaryDirectory() as directory:
        async with rabbitmq_server(Path(directory)) as server:
            yield server


@dataclass(frozen=True)
class Names:
    """Queues, a tenant and settings that no other test has."""

    settings: RetrySettings
    tenant: str
    work: str


@pytest.fixture
async def names(rabbitmq: RabbitServer) -> Names:
    """Names of the test's own, with the queue that messages came from."""
    mark = uuid.uuid4().hex[:8]
    settings = RetrySettings(
        service_name=f"retry-{mark}",
        http_port=0,
        rabbitmq_url=SecretStr(rabbitmq.url),
        retry_queue=f"retry.scheduled.{mark}",
        manual_review_queue=f"manual-review.{mark}",
    )
    work = f"work.{mark}"
    await rabbitmq.declare(settings.retry_queue, settings.manual_review_queue, work)
    return Names(settings, f"tenant-{mark}", work)
