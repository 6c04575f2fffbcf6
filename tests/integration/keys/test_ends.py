"""Temporal, the run's row and its key tell the same end, whenever a cancellation or an outage comes."""

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.testing import ActivityEnvironment

from redrive import ModuleContext, Pipeline, Redrive, Registry, RunStatus
from redrive.activities.maintenance import KeyActivities
from redrive.connection import database_url
from redrive.contracts import RunSummary
from redrive.errors import InvalidInput, RunCanceled
from redrive.postgres.database import Database
from redrive.postgres.tenancy import Pool
from redrive.processes import temporal as temporal_program
from redrive.redaction.redactor import Redactor
from redrive.settings import Settings
from redrive.store.runs import RunFilter, list_runs
from tests.alerts import SILENT
from tests.conftest import WorkerFactory, eventually
from tests.integration.runs.samples import Number, add_good_pipeline

RUNS = 60
LONGEST = 0.5


@pytest.fixture
def good(registry: Registry, caller: Redrive) -> Redrive:
    """A caller with durable keys, of a pipeline that succeeds."""
    add_good_pipeline(registry)

    @registry.module("short", timeout=timedelta(seconds=2), fast=True)
    async def short(ctx: ModuleContext, given: Number) -> Number:
        await asyncio.sleep(LONGEST / 3)
        return given

    Pipeline("fast", short, registry=registry)
    return caller


async def _rows(pool: Pool, tenant: str) -> dict[str, RunSummary]:
    return {row.run_id: row for row in (await list_runs(pool, RunFilter(tenant=tenant), 1000)).rows}


@pytest.mark.parametrize("pipeline", ["good", "fast"])
async def test_a_cancellation_at_any_moment_leaves_one_truth(
    *, worker: WorkerFactory, good: Redrive, temporal: Client, pool: Pool, tenant: str, pipeline: str
) -> None:
    """A run that Temporal calls canceled is a success nowhere, and the other way round."""
    ends: dict[str, tuple[str, WorkflowExecutionStatus | None]] = {}

    async def cancel(number: int) -> None:
        started = await good.start(pipeline, {"n": 1}, tenant=tenant, key=f"k{number}")
        await asyncio.sleep(number * LONGEST / RUNS)
        handle = temporal.get_workflow_handle(started.run_id)
        with suppress(InvalidInput):  # it has ended already
            await good.cancel(started.run_id, reason="a test")
        with suppress(RunCanceled):
            await good.result(started.run_id)
        ends[started.run_id] = (f"k{number}", (await handle.describe()).status)

    async with worker():
        for group in range(0, RUNS, 10):
            await asyncio.gather(*(cancel(number) for number in range(group, group + 10)))
    rows = await _rows(pool, tenant)
    for run_id, (key, status) in ends.items():
        answer = await good.start(pipeline, {"n": 1}, tenant=tenant, key=key)
        is_success = status is WorkflowExecutionStatus.COMPLETED
        assert (answer.run_id, answer.status is RunStatus.SUCCESS) == (run_id, is_success)
        assert (run_id in rows and rows[run_id].status is RunStatus.SUCCESS) == is_success
    assert {status for _, status in ends.values()} == {
        WorkflowExecutionStatus.COMPLETED,
        WorkflowExecutionStatus.CANCELED,
    }


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "asked"])
async def test_a_run_of_fast_steps_has_its_row_and_its_key_answers(
    *,
    worker: WorkerFactory,
    good: Redrive,
    pool: Pool,
    tenant: str,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are written when Temporal has taken the run's end; a worker that was not told so asks."""
    if not is_told:
        monkeypatch.setattr(temporal_program, "_is_closed", lambda _leaving: None)
    async with worker():
        started = await good.start("fast", {"n": 7}, tenant=tenant, key="k")
        await good.result(started.run_id)

        async def settled() -> bool:
            rows = await _rows(pool, tenant)
            return started.run_id in rows and rows[started.run_id].status is RunStatus.SUCCESS

        await eventually(settled)
        answer = await good.start("fast", {"n": 7}, tenant=tenant, key="k")
    assert (answer.run_id, answer.is_cached, answer.response) == (started.run_id, True, {"n": 7})


async def test_a_row_that_missed_the_end_is_settled_by_the_sweep(
    worker: WorkerFactory, good: Redrive, temporal: Client, settings: Settings, tenant: str
) -> None:
    """The database was down when the run ended: its row says RUNNING until the sweep has asked Temporal."""
    async with worker():
        ended = await good.start("good", {"n": 1}, tenant=tenant)
        await good.result(ended.run_id)
    waits = await good.start("good", {"n": 2}, tenant=tenant)
    async with Database(database_url(settings), max_size=2) as database:
        pool = await database.pool()
        for run_id in (ended.run_id, waits.run_id):
            facts = {"run_id": run_id, "tenant": tenant, "pipeline": "good", "started_at": str(datetime.now(UTC))}
            await pool.execute("SELECT put_run($1)", json.dumps(facts | {"status": RunStatus.RUNNING}))
        activities = KeyActivities(temporal, database, Redactor(), SILENT, quiet=timedelta(0))

        async def swept() -> bool:
            await ActivityEnvironment().run(activities.expire_keys)
            return (await _rows(pool, tenant))[ended.run_id].closed_at is not None

        await eventually(swept)
        rows = await _rows(pool, tenant)
    assert (rows[ended.run_id].status, rows[waits.run_id].status) == (RunStatus.SUCCESS, RunStatus.RUNNING)
