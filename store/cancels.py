"""The audit of `cancel`: the run itself is in Temporal, but an operator asked for it."""

from store.audit import Action, RunEntry, write_run_entry
from store.tenancy import Pool, transaction


async def put_cancel(pool: Pool, *, tenant: str, run_id: str, actor: str, reason: str) -> None:
    """Record that somebody asks a run to stop, and why."""
    entry = RunEntry(action=Action.CANCEL_REQUESTED, tenant=tenant, run_id=run_id, actor=actor, reason=reason)
    async with transaction(pool, tenant) as connection:
        await write_run_entry(connection, entry)
