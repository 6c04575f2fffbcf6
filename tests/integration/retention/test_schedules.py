"""Schedules purge what is old and note the heads of the audit log, once for a deployment."""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pydantic import SecretStr
from temporalio.client import Client, ScheduleHandle

from redrive.contracts import AnchorMark, PurgeReport, Workflow
from redrive.postgres.database import connect, open_pool
from redrive.schedules import keep_schedules
from redrive.settings import AnchorSettings, Settings
from redrive.starter.stack.state import StackInfo
from redrive.store.audit import Match, compare, read_head
from tests.conftest import WorkerFactory, eventually, owner_url
from tests.integration.dead_letters.sink import Sink
from tests.integration.store.letters import new_tenant
from tests.integration.store.old_rows import SEED

NAMES = ("redrive-expire-keys", "redrive-anchor-audit", "redrive-purge")


@pytest.fixture
async def schedules(
    temporal: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[dict[str, ScheduleHandle]]:
    """The schedules of the test's queue, asked for by two workers.

    None is due within years: the sweep over all runs would delete the rows of runs that Temporal never had.
    """
    for interval in ("SWEEP_INTERVAL", "ANCHOR_INTERVAL", "PURGE_INTERVAL"):
        monkeypatch.setattr(f"redrive.schedules.{interval}", timedelta(days=36_500))
    for _ in range(2):
        await keep_schedules(temporal, settings.task_queue)
    handles = {name: temporal.get_schedule_handle(f"{name}-{settings.task_queue}") for name in NAMES}
    yield handles
    for handle in handles.values():
        await handle.delete()


@pytest.fixture
async def owner(stack: StackInfo) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A connection of the owner of the tables."""
    connection = await connect(owner_url(stack))
    await connection.execute("SET search_path = redrive")
    yield connection
    await connection.close()


async def _results(temporal: Client, settings: Settings, workflow: Workflow, kind: type, count: int) -> list[Any]:
    """Wait until a schedule has run so often, and return what its runs have left, the oldest first."""
    query = f"WorkflowType = '{workflow}' AND TaskQueue = '{settings.task_queue}' AND ExecutionStatus = 'Completed'"

    async def done() -> list[Any] | None:
        found = sorted([each async for each in temporal.list_workflows(query)], key=lambda each: each.start_time)
        return found if len(found) >= count else None

    executions = await eventually(done, within=60)
    return [
        await temporal.get_workflow_handle(each.id, run_id=each.run_id, result_type=kind).result()
        for each in executions
    ]


async def test_what_is_old_is_purged_by_the_schedule(
    worker: WorkerFactory,
    temporal: Client,
    settings: Settings,
    schedules: dict[str, ScheduleHandle],
    owner: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    """Of all tenants; what is open stays."""
    tenants = [new_tenant(), new_tenant()]
    for tenant in tenants:
        await owner.execute(SEED["runs"], tenant, 3)
        await owner.execute(SEED["runs open"], tenant, 2)
    async with worker():
        await schedules["redrive-purge"].trigger()
        [report] = await _results(temporal, settings, Workflow.PURGE_RECORDS, PurgeReport, 1)
    assert report.deleted["runs"] >= 6
    for tenant in tenants:
        assert await owner.fetchval("SELECT count(*) FROM runs WHERE tenant = $1", tenant) == 2


async def test_heads_are_noted_in_a_file_and_at_a_webhook(
    worker: WorkerFactory,
    settings: Settings,
    schedules: dict[str, ScheduleHandle],
    owner: "asyncpg.Connection[asyncpg.Record]",
    tmp_path: Path,
) -> None:
    """Each time those that have grown: they fit the log, and the webhook's body is signed."""
    tenant, file = new_tenant(), tmp_path / "heads.jsonl"
    add = "INSERT INTO audit_log (tenant, action, actor) VALUES ($1, 'orphaned', 'redrive')"
    await owner.execute(add, tenant)
    async with Sink() as sink:
        anchor = AnchorSettings(file=file, webhook_url=sink.url, webhook_secret=SecretStr("a secret"))
        async with worker(audit_anchor=anchor) as running:
            await schedules["redrive-anchor-audit"].trigger()
            [first] = await _results(running.temporal, settings, Workflow.ANCHOR_AUDIT, AnchorMark, 1)
            await owner.execute(add, tenant)
            await schedules["redrive-anchor-audit"].trigger()
            [_, second] = await _results(running.temporal, settings, Workflow.ANCHOR_AUDIT, AnchorMark, 2)
    assert second.since > first.since
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    heads = [read_head(tenant, line["head"]) for line in lines if line["tenant"] == tenant]
    assert [head.number for head in heads] == [1, 2]
    assert settings.database_url
    async with await open_pool(settings.database_url.get_secret_value(), max_size=1) as pool:
        assert [match for _, match in await compare(pool, heads)] == [Match.FITS, Match.FITS]
    told = [head for post in sink.received for head in json.loads(post.body)["heads"] if head["tenant"] == tenant]
    assert [head["head"] for head in told] == [str(head) for head in heads]
    for post in sink.received:
        signed = post.headers["x-redrive-timestamp"].encode() + b"." + post.body
        expected = hmac.new(b"a secret", signed, hashlib.sha256).hexdigest()
        assert post.headers["x-redrive-signature"] == f"sha256={expected}"
