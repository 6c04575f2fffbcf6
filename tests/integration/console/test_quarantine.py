"""What has no tenant is in quarantine: owners see it and say whose it is; nobody else learns that it is there."""

import uuid
from typing import Any

import asyncpg
import httpx
import pytest

from redrive import Redrive
from redrive.bridges.labels import labels_of
from redrive.postgres.tenancy import QUARANTINE, Pool, transaction
from redrive.store.events.dead import DeadEventStatus, get_dead_event
from redrive.store.messages.dead import MessageKind, find_dead
from tests.integration.console.broker_rows import bury, event_body, give_up

API = "/api/v1"
SECRET = b"of nobody knows whom"
HTML = {"accept": "text/html"}


def command(**changes: Any) -> dict[str, Any]:
    return {"reason": "a test", "request_id": uuid.uuid4().hex} | changes


async def test_only_owners_see_dead_events_in_quarantine(
    owner: httpx.AsyncClient, admin: httpx.AsyncClient, pool: Pool
) -> None:
    """An admin, of `default` or any other tenant, finds nothing: not in lists, not by the id, not by asking for it."""
    dead_id, stream = await bury(pool, QUARANTINE, SECRET), uuid.uuid4().hex
    mine = await bury(pool, QUARANTINE, SECRET, stream=stream)
    listed = (await owner.get(f"{API}/dead-events", params={"quarantined": True, "stream": stream})).json()
    assert [(row["id"], row["tenant"]) for row in listed["dead_events"]] == [(mine, QUARANTINE)]
    shown = (await owner.get(f"{API}/dead-events/{dead_id}")).json()
    assert shown["payload"]["text"] == SECRET.decode()
    assert (await admin.get(f"{API}/dead-events", params={"stream": stream})).json()["dead_events"] == []
    assert (await admin.get(f"{API}/dead-events/{dead_id}")).status_code == 404
    for verb in ("replay", "discard"):
        answer = await admin.post(f"{API}/dead-events/{dead_id}/{verb}", json=command())
        assert answer.status_code == 404
    asked = await admin.get(f"{API}/dead-events", params={"quarantined": True})
    assert (asked.status_code, asked.json()["code"]) == (403, "owners_only")
    named = await owner.get(f"{API}/dead-events", params={"tenant": QUARANTINE})
    assert named.status_code == 422


async def test_owner_names_the_tenant_of_a_dead_event_and_replays_it(
    owner: httpx.AsyncClient, admin: httpx.AsyncClient, pool: Pool, tenant: str, lab: Redrive
) -> None:
    """Without a tenant the replay is refused; with one the event is that tenant's, which sees it from then on."""
    dead_id = await bury(pool, QUARANTINE, event_body(uuid.uuid4().hex))
    path = f"{API}/dead-events/{dead_id}/replay"
    refused = await owner.post(path, json=command())
    assert refused.status_code == 400
    assert "assign_to" in refused.json()["detail"]
    for wrong in ("No Name", QUARANTINE, "*"):
        assert (await owner.post(path, json=command(assign_to=wrong))).status_code == 422
    wanted = command(assign_to=tenant)
    done = await owner.post(path, json=wanted)
    assert (done.status_code, done.json()["status"]) == (202, "replayed")
    assert (await owner.post(path, json=wanted)).json() == done.json()
    seen = (await admin.get(f"{API}/dead-events/{dead_id}")).json()
    assert (seen["tenant"], seen["status"]) == (tenant, "replayed")
    assert "assigned" in [line["action"] for line in seen["audit"]]
    other = await owner.post(path, json=command(assign_to="another"))
    assert other.status_code == 400
    assert "stays there" in other.json()["detail"]


async def test_owner_discards_a_dead_event_in_quarantine(owner: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """What is nobody's can be given up, and then not be assigned any more."""
    dead_id = await bury(pool, QUARANTINE, SECRET)
    assert (await owner.post(f"{API}/dead-events/{dead_id}/discard", json=command())).status_code == 202
    late = await owner.post(f"{API}/dead-events/{dead_id}/replay", json=command(assign_to=tenant))
    assert late.status_code == 409
    record = await get_dead_event(pool, None, dead_id)
    assert record
    assert (record.tenant, record.status) == (QUARANTINE, DeadEventStatus.DISCARDED)


async def test_dead_messages_have_the_same_quarantine(
    owner: httpx.AsyncClient, admin: httpx.AsyncClient, pool: Pool, tenant: str
) -> None:
    """A message that could not be read is seen by owners, assigned, replayed, and then its tenant's."""
    message = await give_up(pool, QUARANTINE, kind=MessageKind.MALFORMED, original_payload=SECRET)
    path = f"{API}/dead-messages/{message}"
    assert (await admin.get(path)).status_code == 404
    assert (await admin.get(f"{API}/dead-messages", params={"quarantined": True})).status_code == 403
    assert (await owner.get(path)).json()["tenant"] == QUARANTINE
    assert (await owner.get(path, params={"quarantined": True})).status_code == 200
    assert (await owner.post(f"{path}/replay", json=command())).status_code == 400
    done = await owner.post(f"{path}/replay", json=command(assign_to=tenant))
    assert (done.status_code, done.json()["status"]) == (202, "replaying")
    assert (await admin.get(path)).json()["tenant"] == tenant
    twin = await give_up(pool, QUARANTINE, message_id=uuid.UUID(message))
    again = await owner.post(
        f"{API}/dead-messages/{twin}/replay", json=command(assign_to=tenant), params={"quarantined": True}
    )
    assert again.status_code == 400
    assert "has the same message" in again.json()["detail"]


async def test_message_of_which_the_beginning_is_kept_is_not_replayed(
    owner: httpx.AsyncClient, pool: Pool, tenant: str
) -> None:
    """Half a message is not sent again: the refusal says how large it was."""
    message = await give_up(pool, tenant, kind=MessageKind.MALFORMED, full_size=50_000_000)
    answer = await owner.post(f"{API}/dead-messages/{message}/replay", json=command())
    assert answer.status_code == 409
    assert "50000000 bytes" in answer.json()["detail"]


async def test_pages_show_the_quarantine_to_owners(
    owner: httpx.AsyncClient, admin: httpx.AsyncClient, pool: Pool
) -> None:
    """An owner has the view, and a form that asks for the tenant; an admin has neither, and is refused."""
    dead_id = await bury(pool, QUARANTINE, SECRET)
    message = await give_up(pool, QUARANTINE, kind=MessageKind.MALFORMED)
    for path in ("/events?view=quarantine", "/messages?quarantined=true"):
        page = await owner.get(path, headers=HTML)
        assert page.status_code == 200
        assert "Quarantine" in page.text
        assert (await admin.get(path, headers=HTML)).status_code == 403
    assert dead_id in (await owner.get("/events?view=quarantine", headers=HTML)).text
    assert f"{message}?quarantined=true" in (await owner.get("/messages?quarantined=true", headers=HTML)).text
    for path in (f"/events/dead/{dead_id}", f"/messages/{message}?quarantined=true"):
        page = await owner.get(path, headers=HTML)
        assert page.status_code == 200
        assert 'name="assign_to"' in page.text
        assert "Only owners see it" in page.text
    for path in ("/events", "/messages"):
        assert "Quarantine" not in (await admin.get(path, headers=HTML)).text


async def test_database_lets_no_tenant_near_the_quarantine(pool: Pool, access: Pool, tenant: str) -> None:
    """Row level security hides it, no token can be of it, and only out of it a record can be assigned."""
    dead_id = await bury(pool, QUARANTINE, SECRET)
    message = await give_up(pool, QUARANTINE)
    assert await get_dead_event(pool, tenant, dead_id) is None
    assert await find_dead(pool, tenant, uuid.UUID(message)) == []
    assign = "SELECT assign_dead_event($1, $2, 'ada', 'why', 'id')"
    for scope, name in ((tenant, tenant), (QUARANTINE, "*"), (QUARANTINE, QUARANTINE), (QUARANTINE, "a\n")):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with transaction(pool, scope) as connection:
                await connection.execute(assign, dead_id, name)
    async with transaction(access, QUARANTINE) as connection:
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute(
                "INSERT INTO api_tokens (id, tenant, name, role, rights, hash, created_by, expires_at, person) VALUES "
                "('t', $1, 't', 'admin', '{read}', '\\x00', 'ada', now() + interval '1 hour', 'member:ada')",
                QUARANTINE,
            )
    assert labels_of(b'{"tenant": "(quarantine)"}').tenant is None
