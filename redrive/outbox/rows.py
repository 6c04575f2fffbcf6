"""The rows of an outbox, as bridges, commands and the console read and change them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import asyncpg
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from redrive.errors import EventNotFound, InvalidInput, NotConfigured
from redrive.field_types import Moment
from redrive.outbox.installation import VERSION, bridge_grants, checked_schema, install_sql
from redrive.postgres.database import APP_ROLE, Database, connect
from redrive.postgres.paging import Page, Place, Query, check_limit, cut, read_cursor, uuids_beginning
from redrive.postgres.tenancy import Connection, Executor
from redrive.postgres.values import Record, clean, json_text
from redrive.prefixes import PREFIXES_COUNTED, only_one

_DOCUMENTS: Final = ("payload", "labels", "failure_history")
_LISTED: Final = """
    event_id, position, tenant, pipeline, key, ordering_key, labels, correlation_id, user_id, status, run_after, waits,
    run_id, attempts, last_error, category, first_failed_at, failed_at, failed_step, cycle, failure_history, generation,
    replays, replayed_by, replay_reason, replay_request, created_at, started_at, ended_at, deleted_at
"""
_NOT_THERE: Final = (asyncpg.UndefinedFunctionError, asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError)
# Rows that one statement deletes.
_PURGED_AT_ONCE: Final = 1000


class OutboxStatus(StrEnum):
    """The status of a row: `pending -> in_flight -> delivered | failed`. A replay makes a failed one pending."""

    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    DELIVERED = "delivered"
    FAILED = "failed"


class FailureCycle(Record):
    """A cycle that failed and was replayed: an entry of `failure_history`."""

    cycle: int = Field(description="of the run's failed step; 0: it had no run")
    attempts: int
    last_error: str | None
    category: str | None = None
    first_failed_at: datetime | None
    failed_at: datetime | None = None
    failed_step: str | None = None
    generation: int
    replayed_by: str | None
    replayed_at: datetime


class OutboxRow(Record):
    """A row in a list."""

    event_id: UUID
    position: int
    tenant: str
    pipeline: str
    key: str
    ordering_key: str | None
    labels: dict[str, Any]
    correlation_id: str | None
    user_id: str | None
    status: OutboxStatus
    run_after: datetime
    waits: bool = Field(description="behind an earlier row of its ordering key that is not over")
    run_id: str | None
    attempts: int = Field(description="of the current cycle")
    last_error: str | None
    category: str | None
    first_failed_at: datetime | None
    failed_at: datetime | None
    failed_step: str | None
    cycle: int
    failure_history: list[FailureCycle]
    generation: int
    replays: int
    replayed_by: str | None
    replay_reason: str | None
    replay_request: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None = Field(description="when the run ended, well or not")
    deleted_at: datetime | None = Field(description="when the row was withdrawn")


class OutboxEntry(OutboxRow):
    """A row with its payload."""

    payload: dict[str, Any]


class OutboxFilter(BaseModel):
    """Which rows. `tenant` None means all; withdrawn ones are left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str | None = None
    status: OutboxStatus | None = None
    pipeline: str | None = None
    key: str | None = None
    since: Moment | None = None


class Outbox:
    """The outbox in one schema of a database."""

    def __init__(self, url: str, schema: str, *, max_size: int = 10) -> None:
        self.schema = checked_schema(schema)
        self.url = url
        self.database = Database(url, max_size=max_size, role=None)

    async def close(self) -> None:
        """Close all connections."""
        await self.database.close()

    async def __aenter__(self) -> "Outbox":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def check(self) -> None:
        """Raise if the outbox is not installed, or by an older release."""
        pool = await self.database.pool()
        try:
            version = await pool.fetchval(f"SELECT {self.schema}.outbox_version()")
        except _NOT_THERE:
            raise self._missing() from None
        if version < VERSION:
            raise NotConfigured(
                f"the outbox in the schema {self.schema!r} is of release {version}, this one needs {VERSION}: "
                "`redrive outbox install` brings it up to date"
            )

    def _missing(self) -> NotConfigured:
        return NotConfigured(f"there is no outbox in the schema {self.schema!r}: `redrive outbox install` makes it")

    async def list_rows(self, chosen: OutboxFilter, limit: int = 50, cursor: str | None = None) -> Page[OutboxRow]:
        """Return the newest rows, after the cursor of the previous page."""
        check_limit(limit)
        query = Query(["deleted_at IS NULL"])
        query.where_given("tenant = {}", chosen.tenant)
        # Not as a parameter: the planner must see that the index of undelivered rows has them all.
        if chosen.status is not None:
            query.conditions.append(f"status = '{chosen.status.value}'")
        query.where_given("pipeline = {}", chosen.pipeline)
        query.where_given("key = {}", None if chosen.key is None else clean(chosen.key))
        query.where_given("created_at >= {}", chosen.since)
        if place := read_cursor(cursor, chosen):
            query.where("(created_at, event_id) < ({}, {})", place.at, _uuid(place.id))
        sql = query.select(_LISTED, self._table, "ORDER BY created_at DESC, event_id DESC", limit + 1)
        rows = [OutboxRow.model_validate(_read(record)) for record in await self._fetch(sql, *query.parameters)]
        return cut(rows, limit, lambda last: Place(last.created_at, str(last.event_id)), chosen)

    async def get(self, tenant: str | None, event_id: str) -> OutboxEntry:
        """Return one row with its payload, by its id or a beginning of it that no other has, or raise."""
        query = Query()
        query.where("event_id = {}", await self._whole_id(tenant, event_id))
        query.where_given("tenant = {}", tenant)
        found = await self._fetch(query.select(f"{_LISTED}, payload", self._table), *query.parameters)
        if not found:
            raise EventNotFound(f"no row has the id {event_id[:200]!r}; `redrive outbox list` shows those there are")
        return entry_of(found[0])

    async def _whole_id(self, tenant: str | None, text: str) -> UUID:
        between = uuids_beginning(text)
        if between is None:
            raise EventNotFound(f"no row has the id {text[:200]!r}; `redrive outbox list` shows those there are")
        query = Query()
        query.where("event_id BETWEEN {} AND {}", *between)
        query.where_given("tenant = {}", tenant)
        sql = query.select("event_id", self._table, "ORDER BY event_id", PREFIXES_COUNTED)
        found = [str(record["event_id"]) for record in await self._fetch(sql, *query.parameters)]
        return UUID(only_one(text, found, "row", EventNotFound))

    async def replay(self, event_id: UUID, generation: int, replayed_by: str, reason: str | None) -> None:
        """Replay a failed row, as anybody may with psql; raises InvalidInput if it cannot be."""
        try:
            await (await self.database.pool()).execute(
                f"SELECT {self.schema}.outbox_replay($1, $2, $3, $4)", event_id, generation, replayed_by, reason
            )
        except asyncpg.InvalidParameterValueError as error:
            raise InvalidInput(str(error)) from None

    async def purge(self, tenant: str | None, older_than: timedelta, *, dry_run: bool) -> int:
        """Delete rows that are over, or withdrawn, for so long, in small batches; return how many."""
        query = Query()
        age = query.add(older_than)
        # The second is for the index: no row is over before it is made.
        query.conditions += [
            f"{time} < now() - {age}::interval" for time in ("coalesce(deleted_at, ended_at)", "created_at")
        ]
        query.where_given("tenant = {}", tenant)
        if dry_run:
            found = await self._fetch(query.select("count(*)", self._table), *query.parameters)
            return int(found[0]["count"])
        query.where("(created_at, event_id) > ({}, {})", datetime.fromtimestamp(0, UTC), UUID(int=0))
        batch = query.select("event_id", self._table, "ORDER BY created_at, event_id", _PURGED_AT_ONCE)
        total = 0
        while deleted := await self._delete(batch, query.parameters):
            total += len(deleted)
            # On from the last one: those before it are read once, whether they stay or are gone.
            query.parameters[-3:-1] = max(deleted)
        return total

    async def _delete(self, batch: str, parameters: Sequence[Any]) -> list[tuple[datetime, UUID]]:
        sql = f"DELETE FROM {self._table} WHERE event_id IN ({batch}) RETURNING created_at, event_id"  # noqa: S608
        return [(row["created_at"], row["event_id"]) for row in await self._fetch(sql, *parameters)]

    async def put_schemas(self, schemas: Mapping[str, dict[str, Any]]) -> None:
        """Store the JSON schemas of these pipelines' payloads, and forget all others, in one transaction."""
        table = f"{self.schema}.outbox_schemas"
        pool = await self.database.pool()
        try:
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute(f"DELETE FROM {table} WHERE pipeline <> ALL ($1)", list(schemas))  # noqa: S608
                await connection.executemany(
                    f"INSERT INTO {table} (pipeline, schema) VALUES ($1, $2) ON CONFLICT (pipeline) "  # noqa: S608
                    "DO UPDATE SET schema = excluded.schema, synced_at = now()",
                    [(pipeline, json_text(schema)) for pipeline, schema in sorted(schemas.items())],
                )
        except _NOT_THERE:
            raise self._missing() from None

    @property
    def _table(self) -> str:
        return f"{self.schema}.outbox"

    async def _fetch(self, sql: str, *parameters: Any) -> list[asyncpg.Record]:
        try:
            return await (await self.database.pool()).fetch(sql, *parameters)
        except _NOT_THERE:
            raise self._missing() from None


async def install(url: str, schema: str, *more: str) -> None:
    """Make the outbox, or bring it up to date, and execute more SQL with it, in one transaction.

    Where it is Redrive's own database, Redrive's application may use it.
    """
    connection = await connect(url)
    try:
        async with connection.transaction():
            # One at a time: CREATE IF NOT EXISTS of two at once collides.
            await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('redrive outbox install', 0))")
            await connection.execute(install_sql(schema))
            if await connection.fetchval("SELECT true FROM pg_roles WHERE rolname = $1", APP_ROLE):
                await connection.execute(bridge_grants(schema, APP_ROLE))
            for each in more:
                await connection.execute(each)
    except asyncpg.PostgresError as error:
        raise InvalidInput(f"the outbox was not installed in the schema {schema!r}: {error}") from None
    finally:
        await connection.close()


def entry_of(record: asyncpg.Record) -> OutboxEntry:
    """Return a whole row."""
    return OutboxEntry.model_validate(_read(record))


async def call(database: "Executor | Connection", schema: str, function: str, *values: Any) -> list[asyncpg.Record]:
    """Call one of the outbox's functions for bridges, and return its rows."""
    marks = ", ".join(f"${number}" for number in range(1, len(values) + 1))
    return await database.fetch(f"SELECT * FROM {schema}.outbox_{function}({marks})", *values)  # noqa: S608


def _read(record: asyncpg.Record) -> dict[str, Any]:
    return {name: from_json(value) if name in _DOCUMENTS else value for name, value in record.items()}


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput(f"{text[:80]!r} is not the id of a row, like 0198f3c2-…") from None
