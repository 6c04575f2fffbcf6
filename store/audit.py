"""The audit log: who did what to a dead letter, and why. Written in the transaction that makes the change."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pydantic_core import to_json

from redrive.dead_letters import LetterId
from store.tenancy import EVERY_TENANT, Connection, Pool, transaction

SYSTEM: Final = "redrive"


class Action(StrEnum):
    """What the audit log records."""

    DEAD_LETTERED = "dead_lettered"
    REPLAY_REQUESTED = "replay_requested"
    REPLAY_OUTCOME = "replay_outcome"
    RESOLVED = "resolved"
    DISCARDED = "discarded"
    REFUSED = "refused"
    ORPHANED = "orphaned"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the audit log."""

    action: Action
    letter: LetterId
    actor: str = SYSTEM
    reason: str | None = None
    request_id: str | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


_INSERT: Final = """
    INSERT INTO audit_log (tenant, number, at, action, dead_letter, run_id, step, actor, reason, request_id,
                           before, after, hash)
    SELECT $1, 0, now(), $2, $3, $4, $5, $6, $7, $8, $9, $10, ''
    WHERE NOT EXISTS (
        SELECT FROM audit_log WHERE tenant = $1 AND dead_letter = $3 AND action = $2 AND request_id = $8
    )
"""


async def write(connection: Connection, entry: Entry) -> None:
    """Append an entry; one that is there already (the same order, tried again) is left as it is."""
    # Not ON CONFLICT DO NOTHING: the trigger that chains the rows would have counted the row that is then not written.
    letter = entry.letter
    await connection.execute(
        _INSERT,
        letter.tenant,
        entry.action.value,
        letter.workflow_id,
        letter.run_id,
        letter.step,
        entry.actor,
        entry.reason,
        entry.request_id,
        _json(entry.before),
        _json(entry.after),
    )


def _json(value: dict[str, Any] | None) -> str | None:
    return None if value is None else to_json(value).decode()


_BROKEN: Final = """
    WITH chained AS (
        SELECT entry, lag(hash, 1, '\\x'::bytea) OVER w AS previous, lag(number, 1, 0::bigint) OVER w AS before
        FROM audit_log AS entry WHERE tenant = $1 WINDOW w AS (ORDER BY number)
    )
    SELECT (entry).number FROM chained
    WHERE (entry).hash <> audit_hash(previous, entry) OR (entry).number <> before + 1
    UNION ALL
    SELECT head.number FROM audit_heads AS head
    WHERE tenant = $1 AND number > (SELECT max(number) FROM audit_log WHERE tenant = $1)
    ORDER BY 1 LIMIT 1
"""


@dataclass(frozen=True)
class Proof:
    """Whether a tenant's audit log is whole."""

    tenant: str
    entries: int
    first_broken: int | None


async def verify(pool: Pool, tenant: str | None) -> list[Proof]:
    """Recompute the chain of a tenant, or of every one, and name the first row that does not fit."""
    async with transaction(pool, tenant or EVERY_TENANT) as connection:
        rows = await connection.fetch(
            "SELECT tenant, count(*) AS entries FROM audit_log GROUP BY tenant ORDER BY tenant"
        )
        return [Proof(row["tenant"], row["entries"], await connection.fetchval(_BROKEN, row["tenant"])) for row in rows]
