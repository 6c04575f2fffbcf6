"""`/retrying`: steps that wait for their next attempt, or are in it."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from redrive.console.api.answers import Listed, refusals
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Reader, Scope
from redrive.contracts import NAME_PATTERN, Message
from redrive.postgres.paging import LARGEST_PAGE, Total
from redrive.store.runs.retrying import RetryingFilter, RetryingStep, count_retrying, list_retrying

router = APIRouter(tags=["runs"])


class RetryingPage(Message):
    """Which page of the list."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")
    limit: int = Field(default=50, ge=1, le=LARGEST_PAGE)
    cursor: str | None = None


class Retrying(Listed):
    """A page of retries in flight."""

    retrying: list[RetryingStep]
    total: Total


@router.get("/retrying", responses=refusals(400))
async def retrying(
    app_state: TheAppState, _caller: Reader, tenant: Scope, choice: Annotated[RetryingPage, Query()]
) -> Retrying:
    """List the steps whose last attempt failed and that are retried, those due first."""
    pool = await app_state.pool()
    page = await list_retrying(pool, RetryingFilter(tenant=tenant), choice.limit, choice.cursor)
    return Retrying(retrying=page.rows, cursor=page.cursor, total=await count_retrying(pool, tenant))
