"""The audit of `cancel`: the run itself is in Temporal, but an operator asked for it."""

from store.audit import Action
from store.tenancy import Pool, transaction
from store.text import clean


async def put_cancel(pool: Pool, *, tenant: str, run_id: str, actor: str, reason: str) -> None:
    """Record that somebody asks a run to stop, and why."""
    async with transaction(pool, tenant) as connection:
        await connection.execute(
            "INSERT INTO audit_log (tenant, action, run_id, actor, reason) VALUES ($1, $2, $3, $4, $5)",
            tenant,
            Action.CANCEL_REQUESTED.value,
            clean(run_id),
            clean(actor),
            clean(reason),
        )
