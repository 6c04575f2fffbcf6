"""Lists of runs, from Temporal: it alone knows those that are under way. Each page is one question to it."""

import base64
import hashlib
from typing import Final

from pydantic import BaseModel, ValidationError
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from redrive.contracts import RunStatus, RunSummary
from redrive.errors import InvalidInput, Unavailable
from redrive.visibility import runs_query, summary
from store.paging import Page

LARGEST_PAGE: Final = 200
_WRONG: Final = "is not one that this list gave: start again without one"


class RunChoice(BaseModel):
    """Which runs. `tenant` None means all."""

    tenant: str | None
    status: RunStatus | None
    pipeline: str | None


class _Cursor(BaseModel):
    token: str
    list: str


async def runs_page(client: Client, chosen: RunChoice, limit: int, cursor: str | None) -> Page[RunSummary]:
    """Return the newest runs that fit, after the cursor of the page before."""
    query = runs_query(tenant=chosen.tenant, status=chosen.status, pipeline=chosen.pipeline)
    pages = client.list_workflows(query, page_size=limit, next_page_token=_read(cursor, chosen))
    try:
        await pages.fetch_next_page()
    except RPCError as error:
        if cursor is not None and error.status is RPCStatusCode.INVALID_ARGUMENT:
            raise InvalidInput(f"cursor {cursor[:40]!r} {_WRONG}") from error
        raise Unavailable(f"Temporal did not list runs ({error.status.name.lower()}); try again") from error
    rows = [summary(execution) for execution in pages.current_page or ()]
    # The query names the tenant already: this is the second wall, where Temporal has none of its own.
    mine = [row for row in rows if chosen.tenant in {None, row.tenant}]
    return Page(mine, _write(pages.next_page_token, chosen) if pages.next_page_token else None)


def _write(token: bytes, chosen: RunChoice) -> str:
    cursor = _Cursor(token=base64.b64encode(token).decode(), list=_mark(chosen))
    return base64.urlsafe_b64encode(cursor.model_dump_json().encode()).decode().rstrip("=")


def _read(cursor: str | None, chosen: RunChoice) -> bytes | None:
    if cursor is None:
        return None
    try:
        read = _Cursor.model_validate_json(base64.b64decode(cursor + "=" * (-len(cursor) % 4), "-_", validate=True))
        token = base64.b64decode(read.token, validate=True)
    except (ValueError, ValidationError):
        raise InvalidInput(f"cursor {cursor[:40]!r} {_WRONG}") from None
    if read.list != _mark(chosen):
        raise InvalidInput("the cursor belongs to a list with other filters: start again without one")
    return token


def _mark(chosen: RunChoice) -> str:
    return hashlib.sha256(chosen.model_dump_json().encode()).hexdigest()[:12]
