"""The records in Postgres, as the commands read them."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from redrive.connection import Addresses, access_database_url, database_url
from redrive.dead_letter_records import LetterFilter
from redrive.errors import InvalidInput, LetterNotFound, NotConfigured, Unavailable
from redrive.postgres.database import ACCESS_ROLE, DRIVER_ERRORS, Database, database_problem
from redrive.postgres.tenancy import Pool
from redrive.store.dead_letters.lists import audit_trail, find_letter, get_letter, list_letters
from redrive.store.dead_letters.models import AuditEntry, LetterRecord

if TYPE_CHECKING:
    from redrive.settings import Settings


@contextlib.asynccontextmanager
async def open_records(settings: "Settings | Addresses") -> AsyncIterator[Pool]:
    """Connect to the database for the length of a command."""
    async with Database(database_url(settings), max_size=4) as database:
        with database_errors():
            yield await database.pool()


@contextlib.asynccontextmanager
async def open_records_if_any(settings: "Settings") -> "AsyncIterator[Pool | None]":
    """Connect to the database, if one is configured: Temporal alone is enough for runs and schedules."""
    try:
        database_url(settings)
    except NotConfigured:
        yield None
        return
    async with open_records(settings) as pool:
        yield pool


@contextlib.asynccontextmanager
async def open_access(settings: "Settings") -> AsyncIterator[Pool]:
    """Connect to the database for a command about tokens, sessions and members."""
    async with Database(access_database_url(settings), max_size=1, role=ACCESS_ROLE) as database:
        with database_errors():
            yield await database.pool()


@contextlib.contextmanager
def database_errors() -> Iterator[None]:
    """Turn the driver's errors into a sentence."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise Unavailable(database_problem(error)) from None


async def named_letter(pool: Pool, text: str) -> LetterRecord:
    """Return the record of the dead letter that was named, or raise if there is none.

    It is named by its id or as `run-…/step`, a unique beginning of these is enough; or as `workflow/activity` if a
    foreign workflow has one of that name that is open, or only one that is closed.
    """
    try:
        return await find_letter(pool, None, text)
    except LetterNotFound as error:
        foreign = await _foreign_letter(pool, text)
        if foreign:
            return foreign
        raise LetterNotFound(
            f"{error}; `redrive dlq list --all` shows those there are "
            "(a run that is parked without one is found by `redrive reconcile`)"
        ) from None


async def _foreign_letter(pool: Pool, text: str) -> LetterRecord | None:
    workflow, _, operation = text.rpartition("/")
    if not workflow or not operation:
        return None
    page = await list_letters(pool, LetterFilter(text=workflow, module=operation))
    rows = [row for row in page.rows if row.run_id == workflow and row.letter.foreign]
    found = [row for row in rows if not row.status.closed] or rows
    if len(found) > 1:
        which = "closed" if found[0].status.closed else "open"
        ids = ", ".join(row.id for row in found)
        raise InvalidInput(f"{text[:200]!r} has {len(found)} {which} dead letters: name one of {ids}")
    return await get_letter(pool, None, found[0].id) if found else None


async def find_story(pool: Pool, text: str) -> tuple[LetterRecord, list[AuditEntry]]:
    """Return a dead letter's record and its audit log."""
    record = await named_letter(pool, text)
    return record, await audit_trail(pool, record.tenant, record.id)
