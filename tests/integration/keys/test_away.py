"""Starts with a key while PostgreSQL or Temporal is away."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
import structlog
from pydantic import SecretStr
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RetryConfig

from redrive import (
    IdempotencyMismatch,
    ModuleContext,
    OutcomeUnknown,
    Pipeline,
    Redrive,
    Registry,
    RunStatus,
    Transient,
    Unavailable,
    missed_ends,
)
from redrive.activities.run_records import once
from redrive.connection import database_url, owner_database_url
from redrive.contracts import ClaimRequest, KeyStatus
from redrive.idempotency.claims import Claim
from redrive.idempotency.postgres_claims import PostgresClaims, claim_key
from redrive.keys import request_hash
from redrive.missed_ends import MissedEnds
from redrive.postgres.database import Database, connect
from redrive.postgres.tenancy import Executor, Pool
from redrive.redaction.redactor import Redactor
from redrive.settings import Settings
from redrive.store.keys import KeyRecord, get_key
from redrive.store.runs import Execution
from tests.conftest import WorkerFactory, eventually
from tests.integration.runs.samples import Number, add_good_pipeline

NOBODY = "127.0.0.1:1"


async def test_without_postgres_a_start_works_and_the_row_comes_later(
    *, worker: WorkerFactory, registry: Registry, settings: Settings, caller: Redrive, pool: Pool, tenant: str
) -> None:
    """Temporal's lock holds; the worker writes the row; until then an ended run is no answer, for it may be reset."""
    add_good_pipeline(registry)
    claims = PostgresClaims(f"postgresql://nobody:nothing@{NOBODY}/none")
    lonely = Redrive(caller._client, task_queue=settings.task_queue, registry=registry, claims=claims)
    with structlog.testing.capture_logs() as lines:
        first = await lonely.start("good", {"n": 1}, tenant=tenant, key="k")
        second = await lonely.start("good", {"n": 1}, tenant=tenant, key="k")
    unwritten = await get_key(pool, tenant, "k")
    async with worker():
        result = await caller.result(first.run_id)
    with pytest.raises(OutcomeUnknown, match="try the same key again"):
        await lonely.start("good", {"n": 1}, tenant=tenant, key="k")
    written = await get_key(pool, tenant, "k")
    answer = await caller.start("good", {"n": 1}, tenant=tenant, key="k")
    assert (first.is_cached, second.is_cached, unwritten) == (False, True, None)
    # Once for both: after a failure the database is not asked for a while.
    assert [line["event"] for line in lines] == ["key.home_not_checked"]
    assert written is not None
    assert (written.status, written.request_hash != "") == (KeyStatus.COMPLETED, True)
    assert (answer.run_id, answer.is_cached, answer.response) == (first.run_id, True, result.output)


@contextlib.asynccontextmanager
async def locked_tables(settings: Settings) -> AsyncIterator[None]:
    """Lock what a start and an end write, as a migration by hand does."""
    owner = await connect(owner_database_url(settings))
    try:
        async with owner.transaction():
            await owner.execute("LOCK TABLE redrive.idempotency_keys, redrive.runs IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        await owner.close()


async def _ended_key(pool: Pool, tenant: str) -> KeyRecord | None:
    record = await get_key(pool, tenant, "k")
    return record if record and record.status is not KeyStatus.PROCESSING else None


async def test_key_of_a_run_that_began_and_ended_without_postgres_gets_its_row(
    *, worker: WorkerFactory, registry: Registry, settings: Settings, caller: Redrive, pool: Pool, tenant: str
) -> None:
    """Nobody asks with the key again, nobody sweeps: the row is there all the same, with the end."""
    add_good_pipeline(registry)
    async with worker():
        async with locked_tables(settings):
            started = await caller.start("good", {"n": 1}, tenant=tenant, key="k")
            result = await caller.result(started.run_id)
        record = await eventually(lambda: _ended_key(pool, tenant))
    assert (record.run_id, record.status, record.response) == (started.run_id, KeyStatus.COMPLETED, result.output)


async def test_key_whose_claim_a_crash_has_undone_gets_its_row(
    *, worker: WorkerFactory, registry: Registry, settings: Settings, caller: Redrive, pool: Pool, tenant: str
) -> None:
    """A claim does not wait for the disk. Its run ends while PostgreSQL is down: no sweep would look for the key."""
    released = asyncio.Event()

    @registry.module("wait")
    async def wait(ctx: ModuleContext, given: Number) -> Number:
        await released.wait()
        return given

    Pipeline("waiting", wait, registry=registry)
    async with worker():
        started = await caller.start("waiting", {"n": 1}, tenant=tenant, key="k")
        await _undo_claim(settings, tenant)
        async with locked_tables(settings):
            released.set()
            result = await caller.result(started.run_id)
            # The statement that the worker gave up would still write when it gets the lock, as no crash lets it.
            await eventually(lambda: _is_given_up(settings))
        record = await eventually(lambda: _ended_key(pool, tenant))
    assert (record.run_id, record.status, record.response) == (started.run_id, KeyStatus.COMPLETED, result.output)


async def _is_given_up(settings: Settings) -> bool:
    owner = await connect(owner_database_url(settings))
    try:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT put_finished%' AND state = 'active'"
        return bool(await owner.fetchval(waiting) == 0)
    finally:
        await owner.close()


async def _undo_claim(settings: Settings, tenant: str) -> None:
    owner = await connect(owner_database_url(settings))
    try:
        assert await owner.execute("DELETE FROM redrive.idempotency_keys WHERE tenant = $1", tenant) == "DELETE 1"
    finally:
        await owner.close()


async def test_key_whose_run_ends_while_its_row_is_written_has_the_end(
    *,
    monkeypatch: pytest.MonkeyPatch,
    worker: WorkerFactory,
    registry: Registry,
    temporal: Client,
    pool: Pool,
    tenant: str,
) -> None:
    """The run was open when it was asked; its own report of the end found no database."""
    may_end = asyncio.Event()

    @registry.module("patient")
    async def patient(ctx: ModuleContext, given: Number) -> Number:
        await may_end.wait()
        return given

    Pipeline("patient", patient, registry=registry)

    async def claim_late(database: Executor, request: ClaimRequest, *, free_failed: bool) -> Claim:
        may_end.set()
        await temporal.get_workflow_handle(request.run_id).result()
        return await claim_key(database, request, free_failed=free_failed)

    monkeypatch.setattr(missed_ends, "claim_key", claim_late)
    nowhere = f"postgresql://nobody:nothing@{NOBODY}/none"
    async with worker(database_url=SecretStr(nowhere)) as running:
        lonely = Redrive(
            temporal, task_queue=running.settings.task_queue, registry=registry, claims=PostgresClaims(nowhere)
        )
        started = await lonely.start("patient", {"n": 1}, tenant=tenant, key="k")
        request = ClaimRequest(
            tenant=tenant,
            key="k",
            run_id=started.run_id,
            pipeline="patient",
            request_hash="",
            expires_at=datetime.now(UTC) + timedelta(days=1),
        )
        await MissedEnds(temporal, pool, Redactor()).record_key(request)
    record = await get_key(pool, tenant, "k")
    assert record is not None
    assert (record.run_id, record.status, record.response) == (started.run_id, KeyStatus.COMPLETED, {"n": 1})


async def test_key_of_a_run_that_is_open_when_postgres_is_back_is_in_process(
    *, worker: WorkerFactory, registry: Registry, settings: Settings, temporal: Client, pool: Pool, tenant: str
) -> None:
    """The row has the fingerprint of the run's own request, whoever asked for the row."""
    add_good_pipeline(registry)
    first = Redrive(temporal, task_queue=f"{settings.task_queue}-later", registry=registry)
    started = await first.start("good", {"n": 1}, tenant=tenant, key="k")
    claims = PostgresClaims(f"postgresql://nobody:nothing@{NOBODY}/none")
    lonely = Redrive(temporal, task_queue=settings.task_queue, registry=registry, claims=claims)
    with pytest.raises(IdempotencyMismatch):
        await lonely.start("good", {"n": 2}, tenant=tenant, key="k")
    async with worker():
        record = await eventually(lambda: get_key(pool, tenant, "k"))
    assert (record.run_id, record.status) == (started.run_id, KeyStatus.PROCESSING)
    assert record.request_hash == request_hash("good", {"n": 1})
    await temporal.get_workflow_handle(started.run_id).terminate()


async def _never_connected(_: Settings) -> Client:
    return await Client.connect(NOBODY, lazy=True, data_converter=pydantic_data_converter)


async def _cut_off(settings: Settings) -> Client:
    """Return a client whose way to Temporal was there once, and is gone."""
    host, _, port = (settings.temporal_address or "").partition(":")
    writers: list[asyncio.StreamWriter] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, out = await asyncio.open_connection(host, int(port))
        writers.extend((writer, out))
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(_copy(reader, out), _copy(onward, writer))

    way = await asyncio.start_server(forward, "127.0.0.1", 0)
    address = ":".join(map(str, way.sockets[0].getsockname()))
    client = await Client.connect(
        address, data_converter=pydantic_data_converter, retry_config=RetryConfig(max_retries=1)
    )
    way.close()
    for writer in writers:
        writer.close()
    return client


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@pytest.mark.parametrize("way", [_never_connected, _cut_off])
async def test_without_temporal_a_start_is_a_retryable_error_and_leaves_no_row(
    *,
    registry: Registry,
    settings: Settings,
    caller: Redrive,
    pool: Pool,
    tenant: str,
    way: Callable[[Settings], Awaitable[Client]],
) -> None:
    """The caller is told to try the same key again, the key is free, and a key that has ended is answered."""
    add_good_pipeline(registry)
    away = await way(settings)
    claims = PostgresClaims(database_url(settings))
    async with Redrive(away, task_queue=settings.task_queue, registry=registry, claims=claims) as cut_off:
        with pytest.raises(Unavailable, match="try the same key again"):
            await cut_off.start("good", {"n": 1}, tenant=tenant, key="k")
        given_back = await get_key(pool, tenant, "k")
        started = await caller.start("good", {"n": 1}, tenant=tenant, key="k")
        await caller._client.get_workflow_handle(started.run_id).terminate("test")
        await caller.start("good", {"n": 1}, tenant=tenant, key="k")
        answer = await cut_off.start("good", {"n": 1}, tenant=tenant, key="k")
    assert given_back is None
    assert not started.is_cached
    assert (answer.run_id, answer.is_cached, answer.status) == (started.run_id, True, RunStatus.FAILED)


async def test_a_module_with_dedupe_does_not_run_without_its_fence(tenant: str) -> None:
    """The step is tried again later: that its effects come once is what its author asked for."""
    calls: list[int] = []

    async def run() -> Number:
        calls.append(1)
        return Number()

    async with Database(f"postgresql://nobody:nothing@{NOBODY}/none") as database:
        with pytest.raises(Transient, match="the stored results cannot be reached"):
            await once(database, Execution(tenant, "k", "run-1", "pay", 1, 1), run)
    assert calls == []
