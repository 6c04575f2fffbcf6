"""Which Temporal namespace a database belongs to: two stacks that share one would spoil each other's records."""

from typing import Final

import asyncpg
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from redrive.errors import OtherNamespace
from redrive.postgres.tenancy import Executor

_NOTE: Final = "SELECT namespace_id, namespace FROM redrive.note_home($1, $2)"
_ADOPT: Final = """
    INSERT INTO redrive.home (namespace_id, namespace) VALUES ($1, $2)
    ON CONFLICT (is_only) DO UPDATE SET namespace_id = $1, namespace = $2, noted_at = now()
"""


async def check_home(client: Client, database: Executor) -> None:
    """Note that the database belongs to this namespace, or raise that it belongs to another one."""
    own = await _namespace_id(client)
    record = await database.fetchrow(_NOTE, own, client.namespace)
    if record is not None and record["namespace_id"] != own:
        raise OtherNamespace(
            f"the database belongs to Temporal's namespace {record['namespace']!r} ({record['namespace_id']}), this is "
            f"{client.namespace!r} ({own}): give each its own database; if the other one is gone for good, `redrive "
            "reconcile --adopt` gives its records to this one"
        )


async def adopt(client: Client, owner: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Give the database's records to this namespace. Needs the login of the tables' owner."""
    await owner.execute(_ADOPT, await _namespace_id(client), client.namespace)


async def _namespace_id(client: Client) -> str:
    answer = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    return answer.namespace_info.id
