"""A database belongs to one Temporal namespace: another stack that meets its rows says so and leaves them alone."""

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.testing import ActivityEnvironment

from redrive import Redrive, Registry
from redrive.activities.maintenance import KeyActivities
from redrive.connection import database_url
from redrive.errors import OtherNamespace
from redrive.home import adopt, check_home
from redrive.idempotency.postgres_claims import PostgresClaims
from redrive.payloads import data_converter
from redrive.postgres.database import Database, connect
from redrive.redaction.redactor import Redactor
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from redrive.worker import running_worker
from tests.alerts import SILENT
from tests.conftest import eventually, owner_url


@pytest.fixture
async def other(temporal: Client, stack: StackInfo) -> Client:
    """A client of another namespace on the same server."""
    name = f"other-{uuid.uuid4().hex[:8]}"
    retention = Duration(seconds=int(timedelta(days=1).total_seconds()))
    await temporal.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=retention)
    )

    async def is_known() -> bool:
        try:
            client = await Client.connect(stack.temporal_address, namespace=name)
            await client.count_workflows("ExecutionStatus = 'Running'")
        except RPCError:
            return False
        return True

    await eventually(is_known)
    return await Client.connect(stack.temporal_address, namespace=name, data_converter=data_converter)


@pytest.fixture
async def database(settings: Settings, temporal: Client) -> AsyncIterator[Database]:
    """The session's database, which belongs to the session's namespace."""
    async with Database(database_url(settings), max_size=2) as database:
        await check_home(temporal, await database.pool())
        yield database


async def test_rows_of_another_namespace_are_left_alone(
    settings: Settings, temporal: Client, other: Client, database: Database
) -> None:
    """Its worker does not start, its sweep does nothing, and both say why."""
    pool = await database.pool()
    with pytest.raises(OtherNamespace, match=f"belongs to Temporal's namespace '{temporal.namespace}'"):
        await check_home(other, pool)
    with pytest.raises(OtherNamespace):
        await ActivityEnvironment().run(KeyActivities(other, database, Redactor(), SILENT).expire_keys)
    claims = PostgresClaims(database_url(settings))
    async with Redrive(other, task_queue=settings.task_queue, registry=Registry(), claims=claims) as redrive:
        with pytest.raises(OtherNamespace):
            await redrive.start("good", {}, key="k")
    assert [each async for each in other.list_workflows("ExecutionStatus = 'Running'")] == []
    stranger = settings.model_copy(update={"temporal_namespace": other.namespace})
    with pytest.raises(OtherNamespace, match="give each its own database"):
        async with running_worker(stranger, Registry()):
            pass


async def test_records_can_be_given_to_another_namespace(
    stack: StackInfo, temporal: Client, other: Client, database: Database
) -> None:
    """Temporal was lost for good: its successor takes the records over, by the owner's login."""
    owner = await connect(owner_url(stack))
    try:
        await adopt(other, owner)
        await check_home(other, await database.pool())
        with pytest.raises(OtherNamespace):
            await check_home(temporal, await database.pool())
    finally:
        await adopt(temporal, owner)
        await owner.close()
