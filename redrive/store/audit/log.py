"""The audit log: who did what to a dead letter or event, and why. Written in the transaction of the change."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from redrive.dead_letters import LetterId
from redrive.postgres.tenancy import Connection, Pool, reading
from redrive.postgres.text import clean, clean_or_none, json_text

SYSTEM: Final = "redrive"
_CHUNK: Final = 20_000


class Action(StrEnum):
    """What the audit log records."""

    DEAD_LETTERED = "dead_lettered"
    APPROVAL_REQUESTED = "approval_asked"
    APPROVED = "approved"
    CANCEL_REQUESTED = "cancel_requested"
    REPLAY_REQUESTED = "replay_requested"
    REPLAY_OUTCOME = "replay_outcome"
    RESOLVED = "resolved"
    DISCARDED = "discarded"
    RESTARTED = "restarted"
    CONTINUED = "continued"
    REFUSED = "refused"
    ORPHANED = "orphaned"
    KEY_RESET = "key_reset"
    REOPENED = "reopened"
    EVENT_DEAD_LETTERED = "event_dead_lettered"
    EVENT_REPLAY_REQUESTED = "event_replay_requested"
    EVENT_REPLAY_OUTCOME = "event_replay_outcome"
    EVENT_DISCARDED = "event_discarded"
    ASSIGNED = "assigned"
    PROJECTORS_REPLAYED = "projectors_replayed"
    BULK_STARTED = "bulk_started"
    BULK_REFUSED = "bulk_refused"
    BULK_PAUSED = "bulk_paused"
    BULK_RESUMED = "bulk_resumed"
    BULK_STOPPED = "bulk_stopped"
    BULK_FINISHED = "bulk_finished"
    PURGED = "purged"
    AUDIT_CUT = "audit_cut"


@dataclass(frozen=True)
class EventRef:
    """A dead event or an event, as the subject of an entry."""

    tenant: str
    id: str
    run_id: str | None = None


@dataclass(frozen=True)
class PlanRef:
    """The plan of a bulk operation, as the subject of an entry: its hash is in `after`."""

    tenant: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the audit log."""

    action: Action
    letter: LetterId | EventRef | PlanRef
    actor: str = SYSTEM
    reason: str | None = None
    request_id: str | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """One line of the audit log about a run without a dead letter."""

    action: Action
    tenant: str
    run_id: str
    actor: str
    reason: str
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


_INSERT: Final = """
    INSERT INTO audit_log (tenant, action, dead_letter, run_id, step, actor, reason, request_id, before, after)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
"""


async def write(connection: Connection, entry: Entry) -> None:
    """Append an entry. The database sets its number, time and hash."""
    await connection.execute(
        _INSERT,
        entry.letter.tenant,
        entry.action.value,
        *_about(entry.letter),
        clean(entry.actor),
        clean_or_none(entry.reason),
        clean_or_none(entry.request_id),
        None if entry.before is None else json_text(entry.before),
        None if entry.after is None else json_text(entry.after),
    )


def _about(letter: LetterId | EventRef | PlanRef) -> tuple[str | None, str | None, str | None]:
    """Return the id, the run and the step of an entry's subject."""
    match letter:
        case LetterId():
            return letter.workflow_id, letter.run_id, letter.step
        case EventRef():
            return letter.id, letter.run_id, None
        case PlanRef():
            return None, None, None


async def write_run_entry(connection: Connection, entry: RunEntry) -> None:
    """Append an entry about a run."""
    await connection.execute(
        _INSERT,
        entry.tenant,
        entry.action.value,
        None,
        clean(entry.run_id),
        None,
        clean(entry.actor),
        clean(entry.reason),
        None,
        None if entry.before is None else json_text(entry.before),
        None if entry.after is None else json_text(entry.after),
    )


@dataclass(frozen=True)
class Proof:
    """Whether a tenant's audit log is intact. Its head, recorded elsewhere, later proves that it was not rewritten.

    `cut` is the number of the last line that retention has removed: what came before cannot be verified.
    """

    tenant: str
    entries: int
    first_broken: int | None
    head: str
    cut: int = 0

    @property
    def is_whole(self) -> bool:
        """Tell whether every row matches the one before it, and none is missing."""
        return self.first_broken is None


_TENANTS: Final = """
    SELECT tenant, coalesce(head.number, 0) AS number, coalesce(head.hash, '\\x') AS hash
    FROM audit_heads AS head FULL JOIN (SELECT DISTINCT tenant FROM audit_log) AS log USING (tenant) ORDER BY tenant
"""

# The first number at which the rows after $2 do not continue from the hash $3, and where the chunk ends.
_CHECK: Final = """
    WITH chunk AS (
        SELECT entry, (entry).number AS number, (entry).hash AS hash
        FROM audit_log AS entry WHERE tenant = $1 AND number > $2 ORDER BY number LIMIT $4
    ), chained AS (
        SELECT *, lag(hash, 1, $3::bytea) OVER w AS previous, lag(number, 1, $2::bigint) OVER w AS before
        FROM chunk WINDOW w AS (ORDER BY number)
    )
    SELECT min(least(number, before + 1)) FILTER (WHERE number <> before + 1 OR hash <> audit_hash(previous, entry))
               AS broken,
           max(number) AS number,
           (SELECT hash FROM chunk ORDER BY number DESC LIMIT 1) AS hash
    FROM chained
"""


async def verify(pool: Pool, tenant: str | None) -> list[Proof]:
    """Recompute the hash chain of a tenant, or of each, and name the first number that is missing or does not match."""
    async with reading(pool, tenant) as connection:
        heads = await connection.fetch(_TENANTS)
        return [await _verify(connection, head["tenant"], head["number"], head["hash"]) for head in heads]


async def _verify(connection: Connection, tenant: str, head: int, head_hash: bytes) -> Proof:
    cut, cut_hash = await last_cut(connection, tenant)
    last, broken = await _first_broken(connection, tenant, (cut, cut_hash), (head, head_hash))
    return Proof(tenant, max(last - cut, 0), broken, f"{head}:{head_hash.hex()}", cut)


# A line cannot cut itself off: one that says so does not count, and the chain is found broken before it.
_LAST_CUT: Final = """
    SELECT (after ->> 'through')::bigint AS number, decode(after ->> 'hash', 'hex') AS hash FROM audit_log
    WHERE tenant = $1 AND action = 'audit_cut' AND (after ->> 'through')::bigint < number ORDER BY number DESC LIMIT 1
"""


async def last_cut(connection: Connection, tenant: str) -> tuple[int, bytes]:
    """Return the number and the hash of the last line that was cut off; 0 and None if none was."""
    row = await connection.fetchrow(_LAST_CUT, tenant)
    return (row["number"], row["hash"]) if row else (0, b"")


async def _first_broken(
    connection: Connection, tenant: str, cut: tuple[int, bytes], head: tuple[int, bytes]
) -> tuple[int, int | None]:
    """Follow the chain from a cut on; return how far it goes, and the first number that does not match."""
    early = await connection.fetchval("SELECT min(number) FROM audit_log WHERE tenant = $1 AND number < 1", tenant)
    if early is not None:
        return 0, early
    number, last_hash = cut
    while True:
        row = await connection.fetchrow(_CHECK, tenant, number, last_hash, _CHUNK)
        if row is None or row["number"] is None:
            break
        if row["broken"] is not None:
            return number, row["broken"]
        number, last_hash = row["number"], row["hash"]
    if number != head[0]:
        return number, min(number, head[0]) + 1
    return number, None if last_hash == head[1] else head[0]
