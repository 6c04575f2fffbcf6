"""`/approvals`: plans that wait for another admin (`REDRIVE_APPROVALS=on`), of edits and of bulk operations."""

from fastapi import APIRouter

from redrive.access import Principal, Right
from redrive.console.api.answers import CommandBody, refusals
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Operator, Reader, Scope
from redrive.contracts import Message
from redrive.store.approvals import Approval, Yes, approve, get_approval, list_approvals

router = APIRouter(prefix="/approvals", tags=["approvals"])


class Approvals(Message):
    """Approvals that have not expired."""

    approvals: list[Approval]


def seen_by(caller: Principal, approval: Approval) -> Approval:
    """Return an approval without the data that its plan puts in, for callers who may not see payloads."""
    if caller.may(Right.PAYLOADS):
        return approval
    plan = approval.plan
    if approval.dead_letter is None:
        command = {name: value for name, value in plan["command"].items() if name not in {"input_patch", "output"}}
        return approval.model_copy(update={"plan": plan | {"command": command}})
    return approval.model_copy(update={"plan": {"verb": plan.get("verb")}})


@router.get("", responses=refusals())
async def approvals(app_state: TheAppState, caller: Reader, tenant: Scope) -> Approvals:
    """List plans that wait for approval, or have it. Their data is redacted, and for those who may see payloads."""
    return Approvals(approvals=[seen_by(caller, each) for each in await list_approvals(await app_state.pool(), tenant)])


@router.get("/{plan_hash}", responses=refusals(404))
async def approval(app_state: TheAppState, caller: Reader, tenant: Scope, plan_hash: str) -> Approval:
    """Show a plan that waits for approval, has it, or has expired."""
    return seen_by(caller, await get_approval(await app_state.pool(), tenant, plan_hash))


@router.post("/{plan_hash}", responses=refusals(400, 404, 409, 413, 415))
async def give(
    app_state: TheAppState, caller: Operator, tenant: Scope, plan_hash: str, agreed: CommandBody
) -> Approval:
    """Approve a plan that somebody else asked for. The approval is valid for one command, until it expires."""
    pool = await app_state.pool()
    asked = await get_approval(pool, tenant, plan_hash)
    yes = Yes(approved_by=caller.name, person=caller.person, reason=app_state.redactor.text(agreed.reason))
    return seen_by(caller, await approve(pool, asked.tenant, plan_hash, yes))
