"""What the records of brokers' events and messages share: lists, commands that are answered once, the quarantine.

Lists have the newest first. An owner assigns a message in quarantine to a tenant.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, Protocol, TypeVar
from uuid import UUID

import asyncpg
from pydantic import BaseModel

from redrive.contracts import NAME_PATTERN
from redrive.dead_letters import Answer, Discard, LetterStatus, Replay
from redrive.errors import EventNotFound, InvalidInput, VersionChanged
from redrive.postgres.paging import Page, Place, Query, check_limit, ids_beginning, read_cursor, select, write_cursor
from redrive.postgres.tenancy import QUARANTINE, Connection, Pool, reading, transaction
from redrive.postgres.values import clean
from redrive.prefixes import only_one
from redrive.store.audit import Action, Entry, EventRef

Row = TypeVar("Row", bound=BaseModel)
Versions = frozenset[str] | None
# A failed replay of a dead event is not final: the same command may try again.
_ANSWERED: Final = """
    SELECT after -> 'answer' FROM audit_log
    WHERE tenant = $1 AND dead_letter = $2 AND request_id = $3
        AND (action IN ('replay_requested', 'discarded', 'event_discarded', 'refused')
             OR action = 'event_replay_outcome' AND (after -> 'answer' ->> 'accepted')::boolean)
    ORDER BY number LIMIT 1
"""
NEEDS_TENANT: Final = "it is in quarantine: name the tenant whose it is (assign_to), or discard it"


async def whole_id(pool: Pool, tenant: str | None, table: Literal["events", "dead_events"], text: str) -> str:
    """Return the id that a text names: itself, or the only one that begins with it. Or the text, if there is none."""
    given = clean(text)
    async with reading(pool, tenant) as connection:
        if await connection.fetchval(select("id", table, "WHERE id = $1"), given):
            return given
        found = await ids_beginning(connection, table, [given])
    return only_one(text, found, "event", EventNotFound) if found else text


class Dead(Protocol):
    """A dead event or a dead message."""

    @property
    def tenant(self) -> str:
        """Whose it is."""

    @property
    def id(self) -> str:
        """Its id in the audit log."""

    @property
    def status(self) -> str:
        """Its status, as a dead letter has one."""

    @property
    def version(self) -> object:
        """Changes with the record."""


@dataclass(frozen=True, kw_only=True)
class Listing(Generic[Row]):
    """A table that is listed by the time `at`, the newest first."""

    row: type[Row]
    table: str
    columns: str
    at: str
    key: str = "id"
    read_key: Callable[[str], object] = str
    in_order: bool = False

    async def page(self, pool: Pool, chosen: BaseModel, query: Query, limit: int, cursor: str | None) -> Page[Row]:
        """Return the rows of a query, after the cursor of the previous page. `chosen` is the list's filter."""
        check_limit(limit)
        if place := read_cursor(cursor, chosen):
            query.where(f"({self.at}, {self.key}) < ({{}}, {{}})", place.at, self.read_key(place.id))
        async with reading(pool, getattr(chosen, "tenant", None), in_order=self.in_order) as connection:
            records = await connection.fetch(
                f"SELECT {self.columns} FROM {self.table} WHERE {query.sql} "  # noqa: S608
                f"ORDER BY {self.at} DESC, {self.key} DESC LIMIT {query.add(limit + 1)}",
                *query.parameters,
            )
        rows = [self.row.model_validate(dict(record)) for record in records[:limit]]
        if len(records) <= limit:
            return Page(rows, None)
        last = records[limit - 1]
        return Page(rows, write_cursor(Place(last[self.at], str(last[self.key])), chosen))


async def first_answer(
    connection: Connection, what: str, dead: Dead, command: Replay | Discard, versions: Versions
) -> Answer | None:
    """Return the answer that this same command got before, or refuse one that is for another version."""
    earlier = await connection.fetchval(_ANSWERED, dead.tenant, dead.id, clean(command.request_id))
    if earlier:
        return Answer.model_validate_json(earlier)
    if versions is not None and str(dead.version) not in versions:
        raise VersionChanged(what, status=dead.status, version=str(dead.version))
    return None


def answer_to(command: Replay | Discard, status: str, message: str, *, accepted: bool = True) -> Answer:
    """Return the answer to a command."""
    return Answer(request_id=command.request_id, accepted=accepted, message=message, status=LetterStatus(status))


def entry_of(
    action: Action, dead: Dead, command: Replay | Discard, answer: Answer, before: dict[str, Any], **after: object
) -> Entry:
    """Return a command's line in the audit log."""
    return Entry(
        action=action,
        letter=EventRef(dead.tenant, dead.id),
        actor=command.requested_by,
        reason=command.reason,
        request_id=command.request_id,
        before=before,
        after=after | {"answer": answer.model_dump(mode="json")},
    )


async def assign_dead_event(pool: Pool, dead_id: str, tenant: str, command: Replay | Discard) -> None:
    """Assign a dead event to a tenant. One that is no longer in quarantine, or not pending, stays where it is."""
    await _assign(pool, "SELECT assign_dead_event($1, $2, $3, $4, $5)", clean(dead_id), tenant, command)


async def assign_dead_message(pool: Pool, message_id: UUID, tenant: str, command: Replay | Discard) -> None:
    """Assign a dead message to a tenant. One that is no longer in quarantine, or not pending, stays where it is."""
    try:
        await _assign(pool, "SELECT assign_dead_message($1, $2, $3, $4, $5)", message_id, tenant, command)
    except asyncpg.UniqueViolationError:
        raise InvalidInput(f"tenant {tenant!r} has the same message already: discard this one") from None


async def _assign(pool: Pool, statement: str, about: str | UUID, tenant: str, command: Replay | Discard) -> None:
    facts = (clean(command.requested_by), clean(command.reason), clean(command.request_id))
    async with transaction(pool, QUARANTINE) as connection:
        await connection.execute(statement, about, tenant, *facts)


def check_assignment(owner: str, assign_to: str | None) -> bool:
    """Tell whether a record must be assigned before it is replayed, or refuse an impossible assignment."""
    if owner == QUARANTINE:
        if assign_to is None:
            raise InvalidInput(NEEDS_TENANT)
        if not re.fullmatch(NAME_PATTERN, assign_to):
            raise InvalidInput(f"assign_to {assign_to[:80]!r}: not a tenant's name ({NAME_PATTERN})")
        return True
    if assign_to not in {None, owner}:
        raise InvalidInput(f"assign_to {assign_to!r}: it belongs to {owner!r} already, and stays there")
    return False
