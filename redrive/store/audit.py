"""The audit log: who did what to a dead letter, event, run or schedule, and why. In the transaction of the change.

Lists have the newest first; without a tenant, they are of all tenants. Heads of the log are recorded elsewhere and
compared later: whoever rewrites the log cannot rewrite them.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import asyncpg
from pydantic import BaseModel, ConfigDict, Field, computed_field
from pydantic_core import from_json

from redrive.dead_letter_records import LetterId
from redrive.errors import InvalidInput
from redrive.field_types import Moment
from redrive.postgres.paging import Page, Place, Query, check_limit, cut, read_cursor
from redrive.postgres.tenancy import Connection, Pool, reading, transaction
from redrive.postgres.values import Record, clean, clean_or_none, json_text
from redrive.store.audit_subjects import Subject, subject_of
from redrive.store.dead_letters.models import AuditEntry

SYSTEM: Final = "redrive"
_CHUNK: Final = 20_000
_COLUMNS: Final = """
    tenant, number, at, action, dead_letter, run_id, step, actor, reason, request_id, before, after,
    encode(hash, 'hex') AS hash
"""
_DOCUMENTS: Final = frozenset({"before", "after"})
_HASHES: Final = "SELECT number, hash FROM audit_log WHERE tenant = $1 AND number = ANY ($2::bigint[])"
_HEAD: Final = re.compile(r"([1-9][0-9]{0,17}):([0-9a-f]{64})")


class Action(StrEnum):
    """What the audit log records."""

    DEAD_LETTERED = "dead_lettered"
    APPROVAL_REQUESTED = "approval_asked"
    APPROVED = "approved"
    CANCEL_REQUESTED = "cancel_requested"
    RUN_START_REQUESTED = "run_start_requested"
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
    SCHEDULE_CREATE_REQUESTED = "schedule_create_requested"
    SCHEDULE_CREATE_REFUSED = "schedule_create_refused"
    SCHEDULE_PAUSE_REQUESTED = "schedule_pause_requested"
    SCHEDULE_RESUME_REQUESTED = "schedule_resume_requested"
    SCHEDULE_TRIGGER_REQUESTED = "schedule_trigger_requested"
    SCHEDULE_BACKFILL_REQUESTED = "schedule_backfill_requested"
    SCHEDULE_DELETE_REQUESTED = "schedule_delete_requested"
    ACTIVITY_PAUSE_REQUESTED = "activity_pause_requested"
    ACTIVITY_UNPAUSE_REQUESTED = "activity_unpause_requested"
    ACTIVITY_RETRY_REQUESTED = "activity_retry_requested"
    # By functions and triggers of the database.
    TOKEN_CREATED = "token_created"  # noqa: S105 - no password
    TOKEN_REVOKED = "token_revoked"  # noqa: S105 - no password
    MEMBER_CHANGED = "member_changed"
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


@dataclass(frozen=True)
class ScheduleRef:
    """A schedule, as the subject of an entry: its name is in `after`."""

    tenant: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the audit log."""

    action: Action
    letter: LetterId | EventRef | PlanRef | ScheduleRef
    actor: str = SYSTEM
    reason: str | None = None
    request_id: str | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """One line of the audit log about a run without a dead letter; without its id if that is not known yet."""

    action: Action
    tenant: str
    run_id: str | None
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


def _about(letter: LetterId | EventRef | PlanRef | ScheduleRef) -> tuple[str | None, str | None, str | None]:
    """Return the id, the run and the step of an entry's subject."""
    match letter:
        case LetterId():
            return letter.workflow_id, letter.run_id, letter.step
        case EventRef():
            return letter.id, letter.run_id, None
        case PlanRef() | ScheduleRef():
            return None, None, None


async def put_schedule_entry(
    pool: Pool, action: Action, *, tenant: str, name: str, actor: str, reason: str | None, **facts: Any
) -> None:
    """Record what somebody asks of a schedule, before Temporal is asked: the log may say too much, never too little."""
    entry = Entry(
        action=action, letter=ScheduleRef(tenant), actor=actor, reason=reason, after={"schedule": name, **facts}
    )
    async with transaction(pool, tenant) as connection:
        await write(connection, entry)


async def write_run_entry(connection: Connection, entry: RunEntry) -> None:
    """Append an entry about a run."""
    await connection.execute(
        _INSERT,
        entry.tenant,
        entry.action.value,
        None,
        clean_or_none(entry.run_id),
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


class AuditLine(AuditEntry):
    """One line of the audit log, with its subject."""

    tenant: str
    dead_letter: str | None
    run_id: str | None
    step: str | None

    @computed_field(description="what it is about, by its kind and id; none: the log itself")  # type: ignore[prop-decorator]
    @property
    def subject(self) -> Subject | None:
        """What it is about."""
        facts = self.model_dump(include={"action", "dead_letter", "run_id", "step", "request_id", "after"})
        return subject_of(**facts)


class AuditFilter(BaseModel):
    """Which lines. `tenant` None means all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str | None = None
    dead_letter: str | None = None
    about: str | None = Field(default=None, description="the id of a run, a dead letter, an event or a message")
    actor: str | None = Field(default=None, description="a part of the name of who did it")
    action: Action | None = None
    since: Moment | None = None
    until: Moment | None = None
    by_people: bool = Field(default=False, description="only what somebody did, not what the system recorded itself")


async def list_audit(pool: Pool, tenant: str | None, letter_id: str | None = None, limit: int = 50) -> list[AuditLine]:
    """Return the newest lines, of one dead letter or of all."""
    return (await audit_page(pool, AuditFilter(tenant=tenant, dead_letter=letter_id), limit)).rows


async def audit_page(pool: Pool, chosen: AuditFilter, limit: int = 50, cursor: str | None = None) -> Page[AuditLine]:
    """Return the newest matching lines, after the cursor of the previous page."""
    check_limit(limit)
    query = _query(chosen, read_cursor(cursor, chosen))
    # Within a tenant the numbers are in order of time, and indexed.
    order = "ORDER BY at DESC, tenant DESC, number DESC" if chosen.tenant is None else "ORDER BY number DESC"
    sql = query.select(_COLUMNS, "audit_log", order, limit + 1)
    async with reading(pool, chosen.tenant) as connection:
        rows = [_line(record) for record in await connection.fetch(sql, *query.parameters)]
    return cut(rows, limit, lambda last: Place(last.at, f"{last.tenant} {last.number}"), chosen)


def _query(chosen: AuditFilter, place: Place | None) -> Query:
    query = Query()
    query.where_given("tenant = {}", chosen.tenant)
    query.where_given("dead_letter = {}", clean_or_none(chosen.dead_letter))
    query.where_given("action = {}", chosen.action)
    query.where_given("at >= {}", chosen.since)
    query.where_given("at < {}", chosen.until)
    if chosen.about is not None:
        about = query.add(clean(chosen.about))
        query.where(f"(dead_letter = {about} OR run_id = {about})")
    if chosen.actor is not None:
        query.where("position(lower({}) IN lower(actor)) > 0", clean(chosen.actor))
    if chosen.by_people:
        # A literal: the planner must see that the index of these lines applies.
        query.where(f"actor <> '{SYSTEM}'")
    if place is not None:
        tenant, _, number = place.id.rpartition(" ")
        if not number.isascii() or not number.isdigit() or len(number) > 18:
            raise InvalidInput("the cursor is not one that a list gave: start again without one")
        if chosen.tenant is not None:
            query.where("number < {}", int(number))
        else:
            query.where("(at, tenant, number) < ({}, {}, {})", place.at, clean(tenant), int(number))
    return query


def _line(record: asyncpg.Record) -> AuditLine:
    return AuditLine.model_validate(
        {name: from_json(value) if name in _DOCUMENTS and value else value for name, value in record.items()}
    )


CHUNK: Final = 500


_AFTER: Final = """
    SELECT tenant, number, at, action, dead_letter, run_id, step, actor, request_id,
           coalesce(after ->> 'status', after -> 'answer' ->> 'status') AS status
    FROM audit_log WHERE tenant = $1 AND number > $2 ORDER BY number LIMIT $3
"""


class Change(Record):
    """The part of an audit log line that lists and pages need."""

    tenant: str
    number: int
    at: datetime
    action: str
    dead_letter: str | None
    run_id: str | None
    step: str | None
    actor: str
    request_id: str | None
    status: str | None

    @property
    def bulk_id(self) -> str | None:
        """The bulk operation of the line, if it has one."""
        return self.request_id if self.action.startswith("bulk_") and self.request_id else None


async def heads(pool: Pool, tenant: str | None = None) -> dict[str, int]:
    """Return the number of each tenant's last line: a few bytes each, however long the log is."""
    async with reading(pool, tenant) as connection:
        rows = await connection.fetch("SELECT tenant, number FROM audit_heads")
    return {row["tenant"]: row["number"] for row in rows}


async def changes_after(pool: Pool, tenant: str, number: int) -> list[Change]:
    """Return the next lines of a tenant after this number, the oldest first."""
    async with reading(pool, tenant) as connection:
        rows = await connection.fetch(_AFTER, tenant, number, CHUNK)
    return [Change.model_validate(dict(row)) for row in rows]


@dataclass(frozen=True)
class Head:
    """The last line of a tenant's audit log at some moment: its number and its hash."""

    tenant: str
    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"


def read_head(tenant: str, text: str) -> Head:
    """Read a head as `audit verify` prints it."""
    match = _HEAD.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"{text[:80]!r}: not a head; it reads like 1203:9f2c… (a number and 64 hexadecimal digits)")
    return Head(tenant, int(match[1]), match[2])


class Match(StrEnum):
    """The result of comparing a recorded head with the current log."""

    FITS = "fits"
    DIFFERS = "differs"
    MISSING = "missing"
    CUT = "cut"


async def compare(pool: Pool, heads: Iterable[Head]) -> list[tuple[Head, Match]]:
    """Compare recorded heads with the lines of those numbers."""
    by_tenant: dict[str, list[Head]] = defaultdict(list)
    for head in heads:
        by_tenant[head.tenant].append(head)
    matches: list[tuple[Head, Match]] = []
    for tenant, own in by_tenant.items():
        async with reading(pool, tenant) as connection:
            cut, cut_hash = await last_cut(connection, tenant)
            rows = await connection.fetch(_HASHES, tenant, [head.number for head in own])
        known = {row["number"]: row["hash"].hex() for row in rows} | {cut: cut_hash.hex()}
        matches += [(head, Match.CUT if head.number < cut else _match(head, known)) for head in own]
    return matches


def _match(head: Head, known: dict[int, str]) -> Match:
    if head.number not in known:
        return Match.MISSING
    return Match.FITS if known[head.number] == head.hash else Match.DIFFERS


# Of logs that have grown since then. The moment is taken first: lines written meanwhile also appear next time.
_GROWN: Final = """
    SELECT tenant, number, encode(hash, 'hex') AS hash FROM audit_heads
    WHERE $1::timestamptz IS NULL OR tenant IN (SELECT tenant FROM audit_log WHERE at >= $1) ORDER BY tenant
"""


async def grown_heads(pool: Pool, since: datetime | None) -> tuple[list[Head], datetime]:
    """Return the heads of all logs that have grown since a moment, or of all, and the moment for the next call.

    A line has its time before it is committed: the moment is set back by more than a transaction lasts.
    """
    async with reading(pool, None) as connection:
        now: datetime = await connection.fetchval("SELECT now() - interval '5 minutes'")
        rows = await connection.fetch(_GROWN, since)
    return [Head(row["tenant"], row["number"], row["hash"]) for row in rows], now
