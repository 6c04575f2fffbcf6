"""The next generation of a key: an operator resets it, or restarts the dead letter of its run that is gone."""

from typing import Final

from redrive.errors import KeyInUse, KeyNotFound
from redrive.keys import run_id_for_key
from redrive.postgres.tenancy import Connection, Pool, transaction
from redrive.postgres.text import clean
from redrive.store.audit.log import Action, RunEntry, write_run_entry
from redrive.store.keys.rows import KeyRecord, KeyRow, get_key

_LOCK: Final = "SELECT generation, run_id, status FROM idempotency_keys WHERE tenant = $1 AND key = $2 FOR UPDATE"
# Without a fingerprint any request may have it. Reports of the old generation are ignored from now on.
_NEXT: Final = """
    UPDATE idempotency_keys SET generation = $3, run_id = $4, status = 'processing', run_status = NULL, response = NULL,
        error = NULL, request_hash = CASE WHEN $5 THEN request_hash ELSE '' END, updated_at = now()
    WHERE tenant = $1 AND key = $2
"""


async def reset_key(pool: Pool, seen: KeyRow, *, actor: str, reason: str, forced: bool) -> KeyRecord:
    """Give a key, as it was read, its next generation: the next start with it creates a new run."""
    run_id = run_id_for_key(seen.tenant, seen.key, seen.generation + 1)
    async with transaction(pool, seen.tenant) as connection:
        row = await connection.fetchrow(_LOCK, seen.tenant, seen.key)
        if row is None:
            raise KeyNotFound(f"key {seen.key!r} of tenant {seen.tenant!r} is gone: nothing has to be reset")
        if (row["generation"], row["status"]) != (seen.generation, seen.status):
            raise KeyInUse(f"key {seen.key!r} has changed meanwhile ({row['status']}): look at it again")
        await connection.execute(_NEXT, seen.tenant, seen.key, seen.generation + 1, run_id, False)
        facts = {"key": seen.key, "generation": seen.generation, "run_id": seen.run_id, "status": seen.status}
        await write_run_entry(
            connection,
            RunEntry(
                action=Action.KEY_RESET,
                tenant=seen.tenant,
                run_id=seen.run_id,
                actor=actor,
                reason=reason,
                before=facts,
                after={"generation": seen.generation + 1, "run_id": run_id, "forced": forced},
            ),
        )
    record = await get_key(pool, seen.tenant, seen.key)
    if record is None:
        raise KeyNotFound(f"key {seen.key!r} of tenant {seen.tenant!r} is gone: nothing has to be reset")
    return record


async def follow_restart(connection: Connection, tenant: str, run_id: str) -> None:
    """Assign the key of a restarted run to the new run, if it still belongs to the old one."""
    row = await connection.fetchrow(
        """
        SELECT known.key, known.generation FROM idempotency_keys AS known JOIN runs AS run
            ON known.tenant = run.tenant AND known.key = run.idempotency_key AND known.run_id = run.run_id
        WHERE run.run_id = $1 FOR UPDATE OF known
        """,
        clean(run_id),
    )
    if row is not None:
        generation = row["generation"] + 1
        next_run = run_id_for_key(tenant, row["key"], generation)
        await connection.execute(_NEXT, tenant, row["key"], generation, next_run, True)
