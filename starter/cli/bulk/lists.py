"""`redrive bulk list|show|items`. They read the records, and load Temporal's SDK for an open operation alone."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from redrive.bulk_records import PAGE_LIMIT, BulkView, ItemsRequest, ItemStatus
from redrive.connection import read_addresses
from redrive.errors import Unavailable
from redrive.starter.cli.bulk.views import bulk_view, bulks_table, items_table
from redrive.starter.cli.records import open_records
from redrive.starter.cli.runs.views import print_first, print_json, say_more
from redrive.starter.cli.terminal import Json, console, errors
from redrive.store.bulk.lists import get_bulk, list_bulks, list_items

_MOST_LISTED = 100
Bulk = Annotated[str, Parameter(name="ID", help="The bulk operation's id, or a beginning of it that no other has.")]


async def show(bulk: Bulk, /, *, json: Json = False) -> None:
    """Show a bulk operation: its progress, who asked for it and why, and how it ended.

    **Example**

    `redrive bulk show bulk-6e66dd01a1e2177540731697934191a0`
    """
    async with open_records(read_addresses()) as pool:
        view = await get_bulk(pool, None, bulk)
    if json:
        print_json(view)
        return
    console.print(bulk_view(view))
    if not view.status.closed and await _is_without_workflow(view):
        errors.print(
            "its workflow is gone: nothing more is sent. `redrive reconcile --repair` ends it; a start with the same "
            "request id continues it",
            markup=False,
        )


async def _is_without_workflow(view: BulkView) -> bool:
    """Tell whether Temporal says that an operation which is open in the records has ended, or does not know it."""
    from temporalio.client import WorkflowExecutionStatus  # noqa: PLC0415
    from temporalio.service import RPCError  # noqa: PLC0415

    from redrive.connection import connect_temporal  # noqa: PLC0415
    from redrive.run_probe import execution_status  # noqa: PLC0415
    from redrive.settings import read_settings  # noqa: PLC0415

    try:
        client = await connect_temporal(read_settings())
        return await execution_status(client, view.id) is not WorkflowExecutionStatus.RUNNING
    except (Unavailable, RPCError):
        return False


async def list_operations(
    *,
    tenant: str | None = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=_MOST_LISTED))] = 20,
    json: Json = False,
) -> None:
    """List the newest bulk operations.

    **Example**

    `redrive bulk list --tenant acme`

    Parameters
    ----------
    tenant
        Only those of this tenant.
    limit
        Maximum number of rows.
    """
    async with open_records(read_addresses()) as pool:
        views = await list_bulks(pool, tenant, limit + 1)
    print_first(views, bulks_table, limit=limit, most=_MOST_LISTED, none="no bulk operations", json=json)


async def items(
    bulk: Bulk,
    /,
    *,
    status: Annotated[ItemStatus | None, Parameter(name_transform=str.lower)] = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=PAGE_LIMIT))] = 100,
    after: int | None = None,
    json: Json = False,
) -> None:
    """List the items of a bulk operation and their outcomes, in the order in which they are sent.

    **Example**

    `redrive bulk items bulk-6e66dd01a1e2177540731697934191a0 --status failed`

    Parameters
    ----------
    status
        Only those with this status.
    limit
        Maximum number of rows.
    after
        Where the previous page ended, as printed there.
    """
    async with open_records(read_addresses()) as pool:
        view = await get_bulk(pool, None, bulk)
        asked = ItemsRequest(tenant=view.tenant, bulk_id=view.id, status=status, limit=limit, after=after)
        page = await list_items(pool, view.tenant, asked)
    if json:
        print_json(page)
        return
    if page.items:
        console.print(items_table(page.items))
    else:
        errors.print("no items")
    if page.after is not None:
        say_more(f"--after {page.after}")
