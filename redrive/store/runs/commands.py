"""The record of a `continue`: a line in the audit log and the run's row. It changes no dead letter."""

from redrive.dead_letters import Answer, Continue, LetterId
from redrive.postgres.tenancy import Pool, transaction
from redrive.postgres.text import clean
from redrive.store.audit.log import Action, Entry, RunEntry, write, write_run_entry


async def put_continue(pool: Pool, letter: LetterId, command: Continue, answer: Answer) -> None:
    """Record a `continue` and its answer, once."""
    async with transaction(pool, letter.tenant, alone_with=letter.workflow_id) as connection:
        known = await connection.fetchval(
            """
            SELECT true FROM audit_log
            WHERE tenant = $1 AND dead_letter = $2 AND request_id = $3
            """,
            letter.tenant,
            letter.workflow_id,
            clean(command.request_id),
        )
        if known:
            return
        entry = Entry(
            action=Action.CONTINUED if answer.accepted else Action.REFUSED,
            letter=letter,
            actor=command.requested_by,
            reason=command.reason,
            request_id=command.request_id,
            after={"answer": answer.model_dump(mode="json"), "command": {"verb": command.verb}},
        )
        await write(connection, entry)
        if answer.accepted:
            await connection.execute(
                "UPDATE runs SET status = 'RUNNING', updated_at = now() WHERE run_id = $1 AND status = 'PARTIAL'",
                letter.run_id,
            )


async def put_cancel(pool: Pool, *, tenant: str, run_id: str, actor: str, reason: str) -> None:
    """Record that somebody asked a run to stop, and why."""
    entry = RunEntry(action=Action.CANCEL_REQUESTED, tenant=tenant, run_id=run_id, actor=actor, reason=reason)
    async with transaction(pool, tenant) as connection:
        await write_run_entry(connection, entry)
