"""Bulk operations: opened, controlled and ended, each change with its audit row in the same transaction.

Which dead letters belong to one is counted for a plan, and fixed when it starts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import asyncpg
from pydantic_core import from_json

from redrive.bulk import (
    ITEMS_LIMIT,
    BulkCommand,
    BulkControl,
    BulkControlInput,
    BulkControlRequest,
    BulkPlan,
    BulkProgress,
    BulkStart,
    BulkStatus,
    control_refusal,
    other_command,
    status_after_control,
)
from redrive.dead_letters import LetterFilter, LetterStatus
from redrive.errors import BulkRefused
from redrive.postgres.paging import Query
from redrive.postgres.tenancy import Connection, Pool, reading, transaction
from redrive.postgres.values import clean, clean_or_none, json_text
from redrive.store.approvals import is_held, use_plan_approval
from redrive.store.audit import SYSTEM, Action
from redrive.store.bulk.lists import progress
from redrive.store.dead_letters.lists import fitting

_ACTIONS: Final = {
    BulkControl.PAUSE: Action.BULK_PAUSED,
    BulkControl.RESUME: Action.BULK_RESUMED,
    BulkControl.STOP: Action.BULK_STOPPED,
}
_INSERT: Final = """
    INSERT INTO bulk_operations (tenant, id, verb, status, options, action_hash, plan_hash, request_id, total, canary,
                                 requested_by, reason)
    VALUES ($1, $2, $3, 'RUNNING', $4, $5, $6, $7, 0, $8, $9, $10)
"""


@dataclass(frozen=True)
class Members:
    """How many there are, a digest of their ids and versions, and how many of each pipeline's steps.

    Above the limit, counting stops at one more than allowed.
    """

    count: int
    digest: str
    groups: list[tuple[str, str, bool, int]]
    """Of each pipeline and step: whether it is a foreign workflow's, and how many."""


# Counts and fingerprints the members that a statement gives.
_MEMBERS: Final = """
    WITH members AS MATERIALIZED ({source}), groups AS (
        SELECT pipeline, step, is_foreign, count(*) AS count FROM members GROUP BY pipeline, step, is_foreign
    )
    SELECT (SELECT count(*) FROM members) AS count,
           (SELECT encode(sha256(convert_to(coalesce(
                string_agg(id || ':' || version, ',' ORDER BY id COLLATE "C"), ''), 'UTF8')), 'hex') FROM members)
                AS digest,
           (SELECT coalesce(jsonb_agg(jsonb_build_array(pipeline, step, is_foreign, count) ORDER BY pipeline, step),
                '[]') FROM groups) AS groups
"""


# Stores the members that a statement gives.
_FREEZE: Final = """
    INSERT INTO bulk_items (tenant, bulk_id, position, letter_id, run_id, step, version)
    SELECT tenant, {bulk}, row_number() OVER (ORDER BY last_failed_at, id) - 1, id, run_id, step, version
    FROM ({source}) AS members
"""


# The members as they were stored.
_FROZEN: Final = """
    SELECT letter.id, item.version, letter.pipeline, letter.module AS step, letter.step LIKE '%@%' AS is_foreign
    FROM bulk_items AS item JOIN dead_letters AS letter ON letter.id = item.letter_id
    WHERE item.tenant = $1 AND item.bulk_id = $2
"""


async def find_members(pool: Pool, command: BulkCommand) -> Members:
    """Return what a bulk operation would consist of now."""
    async with reading(pool, command.tenant) as connection:
        query = await _chosen(connection, command)
        columns = "id, version, pipeline, module AS step, step LIKE '%@%' AS is_foreign"
        source = query.select(columns, "dead_letters", limit=ITEMS_LIMIT + 1)
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


async def open_bulk(
    pool: Pool, start: BulkStart, judge: Callable[[Members], BulkPlan], *, approvals: bool
) -> tuple[BulkProgress, bool]:
    """Fix the membership and begin; if `judge` raises, nothing happens. Return also whether it is new.

    An existing bulk operation continues, with its membership.
    """
    tenant, bulk_id = start.command.tenant, start.bulk_id
    async with transaction(pool, tenant, alone_with=f"{tenant} {bulk_id}") as connection:
        known = await connection.fetchval(
            "SELECT action_hash FROM bulk_operations WHERE tenant = $1 AND id = $2", tenant, bulk_id
        )
        if known is None:
            await _begin(connection, start, judge, approvals=approvals)
        elif known != start.command.action_hash:
            raise BulkRefused(other_command(start.request_id))
        return await progress(connection, tenant, bulk_id), known is None


async def _begin(
    connection: Connection, start: BulkStart, judge: Callable[[Members], BulkPlan], *, approvals: bool
) -> None:
    command, bulk_id = start.command, start.bulk_id
    await connection.execute(
        _INSERT,
        command.tenant,
        bulk_id,
        command.verb.value,
        json_text(shown_options(command)),
        command.action_hash,
        clean(start.plan_hash),
        clean(start.request_id),
        command.canary,
        clean(start.requested_by),
        clean(start.reason),
    )
    members = await freeze_members(connection, start)
    plan = judge(members)
    if approvals or await is_held(connection, command.tenant, start.plan_hash):
        await use_plan_approval(connection, start, plan)
    await connection.execute(
        "UPDATE bulk_operations SET total = $3 WHERE tenant = $1 AND id = $2", command.tenant, bulk_id, members.count
    )
    after = {"verb": command.verb, "items": members.count, "plan": start.plan_hash, "options": shown_options(command)}
    await audit(connection, start, Action.BULK_STARTED, after)


def shown_options(command: BulkCommand) -> dict[str, Any]:
    """Return the command's options without the content of an edit or output, which may be secret."""
    shown = command.model_dump(mode="json", exclude={"tenant", "verb", "input_patch", "output"}, exclude_none=True)
    return shown | {"edited": command.input_patch is not None}


async def put_refused(pool: Pool, start: BulkStart, code: str, problem: str) -> None:
    """Record that a bulk operation was refused."""
    async with transaction(pool, start.command.tenant) as connection:
        after = {"verb": start.command.verb, "plan": start.plan_hash, "code": code, "problem": problem}
        await audit(connection, start, Action.BULK_REFUSED, after)


async def control_bulk(pool: Pool, given: BulkControlRequest) -> BulkStatus:
    """Pause, resume or stop; what a stop leaves unsent is skipped. The same command again changes nothing."""
    tenant, bulk_id, wanted = given.tenant, given.bulk_id, status_after_control(given.control)
    async with transaction(pool, tenant, alone_with=f"{tenant} {bulk_id}") as connection:
        before = await progress(connection, tenant, bulk_id)
        problem = control_refusal(before.status, given.control)
        if problem:
            raise BulkRefused(problem)
        if before.status is wanted:
            return wanted
        why = clean(given.command.reason)
        await connection.execute(
            """
            UPDATE bulk_operations SET status = $3, updated_at = now(),
                stopped_because = CASE WHEN $3 = 'STOPPING' THEN $4 ELSE stopped_because END
            WHERE tenant = $1 AND id = $2
            """,
            tenant,
            bulk_id,
            wanted.value,
            why,
        )
        if wanted is BulkStatus.STOPPING:
            await _skip_pending(connection, tenant, bulk_id, f"the bulk operation was stopped: {why}")
        await _audit(connection, tenant, bulk_id, _ACTIONS[given.control], command=given.command, after=_told(before))
        return wanted


async def _skip_pending(connection: Connection, tenant: str, bulk_id: str, why: str) -> None:
    await connection.execute(
        """
        UPDATE bulk_items SET status = 'SKIPPED', why = $3, updated_at = now()
        WHERE tenant = $1 AND bulk_id = $2 AND status = 'PENDING'
        """,
        tenant,
        bulk_id,
        why,
    )


_ABANDON: Final = """
    WITH items AS (
        UPDATE bulk_items SET updated_at = now(),
            status = CASE WHEN status = 'PENDING' THEN 'SKIPPED' ELSE 'FAILED' END,
            why = CASE WHEN status = 'PENDING' THEN $3
                ELSE $3 || ': its dead letter shows whether the command was carried out' END
        WHERE tenant = $1 AND bulk_id = $2 AND status IN ('PENDING', 'SENDING', 'ORDERED'))
    UPDATE bulk_operations SET status = 'STOPPED', stopped_because = $3, finished_at = now(), updated_at = now()
    WHERE tenant = $1 AND id = $2
"""


async def abandon_bulk(pool: Pool, tenant: str, bulk_id: str) -> None:
    """End a bulk operation whose workflow is gone."""
    async with transaction(pool, tenant, alone_with=f"{tenant} {bulk_id}") as connection:
        if (await progress(connection, tenant, bulk_id)).status.closed:
            return
        await connection.execute(_ABANDON, tenant, bulk_id, "the bulk operation's workflow is gone")
        ended = await progress(connection, tenant, bulk_id)
        await _audit(connection, tenant, bulk_id, Action.BULK_FINISHED, command=None, after=_told(ended))


async def finish_bulk(pool: Pool, tenant: str, bulk_id: str) -> BulkProgress:
    """End a bulk operation whose items have all ended, once."""
    async with transaction(pool, tenant, alone_with=f"{tenant} {bulk_id}") as connection:
        now = await progress(connection, tenant, bulk_id)
        if now.status.closed or not now.finished:
            return now
        status = BulkStatus.STOPPED if now.status is BulkStatus.STOPPING else BulkStatus.DONE
        await connection.execute(
            """
            UPDATE bulk_operations SET status = $3, finished_at = now(), updated_at = now()
            WHERE tenant = $1 AND id = $2
            """,
            tenant,
            bulk_id,
            status.value,
        )
        ended = now.model_copy(update={"status": status})
        await _audit(connection, tenant, bulk_id, Action.BULK_FINISHED, command=None, after=_told(ended))
        return ended


def _told(progress: BulkProgress) -> dict[str, Any]:
    return progress.model_dump(mode="json", include={"status", "total", "pending", "applied", "skipped", "failed"})


async def audit(connection: Connection, start: BulkStart, action: Action, after: dict[str, Any]) -> None:
    """Append an entry about a bulk operation: who asked for it, and why."""
    command = BulkControlInput(requested_by=start.requested_by, reason=start.reason)
    await _audit(connection, start.command.tenant, start.bulk_id, action, command=command, after=after)


async def _audit(
    connection: Connection,
    tenant: str,
    bulk_id: str,
    action: Action,
    *,
    command: BulkControlInput | None,
    after: dict[str, Any],
) -> None:
    await connection.execute(
        "INSERT INTO audit_log (tenant, action, actor, reason, request_id, after) VALUES ($1, $2, $3, $4, $5, $6)",
        tenant,
        action.value,
        clean(command.requested_by) if command else SYSTEM,
        clean_or_none(command.reason if command else None),
        bulk_id,
        json_text(after),
    )
