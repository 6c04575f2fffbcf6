"""Lists of runs, from Temporal: only it knows the open ones. Each page is one query."""

import base64
from typing import Final

from pydantic import BaseModel, Field
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from redrive.console.seals import Seal
from redrive.contracts import RunStatus, RunSummary
from redrive.errors import Unavailable
from redrive.postgres.paging import ListCursor, Page, foreign_cursor, mark_of, pack, unpack
from redrive.visibility import runs_query, summary

LARGEST_PAGE: Final = 200
# How Temporal's stores answer a token that they cannot read.
_UNREAD: Final = frozenset({RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.INTERNAL, RPCStatusCode.UNKNOWN})


class RunFilter(BaseModel):
    """Which runs. `tenant` None means all."""

    tenant: str | None
    status: RunStatus | None
    pipeline: str | None


class _Cursor(ListCursor):
    token: str = Field(description="Temporal's own, signed: one that was changed would keep its server busy for long")


async def runs_page(client: Client, seal: Seal, chosen: RunFilter, limit: int, cursor: str | None) -> Page[RunSummary]:
    """Return the newest matching runs, after the cursor of the previous page."""
    query = runs_query(tenant=chosen.tenant, status=chosen.status, pipeline=chosen.pipeline)
    pages = client.list_workflows(query, page_size=limit, next_page_token=_read(seal, cursor, chosen))
    try:
        await pages.fetch_next_page()
    except RPCError as error:
        if cursor is not None and error.status in _UNREAD:
            # Temporal gave it and no longer knows it: another version, or another visibility store.
            raise foreign_cursor(cursor) from error
        raise Unavailable(f"Temporal did not list runs ({error.status.name.lower()}); try again") from error
    rows = [summary(execution) for execution in pages.current_page or ()]
    # The query already names the tenant: this is the second check, as Temporal has none of its own.
    mine = [row for row in rows if chosen.tenant in {None, row.tenant}]
    return Page(mine, _write(seal, pages.next_page_token, chosen) if pages.next_page_token else None)


def _write(seal: Seal, token: bytes, chosen: RunFilter) -> str:
    signed = seal.sign(_purpose(chosen), base64.b64encode(token).decode())
    return pack(_Cursor(token=signed, list=mark_of(chosen)))


def _read(seal: Seal, cursor: str | None, chosen: RunFilter) -> bytes | None:
    if cursor is None:
        return None
    token = seal.read(_purpose(chosen), unpack(_Cursor, cursor, chosen).token)
    if token is None:
        raise foreign_cursor(cursor)
    return base64.b64decode(token)


def _purpose(chosen: RunFilter) -> str:
    return f"runs {mark_of(chosen)}"
