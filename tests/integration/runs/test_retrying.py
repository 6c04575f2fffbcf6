"""Retries in flight: listed while a step waits for its next attempt, off the list when the step has ended."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog
from pydantic import SecretStr
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from redrive import ModuleContext, Pipeline, Registry, RunStatus, Terminal, Transient
from redrive.activities.maintenance import KeyActivities
from redrive.categories import Category
from redrive.connection import database_url
from redrive.postgres.database import CircuitBreaker, Database, open_pool
from redrive.postgres.tenancy import Pool, reading
from redrive.redaction.redactor import Redactor
from redrive.settings import Settings
from redrive.store.runs import RetryingFilter, RetryingStep, list_retrying, put_retrying
from tests.alerts import SILENT
from tests.conftest import WorkerFactory, eventually
from tests.integration.runs.samples import Number, add_good_pipeline, milliseconds, quick, settled
from tests.integration.store.letters import new_tenant
from tests.integration.store.retrying import new_retrying


@pytest.fixture
async def pool(settings: Settings) -> AsyncIterator[Pool]:
    """The application's connections to the records."""
    async with await open_pool(database_url(settings), max_size=2) as pool:
        yield pool


@pytest.fixture
def tenant() -> str:
    """A tenant of the test's own."""
    return new_tenant()


async def listed(pool: Pool, tenant: str) -> list[RetryingStep]:
    """Return the tenant's retries in flight."""
    return (await list_retrying(pool, RetryingFilter(tenant=tenant))).rows


def add_patient(registry: Registry, wait: float, last: BaseException | None = None, *, fast: bool = False) -> None:
    """Register a pipeline `p` of one step that fails twice, waits each time, and then works or fails for good."""

    policy = quick(base=wait, factor=1, cap=wait, timeout=5 if fast else 20)

    @registry.module("patient", policy=policy, fast=fast)
    async def patient(ctx: ModuleContext, given: Number) -> Number:
        if ctx.attempt < 3:
            raise Transient(f"password=hunter2 was refused, try {ctx.attempt}", category=Category.NETWORK)
        if last is not None:
            raise last
        return given

    Pipeline("p", patient, registry=registry)


@pytest.mark.parametrize(
    ("last", "end", "fast"),
    [
        (None, RunStatus.SUCCESS, False),
        (Terminal("never"), RunStatus.DLQ_PENDING, False),
        (None, RunStatus.SUCCESS, True),
    ],
    ids=["healed", "exhausted", "fast"],
)
async def test_a_step_is_listed_while_it_waits_and_gone_when_it_has_ended(
    *,
    worker: WorkerFactory,
    registry: Registry,
    pool: Pool,
    tenant: str,
    last: BaseException | None,
    end: RunStatus,
    fast: bool,
) -> None:
    """Each of its waits shows, with the attempt, the redacted error and when it goes on; another tenant sees none."""
    add_patient(registry, 1.5, last, fast=fast)
    async with worker() as running:
        started = await running.redrive.start("p", {}, tenant=tenant)
        for attempt in (1, 2):

            async def waits(attempt: int = attempt) -> RetryingStep | None:
                return next((row for row in await listed(pool, tenant) if row.attempt == attempt), None)

            row = await eventually(waits)
            assert (row.run_id, row.step, row.pipeline, row.cycle) == (started.run_id, "patient", "p", 1)
            assert (row.max_attempts, row.category, row.error_type) == (4, Category.NETWORK, "Transient")
            assert row.error == f"password=[redacted] was refused, try {attempt}"
            assert (row.next_at - row.failed_at).total_seconds() == 1.5
            assert await listed(pool, new_tenant()) == []
        view = await settled(running.redrive, started.run_id)
    assert view.status is end
    assert await listed(pool, tenant) == []


async def test_a_step_that_succeeds_at_once_asks_the_list_nothing(
    worker: WorkerFactory, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The happy path pays nothing: no statement about retries is sent."""
    asked: list[object] = []
    ask = CircuitBreaker.ask

    async def counted(self: CircuitBreaker, question: Any, tell: Any) -> Any:
        if "Retries" in question.__qualname__:
            asked.append(question)
        return await ask(self, question, tell)

    monkeypatch.setattr(CircuitBreaker, "ask", counted)
    add_good_pipeline(registry)
    add_patient(registry, 0.01)
    async with worker() as running:
        good = await running.redrive.start("good", {})
        await running.redrive.result(good.run_id)
        assert asked == []
        patient = await running.redrive.start("p", {})
        await running.redrive.result(patient.run_id)
    # The counting counts: two failures and the end.
    assert len(asked) == 3


async def _black_hole() -> asyncio.Server:
    """Listen, and say nothing: a database that hangs."""

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    return await asyncio.start_server(keep, "127.0.0.1", 0)


@pytest.mark.parametrize("how", ["refuses", "hangs"])
async def test_without_postgres_an_attempt_goes_on(worker: WorkerFactory, registry: Registry, how: str) -> None:
    """A database that is away fails no attempt and holds up none for more than a second; it is asked once in 5 s."""
    calls: list[float] = []

    @registry.module("flaky", policy=quick(base=milliseconds(50), factor=1, max_attempts=4))
    async def flaky(ctx: ModuleContext, given: Number) -> Number:
        calls.append(time.monotonic())
        if ctx.attempt < 4:
            raise Transient("not yet")
        return given

    add_good_pipeline(registry)
    Pipeline("p", flaky, registry.modules["good"], registry=registry)
    async with await _black_hole() as hole:
        port = hole.sockets[0].getsockname()[1] if how == "hangs" else 1
        away = SecretStr(f"postgresql://nobody:nothing@127.0.0.1:{port}/none")
        async with worker(database_url=away) as running:
            with structlog.testing.capture_logs() as lines:
                started = await running.redrive.start("p", {})
                view = await settled(running.redrive, started.run_id)
    assert (view.status, view.steps[0].attempt) == (RunStatus.SUCCESS, 4)
    # Of four questions the first is asked, and on a slow machine another one 5 s later.
    assert [line["event"] for line in lines].count("step.retry_not_listed") in {1, 2}
    # Each would wait 10 s for a connection that hangs.
    assert calls[-1] - calls[0] < 10
    assert [entry.attempt for entry in view.steps[0].attempts] == [1, 2, 3]


async def test_a_terminated_run_is_forgotten_by_the_sweep(
    *, worker: WorkerFactory, registry: Registry, settings: Settings, temporal: Client, pool: Pool, tenant: str
) -> None:
    """Its row is not counted when the next attempt is long past, and the sweep over keys deletes it."""
    add_patient(registry, 600)
    async with worker() as running:
        started = await running.redrive.start("p", {}, tenant=tenant)
        row = (await eventually(lambda: listed(pool, tenant)))[0]
        await temporal.get_workflow_handle(started.run_id).terminate("test")
    past = new_retrying(tenant, run_id=row.run_id, step=row.step, attempt=2)
    await put_retrying(pool, past.model_copy(update={"next_at": row.failed_at}), milliseconds(0))
    assert await listed(pool, tenant) == []
    async with Database(database_url(settings)) as database:
        await ActivityEnvironment().run(KeyActivities(temporal, database, Redactor(), SILENT).expire_keys)
    async with reading(pool, tenant) as connection:
        assert await connection.fetchval("SELECT count(*) FROM retrying") == 0
