"""The page of the audit log, as the server writes it."""

import httpx

from redrive.dead_letters import LetterId
from redrive.postgres.tenancy import Pool, transaction
from redrive.store.audit.log import Action, Entry, EventRef, write


async def test_each_line_leads_to_what_it_is_about(admin: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """Dead letters, events, dead events and dead messages have pages; what has none is named alone."""
    letter = LetterId(tenant=tenant, run_id="run-a", step="pay")
    others = ("event-1", "dead-event-2", "message-3", "something-4")
    about: list[LetterId | EventRef] = [letter, *(EventRef(tenant, each) for each in others)]
    async with transaction(pool, tenant) as connection:
        for each in about:
            await write(connection, Entry(action=Action.PROJECTORS_REPLAYED, letter=each))
    page = (await admin.get("/audit")).text
    assert f'href="/dead-letters/{letter.workflow_id}"' in page
    for place in ("/events/event-1", "/events/dead/dead-event-2", "/messages/message-3"):
        assert f'href="{place}"' in page
    assert "something-4" in page
    assert "/something-4" not in page
