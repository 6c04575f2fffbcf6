"""Which dead letters belong to a bulk operation: counted for a plan, and fixed when it starts."""

from dataclasses import dataclass
from typing import Final

import asyncpg
from pydantic_core import from_json

from redrive.bulk import ITEMS_LIMIT, BulkCommand, BulkStart
from redrive.dead_letters import LetterFilter, LetterStatus
from redrive.postgres.paging import Query
from redrive.postgres.tenancy import Connection, Pool, reading
from redrive.store.dead_letters.filters import fitting


@dataclass(frozen=True)
class Members:
    """How many there are, a digest of their ids and versions, and how many of each pipeline's steps.

    Above the limit, counting stops at one more than allowed.
    """

    count: int
    digest: str
    groups: list[tuple[str, str, int]]


# Counts and fingerprints the members that a statement gives.
_MEMBERS: Final = """
    WITH members AS MATERIALIZED ({source}), groups AS (
        SELECT pipeline, step, count(*) AS count FROM members GROUP BY pipeline, step
    )
    SELECT (SELECT count(*) FROM members) AS count,
           (SELECT encode(sha256(convert_to(coalesce(
                string_agg(id || ':' || version, ',' ORDER BY id COLLATE "C"), ''), 'UTF8')), 'hex') FROM members)
                AS digest,
           (SELECT coalesce(jsonb_agg(jsonb_build_array(pipeline, step, count) ORDER BY pipeline, step), '[]')
            FROM groups) AS groups
"""
# Stores the members that a statement gives.
_FREEZE: Final = """
    INSERT INTO bulk_items (tenant, bulk_id, position, letter_id, run_id, step, version)
    SELECT tenant, {bulk}, row_number() OVER (ORDER BY last_failed_at, id) - 1, id, run_id, step, version
    FROM ({source}) AS members
"""
# The members as they were stored.
_FROZEN: Final = """
    SELECT letter.id, item.version, letter.pipeline, letter.step
    FROM bulk_items AS item JOIN dead_letters AS letter ON letter.id = item.letter_id
    WHERE item.tenant = $1 AND item.bulk_id = $2
"""


async def find_members(pool: Pool, command: BulkCommand) -> Members:
    """Return what a bulk operation would consist of now."""
    async with reading(pool, command.tenant) as connection:
        query = await _chosen(connection, command)
        source = query.select("id, version, pipeline, step", "dead_letters", limit=ITEMS_LIMIT + 1)
        return _members(await connection.fetchrow(_MEMBERS.format(source=source), *query.parameters))


async def freeze_members(connection: Connection, start: BulkStart) -> Members:
    """Store the members of a bulk operation, the oldest failure first."""
    query = await _chosen(connection, start.command)
    columns = "tenant, id, run_id, step, version, last_failed_at"
    source = query.select(columns, "dead_letters", "ORDER BY last_failed_at, id", ITEMS_LIMIT + 1)
    await connection.execute(_FREEZE.format(bulk=query.add(start.bulk_id), source=source), *query.parameters)
    row = await connection.fetchrow(_MEMBERS.format(source=_FROZEN), start.command.tenant, start.bulk_id)
    return _members(row)


def _members(row: asyncpg.Record | None) -> Members:
    if row is None:
        raise LookupError("a count without a row")
    return Members(row["count"], row["digest"], [tuple(group) for group in from_json(row["groups"])])


async def _chosen(connection: Connection, command: BulkCommand) -> Query:
    chosen = LetterFilter(tenant=command.tenant, status=LetterStatus.PENDING, **dict(command.selection))
    return await fitting(connection, chosen)
