"""`/bulk`: one order for many dead letters, planned first. Who orders is the caller, in the caller's tenant."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from console.api.answers import Ordering, refusals
from console.desk import TheDesk
from console.problems import Place, unacceptable
from console.security import Operator, Reader, Scope
from redrive.bulk_orders import (
    PAGE_LIMIT,
    BulkAnswer,
    BulkItems,
    BulkOrder,
    BulkPlan,
    BulkView,
    BulkWork,
    ItemsRequest,
    ItemStatus,
)
from redrive.contracts import NAME_PATTERN, Message, Text255
from store.bulk_lists import get_bulk, list_bulks, list_items

router = APIRouter(prefix="/bulk", tags=["bulk operations"])
_REFUSALS = refusals(400, 404, 409, 413, 415)


class BulkStartOrder(Ordering):
    """Start what was planned: `order` as the plan has it, and the plan's hash."""

    order: BulkWork
    plan_hash: Text255
    allow_unsafe: bool = Field(default=False, description="yes to repeating effects that no key guards")


class Approve(Message):
    """A yes to somebody else's plan."""

    reason: Text255


class Approved(Message):
    """Which plan was approved, for an hour."""

    plan_hash: str


class Bulks(Message):
    """The newest bulk operations."""

    bulk: list[BulkView]


class ItemsPage(Message):
    """Which items, and where the page before ended."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")
    status: ItemStatus | None = None
    limit: int = Field(default=100, ge=1, le=PAGE_LIMIT)
    after: int | None = Field(default=None, ge=0, le=2**31 - 1)


def one_tenant(tenant: Scope) -> str:
    """Return the tenant that a change is for: an owner, who has all, has to name one."""
    if tenant is None:
        raise unacceptable([Place(place="query.tenant", problem="an owner has to say in which tenant")])
    return tenant


def order_in(tenant: str, work: BulkWork) -> BulkOrder:
    """Return an order for a tenant."""
    return BulkOrder(**dict(work), tenant=tenant)


@router.post("/plan", responses=refusals(400, 413, 415))
async def plan(desk: TheDesk, _caller: Operator, tenant: Scope, work: BulkWork) -> BulkPlan:
    """Tell what a bulk operation would do: how many, which steps run again, which effects that repeats. With a hash."""
    return await (await desk.redrive()).bulk.plan(order_in(one_tenant(tenant), work))


@router.post("/plan/{plan_hash}/approve", responses=_REFUSALS)
async def approve(desk: TheDesk, caller: Operator, tenant: Scope, plan_hash: str, wanted: Approve) -> Approved:
    """Approve somebody else's plan, for an hour and one start (`REDRIVE_APPROVALS=on`)."""
    bulk = (await desk.redrive()).bulk
    await bulk.approve(plan_hash, tenant=one_tenant(tenant), approved_by=caller.name[:255], reason=wanted.reason)
    return Approved(plan_hash=plan_hash)


@router.post("", status_code=202, responses=_REFUSALS)
async def start(desk: TheDesk, caller: Operator, tenant: Scope, wanted: BulkStartOrder) -> BulkAnswer:
    """Start what was planned. A plan that does not hold any more is refused: 409 `PLAN_CHANGED`."""
    planned = BulkPlan(hash=wanted.plan_hash, order=order_in(one_tenant(tenant), wanted.order), count=0, groups=[])
    return await (await desk.redrive()).bulk.start(
        planned,
        requested_by=caller.name[:255],
        reason=wanted.reason,
        allow_unsafe=wanted.allow_unsafe,
        request_id=wanted.request_id,
    )


@router.get("", responses=refusals())
async def bulks(desk: TheDesk, _caller: Reader, tenant: Scope) -> Bulks:
    """List the newest bulk operations."""
    return Bulks(bulk=await list_bulks(await desk.pool(), tenant))


@router.get("/{bulk_id}", responses=refusals(404))
async def bulk(desk: TheDesk, _caller: Reader, tenant: Scope, bulk_id: str) -> BulkView:
    """Show a bulk operation: how far it is, who asked for it and why, and how it ended."""
    return await get_bulk(await desk.pool(), tenant, bulk_id)


@router.get("/{bulk_id}/items", responses=refusals(404))
async def items(
    desk: TheDesk, _caller: Reader, tenant: Scope, bulk_id: str, choice: Annotated[ItemsPage, Query()]
) -> BulkItems:
    """List what became of each dead letter, and why."""
    pool = await desk.pool()
    found = await get_bulk(pool, tenant, bulk_id)
    wanted = choice.model_dump(include={"status", "limit", "after"})
    return await list_items(pool, found.tenant, ItemsRequest(tenant=found.tenant, bulk_id=found.id, **wanted))


@router.post("/{bulk_id}/pause", status_code=202, responses=_REFUSALS)
async def pause(desk: TheDesk, caller: Operator, tenant: Scope, bulk_id: str, wanted: Ordering) -> BulkAnswer:
    """Send nothing more for now; what is under way ends."""
    found = await get_bulk(await desk.pool(), tenant, bulk_id)
    operations = (await desk.redrive()).bulk
    return await operations.pause(found.id, tenant=found.tenant, requested_by=caller.name[:255], reason=wanted.reason)


@router.post("/{bulk_id}/resume", status_code=202, responses=_REFUSALS)
async def resume(desk: TheDesk, caller: Operator, tenant: Scope, bulk_id: str, wanted: Ordering) -> BulkAnswer:
    """Go on after a pause."""
    found = await get_bulk(await desk.pool(), tenant, bulk_id)
    operations = (await desk.redrive()).bulk
    return await operations.resume(found.id, tenant=found.tenant, requested_by=caller.name[:255], reason=wanted.reason)


@router.post("/{bulk_id}/stop", status_code=202, responses=_REFUSALS)
async def stop(desk: TheDesk, caller: Operator, tenant: Scope, bulk_id: str, wanted: Ordering) -> BulkAnswer:
    """End it: what is under way ends, the rest is skipped."""
    found = await get_bulk(await desk.pool(), tenant, bulk_id)
    operations = (await desk.redrive()).bulk
    return await operations.stop(found.id, tenant=found.tenant, requested_by=caller.name[:255], reason=wanted.reason)
