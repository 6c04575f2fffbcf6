"""The page of a bulk operation's plan that waits for another admin."""

from datetime import UTC, datetime
from typing import Any, Final

from fastapi import Request, Response

from redrive.console.api.approvals import seen_by
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Reader, Scope
from redrive.console.web.render import show
from redrive.console.web.routes import page_router
from redrive.console.web.template_filters import json_text
from redrive.dead_letters import LetterStatus
from redrive.redaction.redactor import MARK
from redrive.store.approvals import Approval, get_approval, not_found

router = page_router()
_DOCUMENTS: Final = ("input_patch", "output")


@router.get("/bulk/approvals/{plan_hash}")
async def bulk_approval(
    request: Request, app_state: TheAppState, caller: Reader, tenant: Scope, plan_hash: str
) -> Response:
    """Show what a plan would do, who asked and why; only another admin gets the button to approve."""
    found = await get_approval(await app_state.pool(), tenant, plan_hash)
    if found.dead_letter is not None:
        raise not_found(plan_hash)
    approval = seen_by(caller, found)
    return show(
        request,
        caller,
        "bulk_approval.html",
        approval=approval,
        edit=_edit(approval),
        chosen=_chosen(approval),
        options={name: value for name, value in _command(approval).items() if name not in {*_DOCUMENTS, "verb"}},
        wanted=_command(approval),
        is_complete=approval == found and MARK not in json_text(approval.plan),
        is_over=approval.expires_at <= datetime.now(UTC),
        is_own=approval.requested_person == caller.person,
    )


def _command(approval: Approval) -> dict[str, Any]:
    """Return the command as the API takes it: the tenant is the caller's."""
    return {name: value for name, value in approval.plan["command"].items() if name != "tenant"}


def _chosen(approval: Approval) -> dict[str, Any]:
    """Return the plan's list of dead letters as a query string."""
    selection = approval.plan["command"]["selection"]
    fields = {name: value for name, value in selection.items() if value is not None}
    return {"view": "list", "status": LetterStatus.PENDING.value, "tenant": approval.tenant} | fields


def _edit(approval: Approval) -> Any:
    """Return the data that is put into each dead letter, redacted, if any."""
    command = approval.plan["command"]
    return next((command[name] for name in _DOCUMENTS if command.get(name) is not None), None)
