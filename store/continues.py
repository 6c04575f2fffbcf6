"""What a `continue` leaves: a line in the audit log and the run's row. It changes no dead letter."""

from redrive.dead_letters import Answer, Continue, LetterId
from store.audit import Action, Entry, write
from store.tenancy import Pool, transaction
from store.text import clean


async def put_continue(pool: Pool, letter: LetterId, order: Continue, answer: Answer) -> None:
    """Record a `continue` and its answer, once."""
    async with transaction(pool, letter.tenant, alone_with=letter.workflow_id) as connection:
        known = await connection.fetchval(
            """
            SELECT true FROM audit_log
            WHERE tenant = $1 AND dead_letter = $2 AND request_id = $3
            """,
            letter.tenant,
            letter.workflow_id,
            clean(order.request_id),
        )
        if known:
            return
        entry = Entry(
            action=Action.CONTINUED if answer.accepted else Action.REFUSED,
            letter=letter,
            actor=order.requested_by,
            reason=order.reason,
            request_id=order.request_id,
            after={"answer": answer.model_dump(mode="json"), "order": {"verb": order.verb}},
        )
        await write(connection, entry)
        if answer.accepted:
            await connection.execute(
                "UPDATE runs SET status = 'RUNNING', updated_at = now() WHERE run_id = $1 AND status = 'PARTIAL'",
                letter.run_id,
            )
