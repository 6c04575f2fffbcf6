"""Plans that another person must approve, of edits and bulk operations: asked for, approved, used, within an hour."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import Field
from pydantic_core import from_json

from redrive.bulk import Approval as BulkApproval
from redrive.bulk import BulkPlan, BulkStart
from redrive.dead_letters import LetterId
from redrive.errors import ApprovalNeeded, ApprovalNotFound, SameApprover
from redrive.postgres.tenancy import Connection, Pool, reading, transaction
from redrive.postgres.values import Record, clean, json_text
from redrive.redaction.redactor import Redactor
from redrive.store.audit import Action, Entry, PlanRef, write

# An expired request is made again; one that waits stays unchanged.
_ASK: Final = """
    INSERT INTO approvals AS known (tenant, plan_hash, dead_letter, plan, reason, requested_by, requested_person)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (tenant, plan_hash) DO UPDATE SET reason = excluded.reason, requested_by = excluded.requested_by,
        requested_person = excluded.requested_person, requested_at = now(), expires_at = excluded.expires_at,
        approved_by = NULL, approval_reason = NULL, approved_at = NULL, used_for = NULL
    WHERE known.expires_at < now() OR known.used_for IS NOT NULL
    RETURNING true
"""
_USE: Final = """
    UPDATE approvals SET used_for = $3
    WHERE tenant = $1 AND plan_hash = $2 AND approved_by IS NOT NULL AND (used_for IS NULL OR used_for = $3)
        AND (expires_at > now() OR used_for = $3)
    RETURNING approved_by
"""
_HELD: Final = """
    SELECT EXISTS (
        SELECT FROM approvals WHERE tenant = $1 AND plan_hash = $2 AND used_for IS NULL AND expires_at > now()
    )
"""
_LOCK: Final = """
    SELECT *, expires_at > now() AS in_time FROM approvals WHERE tenant = $1 AND plan_hash = $2 FOR UPDATE
"""
_APPROVE: Final = """
    UPDATE approvals SET approved_by = $3, approval_reason = $4, approved_at = now()
    WHERE tenant = $1 AND plan_hash = $2 RETURNING *
"""
_ONE: Final = "SELECT * FROM approvals WHERE plan_hash = $1"
_CURRENT: Final = "SELECT * FROM approvals WHERE expires_at > now() ORDER BY requested_at DESC LIMIT 200"


class Approval(Record):
    """A plan that waits for a second approver, or has one. What it would do is redacted."""

    tenant: str
    plan_hash: str
    dead_letter: str | None = Field(description="whose edit it is; none: a bulk operation's plan")
    plan: dict[str, Any]
    reason: str
    requested_by: str
    requested_person: str = Field(exclude=True)
    requested_at: datetime
    expires_at: datetime
    approved_by: str | None
    approval_reason: str | None
    approved_at: datetime | None
    used_for: str | None = Field(description="the command, or the bulk operation, that it was used for")


@dataclass(frozen=True, kw_only=True)
class ApprovalRequest:
    """A request for the approval of a plan, which is given redacted."""

    about: LetterId | PlanRef
    plan_hash: str
    plan: dict[str, Any]
    reason: str
    requested_by: str
    person: str


@dataclass(frozen=True, kw_only=True)
class Yes:
    """A person's approval of a plan."""

    approved_by: str
    person: str
    reason: str


async def use_approval(connection: Connection, tenant: str, plan_hash: str, used_for: str) -> str | None:
    """Use an approval for a command, and return who gave it; None if there is none to use."""
    by: str | None = await connection.fetchval(_USE, tenant, clean(plan_hash), clean(used_for))
    return by


async def is_held(connection: Connection, tenant: str, plan_hash: str) -> bool:
    """Tell whether somebody was told to wait for the approval of a plan: nobody may then proceed without it."""
    held: bool = await connection.fetchval(_HELD, tenant, clean(plan_hash))
    return held


async def ask_approval(pool: Pool, asking: ApprovalRequest) -> None:
    """Ask for an approval. ApprovalRequest again while it waits changes nothing."""
    about = asking.about
    async with transaction(pool, about.tenant) as connection:
        is_new = await connection.fetchval(
            _ASK,
            about.tenant,
            clean(asking.plan_hash),
            about.workflow_id if isinstance(about, LetterId) else None,
            json_text(asking.plan),
            clean(asking.reason),
            clean(asking.requested_by),
            clean(asking.person),
        )
        if is_new:
            await write(
                connection,
                Entry(
                    action=Action.APPROVAL_REQUESTED,
                    letter=about,
                    actor=asking.requested_by,
                    reason=asking.reason,
                    after={"plan_hash": asking.plan_hash},
                ),
            )


async def approve_bulk(pool: Pool, redactor: Redactor, approval: BulkApproval) -> None:
    """Approve the plan of a bulk operation, or raise."""
    reason = redactor.text(approval.reason)
    yes = Yes(approved_by=approval.approved_by, person=approval.responsible, reason=reason)
    await approve(pool, approval.tenant, approval.plan_hash, yes)


async def approve(pool: Pool, tenant: str, plan_hash: str, yes: Yes) -> Approval:
    """Approve a plan that waits, or raise. One that was already approved stays unchanged."""
    async with transaction(pool, tenant) as connection:
        known = await connection.fetchrow(_LOCK, tenant, clean(plan_hash))
        if known is None or not known["in_time"]:
            raise not_found(plan_hash)
        if known["requested_person"] == clean(yes.person):
            raise SameApprover(f"plan {plan_hash!r}: {yes.approved_by} asked for it; somebody else has to approve it")
        if known["approved_by"] is not None:
            return _approval(dict(known))
        row = await connection.fetchrow(_APPROVE, tenant, clean(plan_hash), clean(yes.approved_by), clean(yes.reason))
        entry = Entry(
            action=Action.APPROVED,
            letter=await _about(connection, tenant, known["dead_letter"]),
            actor=yes.approved_by,
            reason=yes.reason,
            after={"plan_hash": plan_hash},
        )
        await write(connection, entry)
    return _approval(dict(row or known))


async def _about(connection: Connection, tenant: str, dead_letter: str | None) -> LetterId | PlanRef:
    row = await connection.fetchrow(
        "SELECT run_id, step FROM dead_letters WHERE tenant = $1 AND id = $2", tenant, dead_letter
    )
    return LetterId(tenant=tenant, run_id=row["run_id"], step=row["step"]) if row else PlanRef(tenant)


def not_found(plan_hash: str) -> ApprovalNotFound:
    """Say that nothing waits under this hash."""
    return ApprovalNotFound(f"no plan {plan_hash[:80]!r} waits for approval: nobody asked, or it has expired")


async def get_approval(pool: Pool, tenant: str | None, plan_hash: str) -> Approval:
    """Return one, whether it waits or has expired, or raise."""
    found = await _fetch(pool, tenant, _ONE, clean(plan_hash))
    if not found:
        raise not_found(plan_hash)
    return found[0]


async def list_approvals(pool: Pool, tenant: str | None) -> list[Approval]:
    """Return those that have not expired, the newest first."""
    return await _fetch(pool, tenant, _CURRENT)


async def _fetch(pool: Pool, tenant: str | None, statement: str, *values: object) -> list[Approval]:
    async with reading(pool, tenant) as connection:
        rows = await connection.fetch(statement, *values)
    return [_approval(dict(row)) for row in rows]


def _approval(row: dict[str, Any]) -> Approval:
    return Approval.model_validate(row | {"plan": from_json(row["plan"])})


class PlanWaits(ApprovalNeeded):
    """A start whose plan nobody else has approved yet, with that plan."""

    def __init__(self, start: BulkStart, plan: BulkPlan) -> None:
        tenant, until = start.command.tenant, start.command.selection.until
        super().__init__(
            f"plan {start.plan_hash!r}: somebody other than {start.requested_by!r} has to approve it within an hour, "
            f"at /bulk/approvals/{start.plan_hash} of the console or with `redrive bulk approve {start.plan_hash} "
            f"--tenant {tenant} --reason …`; then give the same command again"
            + (f", with until {until.isoformat()}" if until else "")
        )
        self.plan = plan


async def use_plan_approval(connection: Connection, start: BulkStart, plan: BulkPlan) -> None:
    """Use the approval of a plan, or refuse."""
    if await use_approval(connection, start.command.tenant, start.plan_hash, start.bulk_id) is None:
        raise PlanWaits(start, plan)


async def ask_plan_approval(pool: Pool, start: BulkStart, plan: dict[str, Any]) -> None:
    """Let a plan, which is given redacted, wait for a second approver."""
    asking = ApprovalRequest(
        about=PlanRef(start.command.tenant),
        plan_hash=start.plan_hash,
        plan=plan,
        reason=start.reason,
        requested_by=start.requested_by,
        person=start.responsible,
    )
    await ask_approval(pool, asking)
