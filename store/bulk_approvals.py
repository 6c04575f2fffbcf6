"""Plans of bulk operations and the approvals that they need: another person's yes, for one start, within an hour."""

from typing import Any

from redrive.bulk_orders import BulkPlan, BulkStart
from redrive.errors import ApprovalNeeded
from store.approvals import Asking, ask_approval, use_approval
from store.audit import PlanRef
from store.tenancy import Connection, Pool


class PlanWaits(ApprovalNeeded):
    """A start whose plan nobody else has approved yet, with that plan."""

    def __init__(self, start: BulkStart, plan: BulkPlan) -> None:
        tenant, until = start.order.tenant, start.order.selection.until
        super().__init__(
            f"plan {start.plan_hash!r}: somebody other than {start.requested_by!r} has to approve it within an hour, "
            f"at /bulk/approvals/{start.plan_hash} of the console or with `redrive bulk approve {start.plan_hash} "
            f"--tenant {tenant} --reason …`; then give the same order again"
            + (f", with until {until.isoformat()}" if until else "")
        )
        self.plan = plan


async def use_plan_approval(connection: Connection, start: BulkStart, plan: BulkPlan) -> None:
    """Use up the approval of a plan, or refuse."""
    if await use_approval(connection, start.order.tenant, start.plan_hash, start.bulk_id) is None:
        raise PlanWaits(start, plan)


async def ask_plan_approval(pool: Pool, start: BulkStart, plan: dict[str, Any]) -> None:
    """Have a plan, which is given redacted, wait for somebody else."""
    asking = Asking(
        about=PlanRef(start.order.tenant),
        plan_hash=start.plan_hash,
        plan=plan,
        reason=start.reason,
        requested_by=start.requested_by,
        person=start.eyes,
    )
    await ask_approval(pool, asking)
