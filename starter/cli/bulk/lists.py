"""`redrive bulk …`: show bulk operations, pause, resume and stop them. `commands.py` starts them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from redrive.bulk import PAGE_LIMIT, BulkAnswer, BulkView, ItemsRequest, ItemStatus
from redrive.bulk_client import BulkOperations
from redrive.connection import connect_temporal
from redrive.contracts import DEFAULT_TENANT
from redrive.errors import Unavailable
from redrive.run_probe import execution_status
from redrive.settings import read_settings
from redrive.starter.cli.bulk.views import bulk_view, bulks_table, follow_bulk, items_table, judge
from redrive.starter.cli.command_options import By, Reason, asked_by, own_person
from redrive.starter.cli.records import open_records
from redrive.starter.cli.runs.views import print_first, print_json, say_more
from redrive.starter.cli.sdk import connect_to_change
from redrive.starter.cli.terminal import Json, console, errors
from redrive.store.approvals import approve_bulk
from redrive.store.bulk.operations import get_bulk, list_bulks, list_items

app = App(name="bulk")
_MOST_LISTED = 100
app.command("redrive.starter.cli.bulk.commands:plan", help="Show what a bulk operation would do, and its hash.")
app.command("redrive.starter.cli.bulk.commands:replay", help="Replay all dead letters that match.")
app.command("redrive.starter.cli.bulk.commands:resolve", help="Resolve all dead letters that match with one output.")
app.command(
    "redrive.starter.cli.bulk.commands:discard",
    name=["discard", "ignore"],
    help="Discard all dead letters that match; their runs end FAILED.",
)

Bulk = Annotated[str, Parameter(name="ID", help="The bulk operation's id, or a beginning of it that no other has.")]


@app.command
async def show(bulk: Bulk, /, *, json: Json = False) -> None:
    """Show a bulk operation: its progress, who asked for it and why, and how it ended.

    **Example**

    `redrive bulk show bulk-6e66dd01a1e2177540731697934191a0`
    """
    async with open_records(read_settings()) as pool:
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
    try:
        client = await connect_temporal(read_settings())
        return await execution_status(client, view.id) is not WorkflowExecutionStatus.RUNNING
    except (Unavailable, RPCError):
        return False


@app.command
async def watch(bulk: Bulk, /, *, json: Json = False) -> None:
    """Follow a bulk operation until it has ended. Ctrl-C stops watching.

    **Example**

    `redrive bulk watch bulk-6e66dd01a1e2177540731697934191a0`
    """
    async with open_records(read_settings()) as pool:
        found = await get_bulk(pool, None, bulk)
        view = await follow_bulk(pool, found.id, quiet=json)
    if json:
        print_json(view)
    judge(view)


@app.command(name="list")
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
    async with open_records(read_settings()) as pool:
        views = await list_bulks(pool, tenant, limit + 1)
    print_first(views, bulks_table, limit=limit, most=_MOST_LISTED, none="no bulk operations", json=json)


@app.command
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
    async with open_records(read_settings()) as pool:
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


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Controlling:
    """The options of a command to a bulk operation."""

    reason: Reason
    by: By = None
    json: Json = False


@app.command
async def pause(bulk: Bulk, /, *, how: Controlling) -> None:
    """Send nothing more for now; commands under way finish.

    **Example**

    `redrive bulk pause bulk-6e66dd01a1e2177540731697934191a0 --reason "the provider is slow"`
    """
    await _control(BulkOperations.pause, bulk, how)


@app.command
async def resume(bulk: Bulk, /, *, how: Controlling) -> None:
    """Continue after a pause.

    **Example**

    `redrive bulk resume bulk-6e66dd01a1e2177540731697934191a0 --reason "the provider is well"`
    """
    await _control(BulkOperations.resume, bulk, how)


@app.command
async def stop(bulk: Bulk, /, *, how: Controlling) -> None:
    """End it: commands under way finish, the rest is skipped.

    **Example**

    `redrive bulk stop bulk-6e66dd01a1e2177540731697934191a0 --reason "too many fail"`
    """
    await _control(BulkOperations.stop, bulk, how)


async def _control(send: Callable[..., Awaitable[BulkAnswer]], bulk: str, how: Controlling) -> None:
    settings = read_settings()
    redrive = await connect_to_change(settings)
    async with open_records(settings) as pool:
        found = await get_bulk(pool, None, bulk)
    answer = await send(redrive.bulk, found.id, tenant=found.tenant, requested_by=asked_by(how.by), reason=how.reason)
    if how.json:
        print_json(answer)
    else:
        console.print(answer.message, markup=False, soft_wrap=True)


@app.command
async def approve(
    plan: Annotated[str, Parameter(name="PLAN", help="The hash that the plan has.")],
    /,
    *,
    reason: Reason,
    tenant: str = DEFAULT_TENANT,
    by: By = None,
) -> None:
    """Approve a plan that somebody else tried to start. Needed where workers have `REDRIVE_APPROVALS=on`.

    Plan it yourself first, with the same options and the `--until` that the plan shows: the hash must be the same. You
    are your account here, whatever `--by` says.

    **Example**

    `redrive bulk approve 41d2f0… --reason "three groups, all of the outage"`

    Parameters
    ----------
    tenant
        The plan's tenant.
    """
    settings = read_settings()
    redrive = await connect_to_change(settings)
    async with open_records(settings) as pool:
        await redrive.bulk.approve(
            plan,
            partial(approve_bulk, pool, settings.redactor()),
            tenant=tenant,
            approved_by=asked_by(by),
            reason=reason,
            person=own_person(),
        )
    console.print(f"approved: {plan}; it can be started now, once", markup=False)
