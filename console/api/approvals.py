"""`/approvals`: edits that wait for another admin (`REDRIVE_APPROVALS=on`)."""

from fastapi import APIRouter

from console.api.answers import refusals
from console.desk import TheDesk
from console.problems import Refusal
from console.security import Operator, Reader, Scope
from redrive.access import Right
from redrive.contracts import Message
from store.approvals import Approval, SameEyes, approve, get_approval, list_approvals
from store.dead_letter_lists import get_letter

router = APIRouter(prefix="/approvals", tags=["approvals"])


class Approvals(Message):
    """Those whose hour is not over."""

    approvals: list[Approval]


@router.get("", responses=refusals())
async def approvals(desk: TheDesk, caller: Reader, tenant: Scope) -> Approvals:
    """List edits that wait for approval, or have it. What they put in is redacted, and for those who see payloads."""
    found = await list_approvals(await desk.pool(), tenant)
    if not caller.may(Right.PAYLOADS):
        found = [each.model_copy(update={"plan": {"verb": each.plan.get("verb")}}) for each in found]
    return Approvals(approvals=found)


@router.post("/{plan_hash}", responses=refusals(404, 409, 413, 415))
async def give(desk: TheDesk, caller: Operator, tenant: Scope, plan_hash: str) -> Approval:
    """Approve an edit that somebody else asked for. It is good for one order, until its hour is over."""
    pool = await desk.pool()
    asked = await get_approval(pool, tenant, plan_hash)
    record = await get_letter(pool, tenant, asked.dead_letter) if asked else None
    try:
        done = await approve(pool, record.letter, plan_hash, caller) if record else None
    except SameEyes as error:
        raise Refusal(409, error.code, str(error), "ask another admin") from None
    if done is None:
        raise Refusal(404, "approval_not_found", f"no plan {plan_hash[:80]!r} waits for approval", "ask for it again")
    return done
