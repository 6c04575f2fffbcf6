"""The page of the audit log, as the server writes it."""

import httpx

from redrive.dead_letters import LetterId
from redrive.postgres.tenancy import Pool, transaction
from redrive.store.audit import Action, Entry, EventRef, put_schedule_entry, write
from redrive.store.runs import put_start_requested


async def test_each_line_leads_to_what_it_is_about(admin: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """Dead letters, events, dead events and dead messages have pages; what has none is named alone."""
    letter = LetterId(tenant=tenant, run_id="run-a", step="pay")
    others = ("event-1", "dead-event-2", "message-3", "something-4")
    about: list[LetterId | EventRef] = [letter, *(EventRef(tenant, each) for each in others)]
    async with transaction(pool, tenant) as connection:
        for each in about:
            await write(connection, Entry(action=Action.PROJECTORS_REPLAYED, letter=each))
    page = (await admin.get("/audit?all=1")).text
    assert f'href="/dead-letters/{letter.workflow_id}"' in page
    for place in ("/events/event-1", "/events/dead/dead-event-2", "/messages/message-3"):
        assert f'href="{place}"' in page
    assert "something-4" in page
    assert "/something-4" not in page


async def test_the_page_leaves_out_what_the_system_recorded(admin: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """By default only what people did; filters by who, what and about what; a filter in which nothing fits says so."""
    letter = LetterId(tenant=tenant, run_id="run-a", step="pay")
    other = LetterId(tenant=tenant, run_id="run-b", step="pay")
    async with transaction(pool, tenant) as connection:
        await write(connection, Entry(action=Action.DEAD_LETTERED, letter=letter, reason="by itself"))
        await write(connection, Entry(action=Action.RESOLVED, letter=letter, actor="Ann", reason="by hand"))
        await write(connection, Entry(action=Action.DISCARDED, letter=other, actor="ben", reason="not needed"))

    async def reasons(query: str) -> set[str]:
        page = (await admin.get(f"/audit{query}")).text
        return {reason for reason in ("by itself", "by hand", "not needed") if reason in page}

    assert await reasons("") == {"by hand", "not needed"}
    assert await reasons("?all=1") == {"by itself", "by hand", "not needed"}
    assert await reasons("?actor=ann") == {"by hand"}
    assert await reasons("?about=run-b") == {"not needed"}
    assert await reasons("?action=dead_lettered") == {"by itself"}
    assert await reasons("?since=1h&action=resolved") == {"by hand"}
    assert await reasons(f"?dead_letter={letter.workflow_id}") == {"by itself", "by hand"}
    nothing = (await admin.get("/audit?actor=nobody")).text
    assert "No line of the audit log matches" in nothing
    assert "empty well" not in nothing
    lines = (await admin.get("/api/v1/audit", params={"by_people": True, "about": "run-a"})).json()["lines"]
    assert [line["actor"] for line in lines] == ["Ann"]


async def test_schedules_and_bulk_operations_are_named(admin: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """What has no dead letter and no run is named by its kind, and leads to its page; a run start by its pipeline."""
    bulk_id, who = "bulk-6e66dd01a1e2177540731697934191a0", {"actor": "ann", "reason": "maintenance"}
    await put_schedule_entry(pool, Action.SCHEDULE_PAUSE_REQUESTED, tenant=tenant, name="nightly", **who)
    await put_start_requested(pool, tenant=tenant, run_id=None, **who, facts={"pipeline": "hello"})
    async with transaction(pool, tenant) as connection:
        await connection.execute(
            "INSERT INTO audit_log (tenant, action, actor, reason, request_id) VALUES ($1, $2, 'ann', 'late', $3)",
            tenant,
            Action.BULK_STOPPED.value,
            bulk_id,
        )
    page = " ".join((await admin.get("/audit")).text.split())
    assert '<a data-open class="open" href="/schedules/nightly">schedule <span class="mono dim">nightly</span>' in page
    assert f'href="/bulk/{bulk_id}">bulk operation <span class="mono dim">…{bulk_id[-8:]}</span>' in page
    assert 'pipeline <span class="mono">hello</span>' in page
    lines = (await admin.get("/api/v1/audit")).json()["lines"]
    assert [line["subject"] for line in lines[:3]] == [
        {"kind": "bulk operation", "id": bulk_id},
        {"kind": "pipeline", "id": "hello"},
        {"kind": "schedule", "id": "nightly"},
    ]


async def test_what_is_done_with_tokens_can_be_filtered(admin: httpx.AsyncClient) -> None:
    """The database itself writes these lines; the page and the API know their actions as well."""
    made = (await admin.post("/api/v1/tokens", json={"name": "till 7", "role": "viewer"})).json()["id"]
    await admin.post(f"/api/v1/tokens/{made}/revoke")
    for action in ("token_created", "token_revoked"):
        lines = (await admin.get("/api/v1/audit", params={"action": action})).json()["lines"]
        assert made in {line["subject"]["id"] for line in lines}, action
        page = (await admin.get(f"/audit?action={action}")).text
        assert "token <span" in page, action
        assert f"<option selected>{action}<" in page, action
