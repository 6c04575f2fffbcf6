"""Processes are killed while messages wait for their retries."""

import asyncio
import uuid
from pathlib import Path

import pytest
from temporalio.client import Client

from redrive.starter.stack.programs import worker_environment
from redrive.starter.stack.state import StackInfo
from tests.chaos.retry_case import RetryCase
from tests.chaos.retry_scene import bridge_environment, bridges
from tests.conftest import owner_url
from tests.integration.bridges.rabbit import RabbitServer

SHARE = 120
PATIENCE = 240.0


@pytest.mark.long
async def test_killed_sweep_and_restarted_broker_lose_nothing(
    stack: StackInfo, rabbitmq: RabbitServer, temporal: Client, tmp_path: Path
) -> None:
    """One of two bridges is killed while it sweeps, then the broker is: every message comes back or is given up."""
    mark = uuid.uuid4().hex[:8]
    case = RetryCase(
        rabbitmq.url,
        owner_url(stack),
        tenant=f"kills-{mark}",
        retry_queue=f"retry.{mark}",
        review_queue=f"review.{mark}",
        work_queue=f"work.{mark}",
    )
    await case.make_queues()
    environment = bridge_environment(
        worker_environment(stack, state_dir=tmp_path, embedded_temporal=True),
        url=rabbitmq.url,
        retry_queue=case.retry_queue,
        review_queue=case.review_queue,
    )
    async with (
        asyncio.timeout(PATIENCE),
        bridges(2, environment, case.tenant, tmp_path, temporal) as running,
        case.receiving(),
    ):
        await case.send(SHARE)
        await running.kill_sweeping()
        await case.send(SHARE)
        await rabbitmq.restart()
        await case.send(SHARE)
        await case.until_all_came()
        await case.until_nothing_waits()
        assert await case.violations() == []
    assert running.killed == 1
