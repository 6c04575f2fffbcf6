"""The records in Postgres, as the commands read them."""

import contextlib
import re
from collections.abc import AsyncIterator, Iterator

from redrive.connection import access_database_url, database_url
from redrive.dead_letters import LetterId
from redrive.errors import LetterNotFound, Unavailable
from redrive.postgres.connection import DRIVER_ERRORS, database_problem
from redrive.postgres.database import Database
from redrive.postgres.pool import ACCESS_ROLE
from redrive.postgres.tenancy import Pool
from redrive.settings import Settings
from redrive.store.dead_letters.lists import audit_trail, get_letter
from redrive.store.dead_letters.models import AuditEntry, LetterRecord

_RUN_AND_STEP = re.compile(r"(run-[^/]+)/([^/]+)")


@contextlib.asynccontextmanager
async def open_records(settings: Settings) -> AsyncIterator[Pool]:
    """Connect to the database for the length of a command."""
    async with Database(database_url(settings), max_size=4) as database:
        with database_errors():
            yield await database.pool()


@contextlib.asynccontextmanager
async def open_access(settings: Settings) -> AsyncIterator[Pool]:
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


def letter_id(text: str) -> str:
    """Return a dead letter's id: given as such, or as `run-…/step`."""
    match = _RUN_AND_STEP.fullmatch(text)
    return LetterId(tenant="", run_id=match[1], step=match[2]).workflow_id if match else text


async def named_letter(pool: Pool, text: str) -> LetterRecord:
    """Return the record of the dead letter that was named, by its id or as `run-…/step`, or raise if there is none."""
    record = await get_letter(pool, None, letter_id(text))
    if record is None:
        raise LetterNotFound(
            f"no dead letter has the id {text[:200]!r}; `redrive dlq list` shows those there are "
            "(a run that is parked without one is found by `redrive reconcile`)"
        )
    return record


async def find_story(pool: Pool, text: str) -> tuple[LetterRecord, list[AuditEntry]]:
    """Return a dead letter's record and its audit log."""
    record = await named_letter(pool, text)
    return record, await audit_trail(pool, record.tenant, record.id)
