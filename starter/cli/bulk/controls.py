"""`redrive bulk pause|resume|stop|approve`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from cyclopts import Parameter

from redrive.bulk import BulkAnswer
from redrive.bulk_client import BulkOperations
from redrive.contracts import DEFAULT_TENANT
from redrive.settings import read_settings
from redrive.starter.cli.bulk.lists import Bulk
from redrive.starter.cli.command_options import By, Reason, asked_by, own_person
from redrive.starter.cli.records import open_records
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.sdk import connect_to_change
from redrive.starter.cli.terminal import Json, console
from redrive.store.approvals import approve_bulk
from redrive.store.bulk.lists import get_bulk


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Controlling:
    """The options of a command to a bulk operation."""

    reason: Reason
    by: By = None
    json: Json = False


async def pause(bulk: Bulk, /, *, how: Controlling) -> None:
    """Send nothing more for now; commands under way finish.

    **Example**

    `redrive bulk pause bulk-6e66dd01a1e2177540731697934191a0 --reason "the provider is slow"`
    """
    await _control(BulkOperations.pause, bulk, how)


async def resume(bulk: Bulk, /, *, how: Controlling) -> None:
    """Continue after a pause.

    **Example**

    `redrive bulk resume bulk-6e66dd01a1e2177540731697934191a0 --reason "the provider is well"`
    """
    await _control(BulkOperations.resume, bulk, how)


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
