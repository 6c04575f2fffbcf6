"""`/workflow-dlq`: lists and details of dead letters."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from redrive.access import Right
from redrive.console.api.answers import Listed, etag, refusals
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Reader, Scope
from redrive.contracts import NAME_PATTERN, Message
from redrive.dead_letters import LetterFilter
from redrive.postgres.paging import LARGEST_PAGE, Total
from redrive.store.dead_letters.figures import groups as letter_groups
from redrive.store.dead_letters.figures import stats as letter_stats
from redrive.store.dead_letters.lists import audit_trail, find_letter, list_letters, total
from redrive.store.dead_letters.models import AuditEntry, LetterGroup, LetterRecord, LetterRow, LetterStats

router = APIRouter(prefix="/workflow-dlq", tags=["dead letters"])


class LetterQuery(LetterFilter):
    """Which dead letters. `Scope` reads the tenant; the field allows it in the query."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")


class LetterPageQuery(LetterQuery):
    """Which dead letters, and which page of them."""

    limit: int = Field(default=50, ge=1, le=LARGEST_PAGE)
    cursor: str | None = None


class Letters(Listed):
    """A page of dead letters."""

    dead_letters: list[LetterRow]
    total: Total | None = Field(description="how many fit; none for a search by text")


class LetterGroupQuery(LetterQuery):
    """Which dead letters to group, and how many groups."""

    limit: int = Field(default=20, ge=1, le=LARGEST_PAGE)


class Groups(Message):
    """The largest groups of similar open dead letters."""

    groups: list[LetterGroup]


class LetterDetail(LetterRecord):
    """A dead letter with its history. The payload is redacted, and only for those who may see payloads."""

    payload_hidden: bool
    audit: list[AuditEntry]
    links: dict[str, str]


@router.get("", responses=refusals(400))
async def dead_letters(
    app_state: TheAppState, _caller: Reader, tenant: Scope, choice: Annotated[LetterPageQuery, Query()]
) -> Letters:
    """List dead letters, the newest failure first."""
    pool, chosen = await app_state.pool(), choice.within(tenant)
    page = await list_letters(pool, chosen, choice.limit, choice.cursor)
    return Letters(dead_letters=page.rows, cursor=page.cursor, total=await total(pool, chosen))


@router.get("/groups", responses=refusals(400))
async def groups(
    app_state: TheAppState, _caller: Reader, tenant: Scope, choice: Annotated[LetterGroupQuery, Query()]
) -> Groups:
    """List groups of similar open dead letters, the largest first."""
    return Groups(groups=await letter_groups(await app_state.pool(), choice.within(tenant), choice.limit))


@router.get("/stats", responses=refusals())
async def stats(app_state: TheAppState, _caller: Reader, tenant: Scope) -> LetterStats:
    """Return how many dead letters there are, the age of the oldest, and what they are about."""
    return await letter_stats(await app_state.pool(), tenant)


@router.get("/{letter_id}", responses=refusals(404))
async def dead_letter(
    app_state: TheAppState, caller: Reader, tenant: Scope, letter_id: str, response: Response
) -> LetterDetail:
    """Show a dead letter with its history. Its ETag is for a command's If-Match."""
    pool = await app_state.pool()
    record = await find_letter(pool, tenant, letter_id)
    hidden = not caller.may(Right.PAYLOADS)
    response.headers["ETag"] = etag(record.version)
    return LetterDetail(
        **dict(record) | {"payload": None if hidden else record.payload},
        payload_hidden=hidden,
        audit=await audit_trail(pool, record.tenant, record.id),
        links=app_state.links(run=record.run_id, dead_letter=record.id),
    )
