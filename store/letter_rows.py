"""One dead letter's row: locked, read and marked inside the transaction of a caller."""

from typing import Any, Final

import asyncpg

from redrive.dead_letters import LetterId, LetterState, LetterStatus
from store.tenancy import Connection

_LOCK: Final = """
    SELECT pipeline, status, cycle, version, replay_count, replay_request_id, blocked_by, orphaned
    FROM dead_letters WHERE id = $1 FOR UPDATE
"""


async def lock(connection: Connection, letter: LetterId) -> asyncpg.Record | None:
    """Hold the record until the transaction ends: what is read after this is not changed by another writer."""
    return await connection.fetchrow(_LOCK, letter.workflow_id)


def before(record: asyncpg.Record | None) -> dict[str, Any] | None:
    return {name: record[name] for name in ("status", "cycle", "version")} if record else None


def state(letter: LetterId, record: asyncpg.Record) -> LetterState:
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
    await connection.execute(
        """
        UPDATE dead_letters SET orphaned = true, status = 'pending', version = version + 1, updated_at = now()
        WHERE id = $1 AND NOT orphaned AND status IN ('pending', 'replaying')
        """,
        letter.workflow_id,
    )
