"""`/approvals`: plans that wait for another admin (`REDRIVE_APPROVALS=on`), of edits and of bulk operations."""

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field
from pydantic_core import to_json

from redrive.access import Principal, Right
from redrive.console.api.answers import CommandBody, accepted, refusals
from redrive.console.api.dead_letters import is_approved, plan_hash
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Operator, Reader, Scope
from redrive.console.problems import Refusal
from redrive.contracts import Message, Text255
from redrive.dead_letters import COMMANDS, Answer, Command, Reason, Replay, Resolve
from redrive.keys import check_identifiers, new_request_id
from redrive.redaction.redactor import MARK
from redrive.store.approvals import Approval, Yes, approve, get_approval, list_approvals
from redrive.store.dead_letters.commands import first_answer
from redrive.store.dead_letters.lists import find_letter

router = APIRouter(prefix="/approvals", tags=["approvals"])
PlanHash = Annotated[str, Path(alias="plan_hash")]


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
async def approval(app_state: TheAppState, caller: Reader, tenant: Scope, approved: PlanHash) -> Approval:
    """Show a plan that waits for approval, has it, or has expired."""
    return seen_by(caller, await get_approval(await app_state.pool(), tenant, approved))


@router.post("/{plan_hash}", responses=refusals(400, 404, 409, 413, 415))
async def give(
    app_state: TheAppState, caller: Operator, tenant: Scope, approved: PlanHash, agreed: CommandBody
) -> Approval:
    """Approve a plan that somebody else asked for. The approval is valid for one command, until it expires."""
    pool = await app_state.pool()
    asked = await get_approval(pool, tenant, approved)
    yes = Yes(approved_by=caller.name, person=caller.person, reason=app_state.redactor.text(agreed.reason))
    return seen_by(caller, await approve(pool, asked.tenant, approved, yes))


class StartBody(Message):
    """Carry out an approved edit, exactly as it was approved."""

    reason: Reason | None = Field(default=None, description="none: the one that it was asked for with")
    request_id: Text255 | None = Field(default=None, description="the same id again is the same command")


@router.post("/{plan_hash}/start", status_code=202, responses=refusals(400, 404, 409, 413, 415))
async def start(
    app_state: TheAppState, caller: Operator, tenant: Scope, approved: PlanHash, wanted: StartBody
) -> Answer:
    """Carry out an approved edit of a dead letter: whoever asked for it, or approved it, needs not write it again."""
    pool = await app_state.pool()
    approval = await get_approval(pool, tenant, approved)
    if approval.dead_letter is None:
        raise Refusal(409, "bulk_plan", f"plan {approved} is of a bulk operation", "start it with POST /api/v1/bulk")
    record = await find_letter(pool, approval.tenant, approval.dead_letter)
    command = approved_edit(approval, caller, wanted)
    earlier = await first_answer(pool, record.letter, command.request_id)
    if earlier:
        return accepted(earlier)
    if plan_hash(record, command) != approved:
        raise _not_the_same(approval)
    if not await is_approved(pool, record, command):
        raise Refusal(409, "not_approved", f"plan {approved}: {_why_not(approval)}", "nothing was changed")
    return accepted(await (await app_state.redrive()).dead_letters.send(record.letter, command))


def approved_edit(approval: Approval, caller: Principal, wanted: StartBody) -> Replay | Resolve:
    """Return the command that was approved, as this caller's."""
    check_identifiers(request_id=wanted.request_id)
    fields: dict[str, Any] = {
        **approval.plan,
        "request_id": wanted.request_id or new_request_id(),
        "requested_by": caller.name,
        "reason": wanted.reason or approval.reason,
    }
    command: Command = COMMANDS.validate_python(fields)
    if not isinstance(command, Replay | Resolve):
        raise Refusal(409, "not_an_edit", f"plan {approval.plan_hash} is no edit", "give the command itself")
    return command


def is_whole(approval: Approval) -> bool:
    """Tell whether a plan can be carried out from its record: it has no values that were redacted."""
    return MARK.encode() not in to_json(approval.plan)


def _not_the_same(approval: Approval) -> Refusal:
    if is_whole(approval):
        problem = "the dead letter has changed since this was asked for"
        return Refusal(409, "plan_changed", f"plan {approval.plan_hash}: {problem}", "look at it and ask again")
    problem = "it holds redacted values, which its record does not keep"
    return Refusal(409, "redacted_plan", f"plan {approval.plan_hash}: {problem}", "send the same edit again")


def _why_not(approval: Approval) -> str:
    if approval.used_for:
        return "it was carried out already"
    return "it has expired: ask for it again" if approval.approved_by else "another admin has to approve it first"
