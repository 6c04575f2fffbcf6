"""A dead letter's row: locked, read and marked inside the caller's transaction."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import asyncpg

from redrive.dead_letters import LetterId, LetterState, LetterStatus
from redrive.postgres.tenancy import Connection, Pool, transaction

_READ: Final = """
    SELECT pipeline, status, cycle, version, replay_count, command_request_id, blocked_by, orphaned
    FROM dead_letters WHERE id = $1
"""


@contextlib.asynccontextmanager
async def changing(pool: Pool, letter: LetterId) -> AsyncIterator[tuple[Connection, asyncpg.Record | None]]:
    """Open a transaction that is the only one to change this dead letter, and yield its record."""
    async with transaction(pool, letter.tenant, alone_with=letter.workflow_id) as connection:
        yield connection, await read(connection, letter)


async def read(connection: Connection, letter: LetterId) -> asyncpg.Record | None:
    """Return the record's state."""
    return await connection.fetchrow(_READ, letter.workflow_id)


def before(record: asyncpg.Record | None) -> dict[str, Any] | None:
    """Return what the audit log keeps of a record before a change."""
    return {name: record[name] for name in ("status", "cycle", "version")} if record else None


def state(letter: LetterId, record: asyncpg.Record) -> LetterState:
    """Return a record in its workflow's form."""
    return LetterState(
        letter=letter,
        pipeline=record["pipeline"],
        status=LetterStatus(record["status"]),
        replays=record["replay_count"],
        cycles=record["cycle"],
        blocked_by=record["blocked_by"],
        orphaned=record["orphaned"],
    )


async def mark_orphaned(connection: Connection, letter: LetterId) -> None:
    """Mark an open dead letter: its run is gone."""
    await connection.execute(
        """
        WITH run AS (UPDATE runs SET status = 'FAILED', closed_at = now(), updated_at = now()
                     WHERE run_id = $2 AND closed_at IS NULL)
        UPDATE dead_letters SET orphaned = true, status = 'pending', version = version + 1, updated_at = now()
        WHERE id = $1 AND NOT orphaned AND status IN ('pending', 'replaying')
        """,
        letter.workflow_id,
        letter.run_id,
    )
