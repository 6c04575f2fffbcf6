"""`/audit`: who did what, and why."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from redrive.console.api.answers import Listed, refusals
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Reader, Scope
from redrive.contracts import NAME_PATTERN, Message
from redrive.field_types import Moment
from redrive.postgres.paging import LARGEST_PAGE
from redrive.store.audit import Action, AuditFilter, AuditLine, audit_page

router = APIRouter(tags=["audit"])


class AuditPage(Message):
    """Which lines, and which page of them."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")
    dead_letter: str | None = Field(default=None, description="only of this dead letter")
    about: str | None = Field(default=None, description="only of this run, dead letter, event or message")
    actor: str | None = Field(default=None, description="only by those whose name has this in it")
    action: Action | None = None
    since: Moment | None = None
    until: Moment | None = None
    by_people: bool = Field(default=False, description="only what somebody did, not what the system recorded itself")
    limit: int = Field(default=50, ge=1, le=LARGEST_PAGE)
    cursor: str | None = None


class Audit(Listed):
    """A page of the audit log."""

    lines: list[AuditLine]


@router.get("/audit", responses=refusals(400))
async def audit(app_state: TheAppState, _caller: Reader, tenant: Scope, choice: Annotated[AuditPage, Query()]) -> Audit:
    """List the audit log, the newest entries first."""
    chosen = AuditFilter(**choice.model_dump(exclude={"tenant", "limit", "cursor"}), tenant=tenant)
    page = await audit_page(await app_state.pool(), chosen, choice.limit, choice.cursor)
    return Audit(lines=page.rows, cursor=page.cursor)
