"""Edits that another admin has to approve: asked for, approved, used. Each once, within an hour."""

from datetime import datetime
from typing import Any, Final

from pydantic_core import from_json

from redrive.access import Principal
from redrive.dead_letters import LetterId
from redrive.errors import InvalidInput
from store.audit import Action, Entry, write
from store.records import Record
from store.tenancy import Pool, reading, transaction
from store.text import clean, json_text

_COLUMNS: Final = """
    tenant, plan_hash, dead_letter, plan, reason, requested_by, requested_at, expires_at,
    approved_by, approved_at, used_for
"""
# A request that ran out is made anew; one that waits stays as it is.
_ASK: Final = f"""
    INSERT INTO approvals AS known (tenant, plan_hash, dead_letter, plan, reason, requested_by, requested_person)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (tenant, plan_hash) DO UPDATE SET reason = excluded.reason, requested_by = excluded.requested_by,
        requested_person = excluded.requested_person, requested_at = now(), expires_at = excluded.expires_at,
        approved_by = NULL, approved_at = NULL, used_for = NULL
    WHERE known.expires_at < now() OR known.used_for IS NOT NULL
    RETURNING {_COLUMNS}
"""  # noqa: S608
_USE: Final = """
    UPDATE approvals SET used_for = $3
    WHERE tenant = $1 AND plan_hash = $2 AND approved_by IS NOT NULL AND (used_for IS NULL OR used_for = $3)
        AND (expires_at > now() OR used_for = $3)
    RETURNING approved_by
"""
_APPROVE: Final = f"""
    UPDATE approvals SET approved_by = $3, approved_at = now()
    WHERE tenant = $1 AND plan_hash = $2 AND approved_by IS NULL AND expires_at > now() RETURNING {_COLUMNS}
"""  # noqa: S608


class Approval(Record):
    """An edit that waits for another pair of eyes, or has met them. The plan is redacted."""

    tenant: str
    plan_hash: str
    dead_letter: str
    plan: dict[str, Any]
    reason: str
    requested_by: str
    requested_at: datetime
    expires_at: datetime
    approved_by: str | None
    approved_at: datetime | None
    used_for: str | None


class SameEyes(InvalidInput):
    """Whoever asked for an approval cannot give it."""

    code = "same_eyes"


async def use_approval(pool: Pool, tenant: str, plan_hash: str, request_id: str) -> str | None:
    """Use an approval for an order, and return who gave it; None when there is none to use."""
    async with transaction(pool, tenant) as connection:
        by: str | None = await connection.fetchval(_USE, tenant, plan_hash, clean(request_id))
    return by


async def ask_approval(
    pool: Pool, letter: LetterId, plan_hash: str, *, plan: dict[str, Any], reason: str, caller: Principal
) -> None:
    """Ask for an approval. Asking again while it waits changes nothing."""
    async with transaction(pool, letter.tenant, alone_with=letter.workflow_id) as connection:
        asked = await connection.fetchrow(
            _ASK,
            letter.tenant,
            plan_hash,
            letter.workflow_id,
            json_text(plan),
            clean(reason),
            clean(caller.name),
            caller.person,
        )
        if asked:
            await write(
                connection,
                Entry(
                    action=Action.APPROVAL_ASKED,
                    letter=letter,
                    actor=caller.name,
                    reason=reason,
                    after={"plan_hash": plan_hash},
                ),
            )


async def approve(pool: Pool, letter: LetterId, plan_hash: str, caller: Principal) -> Approval | None:
    """Approve a plan that waits. None: there is none, or its hour is over."""
    async with transaction(pool, letter.tenant, alone_with=letter.workflow_id) as connection:
        person = await connection.fetchval(
            "SELECT requested_person FROM approvals WHERE tenant = $1 AND plan_hash = $2", letter.tenant, plan_hash
        )
        if person == caller.person:
            raise SameEyes(f"plan {plan_hash!r}: {caller.name} asked for it; somebody else has to approve it")
        row = await connection.fetchrow(_APPROVE, letter.tenant, plan_hash, clean(caller.name))
        if row is None:
            return None
        await write(
            connection,
            Entry(action=Action.APPROVED, letter=letter, actor=caller.name, after={"plan_hash": plan_hash}),
        )
    return _approval(dict(row))


async def get_approval(pool: Pool, tenant: str | None, plan_hash: str) -> Approval | None:
    """Return one, whether it waits or is over."""
    found = await _fetch(pool, tenant, "WHERE plan_hash = $1", clean(plan_hash))
    return found[0] if found else None


async def list_approvals(pool: Pool, tenant: str | None) -> list[Approval]:
    """Return those whose hour is not over, the newest first."""
    return await _fetch(pool, tenant, "WHERE expires_at > now() ORDER BY requested_at DESC LIMIT 200")


async def _fetch(pool: Pool, tenant: str | None, rest: str, *values: object) -> list[Approval]:
    async with reading(pool, tenant) as connection:
        rows = await connection.fetch(f"SELECT {_COLUMNS} FROM approvals {rest}", *values)  # noqa: S608
    return [_approval(dict(row)) for row in rows]


def _approval(row: dict[str, Any]) -> Approval:
    return Approval.model_validate(row | {"plan": from_json(row["plan"])})
