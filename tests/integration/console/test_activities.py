"""Failing activities of workflows that know nothing of Redrive: listed, paused, tried again."""

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy, SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from redrive.contracts import ActivityVerb, PendingActivity, SearchAttribute
from redrive.settings import Settings
from redrive.starter.cli.runs.activities import command, find_failing
from redrive.starter.stack.state import StackInfo
from tests.conftest import eventually

ADDRESS = "/api/v1/retrying/activities"
FIXED: set[str] = set()


@activity.defn
async def call_bank(case: str) -> str:
    """Fail until the case is fixed."""
    if case not in FIXED:
        raise RuntimeError("the bank is closed, password=hunter22")
    return "called"


@workflow.defn
class Banking:
    """Call the bank for as long as it takes."""

    @workflow.run
    async def run(self, case: str) -> str:
        policy = RetryPolicy(
            initial_interval=timedelta(milliseconds=10),
            backoff_coefficient=100_000,
            # By default it would be a hundred times the first.
            maximum_interval=timedelta(hours=1),
        )
        result: str = await workflow.execute_activity(
            call_bank, case, start_to_close_timeout=timedelta(seconds=5), retry_policy=policy
        )
        return result


@pytest.fixture
async def banking(stack: StackInfo, tenant: str) -> AsyncIterator[WorkflowHandle[Any, Any]]:
    """A workflow without the plugin, of the tenant, whose activity has failed and waits long."""
    client = await Client.connect(stack.temporal_address)
    case = uuid.uuid4().hex
    owner = SearchAttributePair(SearchAttributeKey.for_keyword(SearchAttribute.TENANT), tenant)
    runner = UnsandboxedWorkflowRunner()
    async with Worker(
        client, task_queue=case, workflows=[Banking], activities=[call_bank], workflow_runner=runner, build_id="tests"
    ):
        yield await client.start_workflow(
            Banking.run, case, id=case, task_queue=case, search_attributes=TypedSearchAttributes([owner])
        )


async def test_a_failing_activity_is_listed_paused_and_tried_again(
    admin: httpx.AsyncClient, banking: WorkflowHandle[Any, Any], tenant: str
) -> None:
    """Its error is redacted; each command is in the audit log."""

    async def listed() -> dict[str, Any] | None:
        rows = (await admin.get(ADDRESS)).raise_for_status().json()["activities"]
        # The third attempt is far away.
        return next((row for row in rows if row["workflow_id"] == banking.id and row["attempt"] >= 3), None)

    row = await eventually(listed)
    assert (row["activity"], row["workflow_type"], row["tenant"]) == ("call_bank", "Banking", tenant)
    assert (row["error_type"], row["error"]) == ("RuntimeError", "the bank is closed, password=[redacted]")
    page = (await admin.get("/retrying/activities")).text
    assert "Banking › call_bank" in page
    body = {name: row[name] for name in ("workflow_id", "execution", "activity_id")} | {"reason": "at night"}
    assert (await admin.post(f"{ADDRESS}/pause", json=body)).status_code == 202

    async def paused() -> bool:
        row = await listed()
        return row is not None and row["is_paused"]

    await eventually(paused)
    FIXED.add(banking.id)
    assert (await admin.post(f"{ADDRESS}/unpause", json=body)).status_code == 202
    assert (await admin.post(f"{ADDRESS}/retry", json=body)).status_code in {202, 404}
    assert await banking.result() == "called"
    audit = (await admin.get("/api/v1/audit", params={"limit": 50})).text
    assert "activity_pause_requested" in audit
    assert "activity_unpause_requested" in audit
    gone = await admin.post(f"{ADDRESS}/retry", json=body)
    assert gone.status_code == 404


async def test_the_command_line_lists_it_and_has_it_tried_again(
    banking: WorkflowHandle[Any, Any], console_settings: Settings, tenant: str
) -> None:
    """As the console does; other tenants' workflows are not listed."""

    async def found() -> PendingActivity | None:
        rows = (await find_failing(console_settings, tenant)).activities
        return next((row for row in rows if row.workflow_id == banking.id and row.attempt >= 3), None)

    row = await eventually(found)
    assert not (await find_failing(console_settings, "somebody-else")).activities
    FIXED.add(banking.id)
    await command(console_settings, ActivityVerb.RETRY, banking.id, row.activity_id, by="ada", reason="open again")
    assert await banking.result() == "called"
