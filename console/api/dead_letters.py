"""`/workflow-dlq`: dead letters, to look at."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, Field

from console.api.answers import Listed, refusals
from console.desk import TheDesk
from console.security import Reader, Scope
from redrive.contracts import NAME_PATTERN, Message
from redrive.dead_letters import LetterStatus
from redrive.errors import Category
from store.dead_letter_lists import LetterFilter, list_letters
from store.paging import LARGEST_PAGE
from store.records import LetterRow

router = APIRouter(prefix="/workflow-dlq", tags=["dead letters"])


class Choice(Message):
    """Which dead letters."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")
    status: LetterStatus | None = None
    pipeline: str | None = None
    module: str | None = None
    step: str | None = None
    category: Category | None = None
    fingerprint: str | None = None
    since: AwareDatetime | None = Field(default=None, description="failed last since then")
    until: AwareDatetime | None = Field(default=None, description="failed last before then")

    def filter(self, tenant: str | None, text: str | None = None) -> LetterFilter:
        """Return the store's filter, within the tenant that the caller may see."""
        return LetterFilter(**self.model_dump(include=set(Choice.model_fields) - {"tenant"}), tenant=tenant, text=text)


class PageChoice(Choice):
    """Which dead letters, and which page of them."""

    text: str | None = Field(default=None, description="a run id, correlation id or key; or a part of the message")
    limit: int = Field(default=50, ge=1, le=LARGEST_PAGE)
    cursor: str | None = None


class Letters(Listed):
    """A page of dead letters."""

    dead_letters: list[LetterRow]


@router.get("", responses=refusals(400))
async def dead_letters(
    desk: TheDesk, _caller: Reader, tenant: Scope, choice: Annotated[PageChoice, Query()]
) -> Letters:
    """List dead letters, the newest failure first."""
    pool = await desk.pool()
    page = await list_letters(pool, choice.filter(tenant, choice.text), choice.limit, choice.cursor)
    return Letters(dead_letters=page.rows, cursor=page.cursor)
