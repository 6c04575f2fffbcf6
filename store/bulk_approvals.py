"""Approvals of plans: another person's yes, for one bulk operation, within an hour."""

from typing import Final

from redrive.bulk_orders import Approval, BulkStart
from redrive.errors import ApprovalNeeded
from store.audit import Action
from store.tenancy import Connection, Pool, transaction
from store.text import clean, json_text

_PUT: Final = """
    INSERT INTO bulk_approvals (tenant, plan_hash, approved_by, reason) VALUES ($1, $2, $3, $4)
    ON CONFLICT (tenant, plan_hash, approved_by)
        DO UPDATE SET reason = excluded.reason, approved_at = now(), used_by = NULL
"""
# Materialized: inside IN (...) the planner may run it again for each row, and use up more than one.
_USE: Final = """
    WITH found AS MATERIALIZED (
        SELECT approved_by FROM bulk_approvals
        WHERE tenant = $1 AND plan_hash = $2 AND approved_by <> $3 AND used_by IS NULL
            AND approved_at > now() - interval '1 hour'
        ORDER BY approved_at LIMIT 1 FOR UPDATE
    )
    UPDATE bulk_approvals AS given SET used_by = $4 FROM found
    WHERE given.tenant = $1 AND given.plan_hash = $2 AND given.approved_by = found.approved_by
    RETURNING given.approved_by
"""


async def put_approval(pool: Pool, approval: Approval) -> None:
    """Record that somebody approves a plan, from now for an hour."""
    async with transaction(pool, approval.tenant) as connection:
        who, why, plan = clean(approval.approved_by), clean(approval.reason), clean(approval.plan_hash)
        await connection.execute(_PUT, approval.tenant, plan, who, why)
        await connection.execute(
            "INSERT INTO audit_log (tenant, action, actor, reason, after) VALUES ($1, $2, $3, $4, $5)",
            approval.tenant,
            Action.BULK_APPROVED.value,
            who,
            why,
            json_text({"plan": plan}),
        )


async def use_approval(connection: Connection, start: BulkStart) -> None:
    """Use up another person's approval of the plan, or refuse."""
    tenant, plan, who = start.order.tenant, clean(start.plan_hash), clean(start.requested_by)
    if await connection.fetchval(_USE, tenant, plan, who, start.bulk_id) is None:
        raise ApprovalNeeded(
            f"plan {start.plan_hash!r}: somebody other than {start.requested_by!r} has to approve it first, and not "
            f"more than an hour ago: `redrive bulk approve {start.plan_hash} --tenant {tenant} --reason …`"
        )
