"""Which Temporal namespace a database belongs to: two stacks that share one would spoil each other's records.

Temporal's SDK is imported by who asks Temporal: who knows a namespace's id does without it.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from redrive.errors import OtherNamespace, Unavailable
from redrive.postgres.tenancy import Executor

if TYPE_CHECKING:
    import asyncpg
    from temporalio.client import Client

_LONGEST: Final = timedelta(seconds=2)
_NOTE: Final = "SELECT namespace_id, namespace FROM redrive.note_home($1, $2)"
_ADOPT: Final = """
    INSERT INTO redrive.home (namespace_id, namespace) VALUES ($1, $2)
    ON CONFLICT (is_only) DO UPDATE SET namespace_id = $1, namespace = $2, noted_at = now()
"""


async def check_home(client: "Client", database: Executor) -> None:
    """Note that the database belongs to this namespace, or raise that it belongs to another one."""
    await check_namespace(await namespace_id(client), client.namespace, database)


async def check_namespace(own: str, name: str, database: Executor) -> None:
    """Do the same for a namespace whose id is known."""
    if problem := await home_problem(own, name, database):
        raise OtherNamespace(problem)


async def home_problem(own: str, name: str, database: Executor) -> str | None:
    """Say that the database belongs to another namespace, and what to do; None if it belongs to this one."""
    record = await database.fetchrow(_NOTE, own, name)
    if record is None or record["namespace_id"] == own:
        return None
    return (
        f"the database belongs to Temporal's namespace {record['namespace']!r} ({record['namespace_id']}), this is "
        f"{name!r} ({own}): give each its own database; if the other one is gone for good, `redrive reconcile "
        "--adopt` gives its records to this one (while `redrive up --workers 0` runs, in the directory of an `up`)"
    )


async def adopt(client: "Client", owner: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Give the database's records to this namespace. Needs the login of the tables' owner."""
    await owner.execute(_ADOPT, await namespace_id(client), client.namespace)


async def namespace_id(client: "Client") -> str:
    """Return the id of the client's namespace, or raise if Temporal does not answer soon."""
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest  # noqa: PLC0415
    from temporalio.service import RPCError  # noqa: PLC0415

    request = DescribeNamespaceRequest(namespace=client.namespace)
    try:
        answer = await client.workflow_service.describe_namespace(request, timeout=_LONGEST)
    except (RPCError, RuntimeError) as error:
        # A client that was never connected raises RuntimeError.
        raise Unavailable(f"Temporal does not tell the id of its namespace: {error}") from error
    return answer.namespace_info.id
