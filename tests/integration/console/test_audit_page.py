"""The page of the audit log, as the server writes it."""

import httpx

from redrive.dead_letters import LetterId
from store.audit import Action, Entry, EventRef, write
from store.tenancy import Pool, transaction


async def test_each_line_leads_to_what_it_is_about(admin: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """A dead letter has a page, an event's run has one, and a dead event is named alone."""
    letter = LetterId(tenant=tenant, run_id="run-a", step="pay")
    about: list[LetterId | EventRef] = [letter, EventRef(tenant, "event-1", "run-b"), EventRef(tenant, "dead-2")]
    async with transaction(pool, tenant) as connection:
        for each in about:
            await write(connection, Entry(action=Action.PROJECTORS_REPLAYED, letter=each))
    page = (await admin.get("/audit")).text
    assert f'href="/dead-letters/{letter.workflow_id}"' in page
    assert 'href="/runs/run-b"' in page
    assert "dead-2" in page
    assert "/dead-letters/event-1" not in page
    assert "/dead-letters/dead-2" not in page
