"""`/bulk`: one command for many dead letters: planned, started, followed, paused, resumed and stopped."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from redrive.access import Principal
from redrive.bulk import (
    PAGE_LIMIT,
    BulkAnswer,
    BulkCommand,
    BulkItems,
    BulkOptions,
    BulkPlan,
    BulkView,
    ItemsRequest,
    ItemStatus,
    PlannedGroup,
    Position,
)
from redrive.console.api.answers import CommandBody, refusals
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Operator, Reader, Scope
from redrive.console.problems import Place, unacceptable
from redrive.contracts import NAME_PATTERN, Message, Text255
from redrive.dead_letters import Reason
from redrive.store.bulk.lists import get_bulk, list_bulks, list_items

router = APIRouter(prefix="/bulk", tags=["bulk"])
_REFUSALS = refusals(400, 404, 409, 413, 415)


class BulkPlanView(Message):
    """What a bulk operation would do. Send `command` and `hash` back to start exactly that."""

    hash: str
    command: BulkOptions = Field(description="as given, with `until` set: what fails later does not belong to it")
    count: int
    groups: list[PlannedGroup]
    unsafe: list[str] = Field(description="steps whose effects would be repeated without a key")
    approval_needed: bool


class BulkStartBody(CommandBody):
    """Start what was planned."""

    command: BulkOptions
    plan_hash: Text255
    allow_unsafe: bool = Field(default=False, description="yes to repeating effects that no key guards")


class StopBody(CommandBody):
    """End a bulk operation. In a hurry no reason is needed."""

    reason: Reason = Field(default="no reason given", description="why; kept in the audit log")


class Bulks(Message):
    """The newest bulk operations."""

    bulk: list[BulkView]


class BulkPage(Message):
    """How many bulk operations."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")
    limit: int = Field(default=20, ge=1, le=200)


class ItemPage(Message):
    """Which items, and which page of them."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")
    status: ItemStatus | None = None
    limit: int = Field(default=100, ge=1, le=PAGE_LIMIT)
    after: Position | None = Field(default=None, description="where the page before ended")


def one_tenant(tenant: Scope) -> str:
    """Return the tenant of a bulk operation; an owner has to name it."""
    if tenant is None:
        raise unacceptable([Place(place="query.tenant", problem="an owner names the tenant: ?tenant=acme")])
    return tenant


OneTenant = Annotated[str, Depends(one_tenant)]


@router.get("", responses=refusals())
async def bulks(app_state: TheAppState, _caller: Reader, tenant: Scope, choice: Annotated[BulkPage, Query()]) -> Bulks:
    """List bulk operations, the newest first."""
    return Bulks(bulk=await list_bulks(await app_state.pool(), tenant, choice.limit))


@router.post("/plan", responses=_REFUSALS)
async def plan(app_state: TheAppState, _caller: Reader, tenant: OneTenant, wanted: BulkOptions) -> BulkPlanView:
    """Show what a bulk operation would do, without doing it: how many, which steps run again, what that repeats."""
    found = await app_state.plan_bulk(BulkCommand(tenant=tenant, **dict(wanted)))
    command = BulkOptions.model_validate(found.command.model_dump(exclude={"tenant"}))
    return BulkPlanView(**dict(found) | {"command": command})


@router.post("", status_code=202, responses=_REFUSALS)
async def start(app_state: TheAppState, caller: Operator, tenant: OneTenant, wanted: BulkStartBody) -> BulkAnswer:
    """Start a bulk operation as it was planned. 409 `PLAN_CHANGED`: the dead letters are no longer those of the plan.

    409 `APPROVAL_NEEDED` (`REDRIVE_APPROVALS=on`): the plan waits at `/approvals/{plan_hash}` for another admin.
    """
    planned = BulkPlan(
        hash=wanted.plan_hash, command=BulkCommand(tenant=tenant, **dict(wanted.command)), count=0, groups=[]
    )
    return await (await app_state.redrive()).bulk.start(
        planned,
        requested_by=caller.name,
        reason=wanted.reason,
        allow_unsafe=wanted.allow_unsafe,
        request_id=wanted.request_id,
        person=caller.person,
    )


@router.get("/{bulk_id}", responses=refusals(400, 404))
async def bulk(app_state: TheAppState, _caller: Reader, tenant: Scope, bulk_id: str) -> BulkView:
    """Show a bulk operation and its progress."""
    return await get_bulk(await app_state.pool(), tenant, bulk_id)


@router.get("/{bulk_id}/items", responses=refusals(400, 404))
async def items(
    app_state: TheAppState, _caller: Reader, tenant: Scope, bulk_id: str, choice: Annotated[ItemPage, Query()]
) -> BulkItems:
    """List the items of a bulk operation and their outcomes."""
    pool = await app_state.pool()
    found = await get_bulk(pool, tenant, bulk_id)
    chosen = choice.model_dump(include={"status", "limit", "after"})
    return await list_items(pool, found.tenant, ItemsRequest(tenant=found.tenant, bulk_id=found.id, **chosen))


async def target(app_state: TheAppState, tenant: Scope, bulk_id: str) -> BulkView:
    """Return the bulk operation that a command is for."""
    return await get_bulk(await app_state.pool(), tenant, bulk_id)


Target = Annotated[BulkView, Depends(target)]


@router.post("/{bulk_id}/pause", status_code=202, responses=_REFUSALS)
async def pause(app_state: TheAppState, caller: Operator, found: Target, command: CommandBody) -> BulkAnswer:
    """Send nothing more for now; commands under way finish."""
    return await (await app_state.redrive()).bulk.pause(found.id, **_named(found, caller, command))


@router.post("/{bulk_id}/resume", status_code=202, responses=_REFUSALS)
async def resume(app_state: TheAppState, caller: Operator, found: Target, command: CommandBody) -> BulkAnswer:
    """Continue after a pause."""
    return await (await app_state.redrive()).bulk.resume(found.id, **_named(found, caller, command))


@router.post("/{bulk_id}/stop", status_code=202, responses=_REFUSALS)
async def stop(app_state: TheAppState, caller: Operator, found: Target, command: StopBody) -> BulkAnswer:
    """End it: commands under way finish, the rest is skipped."""
    return await (await app_state.redrive()).bulk.stop(found.id, **_named(found, caller, command))


def _named(found: BulkView, caller: Principal, command: CommandBody) -> dict[str, str]:
    return {"tenant": found.tenant, "requested_by": caller.name, "reason": command.reason}
