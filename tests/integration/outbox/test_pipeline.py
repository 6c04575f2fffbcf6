"""Rows are started as they come: none waits for a slower one, and notifications alone suffice to find them."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import asyncpg
from temporalio.client import WorkflowExecutionDescription
from temporalio.service import RPCError, RPCStatusCode

import redrive.outbox
from redrive import Redrive, StartedRun
from redrive.bridges.outbox.bridge import OutboxLimits
from redrive.keys import run_id_for_key
from redrive.outbox.rows import OutboxStatus
from tests.conftest import WorkerFactory, eventually
from tests.integration.outbox.outbox_lab import OutboxLab

# One transaction at a time, and no poll while a test runs.
ONE_LANE = OutboxLimits(batch=10, lanes=1)
NO_POLL = OutboxLimits(poll_interval=timedelta(minutes=10))


class _Slow:
    """A Redrive whose starts of the first order do not come through until it may go on."""

    def __init__(self, redrive: Redrive, may_go_on: asyncio.Event) -> None:
        self._redrive = redrive
        self._may_go_on = may_go_on

    async def start(self, pipeline: str, payload: dict[str, Any], **options: Any) -> StartedRun:
        if payload["number"] == 1:
            await self._may_go_on.wait()
        return await self._redrive.start(pipeline, payload, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._redrive, name)


async def _described(lab: OutboxLab, key: str) -> WorkflowExecutionDescription | None:
    try:
        return await lab.temporal.get_workflow_handle(run_id_for_key(lab.tenant, key)).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


async def test_row_is_started_while_an_earlier_one_waits_for_its_run(lab: OutboxLab) -> None:
    """The only lane holds a row whose start hangs: the next row joins it, and is not held up."""
    may_go_on = asyncio.Event()
    async with lab.bridge(ONE_LANE, act=lambda made: _Slow(made, may_go_on)):
        slow = await lab.enqueue(1, key="slow")
        await eventually(partial(_is_locked, lab))
        quick = await lab.enqueue(2, key="quick")
        await eventually(partial(_described, lab, "quick"))
        assert await _described(lab, "slow") is None
        may_go_on.set()
        for event_id in (slow, quick):
            await lab.becomes(event_id, OutboxStatus.IN_FLIGHT)


async def _is_locked(lab: OutboxLab) -> bool:
    free = "WITH free AS (SELECT FROM {}.outbox FOR UPDATE SKIP LOCKED) SELECT count(*) FROM free"
    return int(await lab.sql(free)) == 0


async def test_start_time_is_that_of_the_run_not_of_the_slowest_beside_it(lab: OutboxLab) -> None:
    """Both rows are recorded by one transaction; `started_at` of the quick one is when its run was there."""
    may_go_on = asyncio.Event()
    async with lab.bridge(ONE_LANE, act=lambda made: _Slow(made, may_go_on)):
        slow, quick = await lab.enqueue(1, key="slow"), await lab.enqueue(2, key="quick")
        await eventually(partial(_described, lab, "quick"))
        await asyncio.sleep(1.0)
        may_go_on.set()
        late = await lab.becomes(slow, OutboxStatus.IN_FLIGHT)
        early = await lab.becomes(quick, OutboxStatus.IN_FLIGHT)
    assert early.started_at
    assert late.started_at
    assert late.started_at - early.started_at > timedelta(seconds=0.9)


async def test_transaction_that_took_long_is_found_by_its_notification(lab: OutboxLab, team_url: str) -> None:
    """Its row is due before rows that were taken meanwhile: the bridge looks as far back as it has to."""
    connection = await asyncpg.connect(team_url)
    async with lab.bridge(NO_POLL):
        try:
            async with connection.transaction():
                given: dict[str, Any] = {"tenant": lab.tenant, "schema": lab.outbox.schema}
                early = await redrive.outbox.enqueue(connection, "order", {"item": "lamp", "number": 1}, **given)
                for number in range(2, 5):
                    await lab.becomes(await lab.enqueue(number), OutboxStatus.IN_FLIGHT)
        finally:
            await connection.close()
        await lab.becomes(str(early), OutboxStatus.IN_FLIGHT)


async def test_row_that_is_released_by_its_ordering_key_needs_no_poll(lab: OutboxLab, worker: WorkerFactory) -> None:
    """It may be older than any row that was taken; so may one that is replayed."""
    lab.is_broken = True
    async with lab.bridge(NO_POLL), worker():
        first = await lab.enqueue(1, ordering_key="ann")
        second = await lab.enqueue(2, ordering_key="ann")
        row = await lab.becomes(first, OutboxStatus.FAILED)
        lab.is_broken = False
        await lab.becomes(await lab.enqueue(3), OutboxStatus.DELIVERED)
        await lab.sql("SELECT {}.outbox_replay($1, 7, 'ann@example.com')", row.event_id)
        await lab.becomes(second, OutboxStatus.DELIVERED)
    assert lab.seen == [3, 1, 2]


async def test_rows_of_one_transaction_are_all_started(lab: OutboxLab) -> None:
    """They are due at the same moment, are more than one look takes, and one notification tells of them."""
    statement = """SELECT count({0}.enqueue('order', '{{"item": "lamp"}}', tenant => $1)) FROM generate_series(1, 45)"""
    async with lab.bridge(OutboxLimits(batch=4, lanes=2, poll_interval=NO_POLL.poll_interval)):
        await lab.sql(statement, lab.tenant)
        await eventually(lambda: _are_in_flight(lab, 45))


async def _are_in_flight(lab: OutboxLab, count: int) -> bool:
    return await lab.count(OutboxStatus.IN_FLIGHT) == count
