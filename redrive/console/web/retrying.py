"""Retries in flight: which steps are retried, why, and when."""

from typing import Final

from fastapi import Request, Response
from pydantic import BaseModel

from redrive.console.app_state import TheAppState
from redrive.console.authentication import Reader, Scope
from redrive.console.web.render import show
from redrive.console.web.routes import page_router, query_of, read_query
from redrive.store.runs.retrying import RetryingFilter, count_retrying, list_retrying

router = page_router()
PAGE: Final = 50


class RetryingQuery(BaseModel):
    """The query of the retries' page."""

    cursor: str | None = None


@router.get("/retrying")
async def retrying(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show the retries in flight, those due first."""
    asked, pool = read_query(RetryingQuery, request), await app_state.pool()
    page = await list_retrying(pool, RetryingFilter(tenant=tenant), PAGE, asked.cursor)
    return show(
        request,
        caller,
        "retrying.html",
        rows=page.rows,
        total=await count_retrying(pool, tenant),
        later=page.cursor,
        query=query_of(request),
    )
