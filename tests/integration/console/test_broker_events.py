"""Events of Redis Streams over HTTP: those that could not become a run, and those that did. No Redis runs here."""

from typing import Any

import httpx
from fastapi import FastAPI

from redrive.access import Role
from redrive.postgres.tenancy import Pool
from redrive.store.events.dead import get_dead_event
from redrive.store.events.records import get_event
from tests.conftest import eventually
from tests.integration.console.broker_rows import TYPE, bury, event_body, store_event
from tests.integration.console.conftest import MakeToken, client_of
from tests.integration.dead_letters.lab import Case
from tests.integration.events.projectors import WRONG, Tables
from tests.integration.store.letters import new_tenant

DEAD = "/api/v1/dead-events"
STORED = "/api/v1/stored-events"
WHY = {"reason": "it is deployed now"}


async def _reached(client: httpx.AsyncClient, event_id: str, **wanted: str) -> dict[str, Any]:
    """Wait until the projectors of an event have these statuses; underscores stand for hyphens."""

    async def look() -> dict[str, Any] | None:
        found: dict[str, Any] = (await client.get(f"{STORED}/{event_id}")).json()
        statuses = {each["projector"].replace("-", "_"): each["status"] for each in found["projectors"]}
        return found if statuses == wanted else None

    return await eventually(look)


async def test_dead_event_becomes_a_run_of_its_tenant(
    admin: httpx.AsyncClient, case: Case, pool: Pool, tenant: str, tables: Tables
) -> None:
    """A replay makes the event and its run, once, in the tenant of the record, whoever is the tenant by default."""
    dead_id = await bury(pool, tenant, event_body(f"{tenant}:1"))
    seen = await admin.get(f"{DEAD}/{dead_id}")
    command = WHY | {"request_id": "one"}
    answer = await admin.post(f"{DEAD}/{dead_id}/replay", json=command, headers={"If-Match": seen.headers["ETag"]})
    assert (answer.status_code, answer.json()["status"]) == (202, "replayed"), answer.text
    again = await admin.post(f"{DEAD}/{dead_id}/replay", json=command, headers={"If-Match": seen.headers["ETag"]})
    assert (again.status_code, again.json()) == (202, answer.json())
    closed = (await admin.get(f"{DEAD}/{dead_id}")).json()
    assert [line["action"] for line in closed["audit"]] == [
        "event_dead_lettered",
        "event_replay_requested",
        "event_replay_outcome",
    ]
    assert closed["audit"][1]["actor"].startswith("test admin (tok_")
    event = await _reached(admin, closed["event_id"], qscore="succeeded", service_session="succeeded")
    assert (event["tenant"], event["run_id"]) == (tenant, closed["run_id"])
    listed = (await admin.get(STORED, params={"key": f"{tenant}:1"})).json()["events"]
    assert [row["id"] for row in listed] == [closed["event_id"]]


async def test_a_beginning_of_an_id_names_an_event(admin: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """As long as no other of the tenant has it; what is too short, or begins another's, names none."""
    dead_id = await bury(pool, tenant, event_body(f"{tenant}:1"))
    stored = (await store_event(pool, tenant)).id
    foreign = await bury(pool, new_tenant(), event_body("theirs"))
    assert (await admin.get(f"{DEAD}/{dead_id[:-6]}")).json()["id"] == dead_id
    assert (await admin.get(f"{STORED}/{stored[:-6]}")).json()["id"] == stored
    assert (await admin.get(f"{DEAD}/{foreign[:-6]}")).status_code == 404
    await bury(pool, tenant, event_body(f"{tenant}:2"))
    both = await admin.get(f"{DEAD}/dead-event-")
    assert (both.status_code, dead_id in both.json()["detail"]) == (400, True)


async def test_a_replay_that_fails_again_says_why(
    admin: httpx.AsyncClient, case: Case, pool: Pool, tenant: str
) -> None:
    """The record is pending again with the new reason; a second try is another try; then it is given up for good."""
    dead_id = await bury(pool, tenant, event_body("x", type="nobody.knows"))
    for tries in (2, 3):
        answer = await admin.post(f"{DEAD}/{dead_id}/replay", json=WHY | {"request_id": "same"})
        assert (answer.status_code, answer.json()["code"]) == (409, "command_refused")
        assert "nobody-knows" in answer.json()["detail"]
        record = (await admin.get(f"{DEAD}/{dead_id}")).json()
        assert (record["status"], record["attempts"]) == ("pending", tries)
    stale = await admin.post(f"{DEAD}/{dead_id}/ignore", json=WHY, headers={"If-Match": '"1"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "version_changed")
    given_up = await admin.post(f"{DEAD}/{dead_id}/ignore", json=WHY)
    assert (given_up.status_code, given_up.json()["status"]) == (202, "discarded")
    late = await admin.post(f"{DEAD}/{dead_id}/replay", json=WHY)
    assert (late.status_code, late.json()["code"]) == (409, "command_refused")
    pending = (await admin.get(DEAD, params={"status": "pending", "stream": "visits"})).json()
    assert pending["dead_events"] == []


async def test_an_event_never_crosses_to_another_tenant(
    admin: httpx.AsyncClient, case: Case, pool: Pool, tenant: str
) -> None:
    """A message that names another tenant than the one whose record it is stays where it is."""
    other = new_tenant()
    dead_id = await bury(pool, tenant, event_body("x", tenant=other))
    answer = await admin.post(f"{DEAD}/{dead_id}/replay", json=WHY)
    assert answer.status_code == 409
    assert other in answer.json()["detail"]
    record = await get_dead_event(pool, tenant, dead_id)
    assert record
    assert record.event_id is None


async def test_stored_event_is_started_and_its_projectors_replayed(
    admin: httpx.AsyncClient, case: Case, pool: Pool, tenant: str, tables: Tables
) -> None:
    """A run that never was starts; a failed projector goes on in it; one that succeeded runs again alone."""
    event = await store_event(pool, tenant, f"{tenant}:1")
    tables.broken["service-session"] = WRONG
    started = await admin.post(f"{STORED}/{event.id}/replay", json=WHY)
    assert started.status_code == 202, started.text
    await _reached(admin, event.id, qscore="succeeded", service_session="failed")
    failed = (await admin.get(STORED, params={"failed": True})).json()["events"]
    assert [row["id"] for row in failed] == [event.id]
    tables.broken.clear()
    command = WHY | {"request_id": "again"}
    again = await admin.post(f"{STORED}/{event.id}/replay", json=command)
    assert again.json()["replayed"][0]["run_id"] == event.run_id
    await _reached(admin, event.id, qscore="succeeded", service_session="succeeded")
    assert (await admin.post(f"{STORED}/{event.id}/replay", json=command)).json() == again.json()
    chosen = await admin.post(f"{STORED}/{event.id}/replay", json=WHY | {"projectors": ["qscore"]})
    (beside,) = chosen.json()["replayed"]
    assert (beside["projectors"], beside["run_id"] == event.run_id) == (["qscore"], False)
    story = (await admin.get(f"{STORED}/{event.id}")).json()
    assert [line["after"]["projectors"] for line in story["audit"]] == [[], ["qscore"]]
    assert all(line["actor"].startswith("test admin (tok_") for line in story["audit"])
    wrong = await admin.post(f"{STORED}/{event.id}/replay", json=WHY | {"projectors": ["nobody"]})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_input")


async def test_payloads_of_events_are_redacted_and_a_right(
    app: FastAPI, make_token: MakeToken, admin: httpx.AsyncClient, pool: Pool, tenant: str
) -> None:
    """A viewer sees that there is an event, not what it says; an admin sees it without its secrets."""
    event = await store_event(pool, tenant, password="hunter2")
    dead_id = await bury(pool, tenant, b'{"password": "hunter2"')
    async with client_of(app, await make_token(Role.VIEWER)) as viewer:
        for address in (f"{STORED}/{event.id}", f"{DEAD}/{dead_id}"):
            record = (await viewer.get(address)).json()
            assert (record["payload"], record["payload_hidden"]) == (None, True)
    stored = await admin.get(f"{STORED}/{event.id}")
    assert stored.json()["payload"] == {"user": "ada", "score": 3, "password": "[redacted]"}
    assert "hunter2" not in (await admin.get(f"{DEAD}/{dead_id}")).text
    kept = await get_event(pool, tenant, event.id)
    assert kept
    assert kept.payload["password"] == "hunter2"
    rows = (await admin.get(STORED, params={"type": TYPE, "limit": 1})).json()
    assert (len(rows["events"]), rows["cursor"]) == (1, None)


async def test_a_dead_event_is_edited_before_its_replay(
    admin: httpx.AsyncClient, case: Case, pool: Pool, tenant: str
) -> None:
    """The edit makes it a run; the record keeps what was received, and the log says that it was edited."""
    dead_id = await bury(pool, tenant, event_body(f"{tenant}:e", type="nobody.knows"))
    page = (await admin.get(f"/events/dead/{dead_id}")).text
    assert "Edit the message" in page
    edited = event_body(f"{tenant}:e").decode()
    plan = (await admin.post(f"/events/dead/{dead_id}/plan", data={"edited": edited})).text
    assert "Changes <code>type</code>" in plan
    answer = await admin.post(f"{DEAD}/{dead_id}/replay", json=WHY | {"message_patch": {"type": TYPE}})
    assert (answer.status_code, answer.json()["status"]) == (202, "replayed"), answer.text
    closed = (await admin.get(f"{DEAD}/{dead_id}")).json()
    assert closed["audit"][1]["after"]["edited"] is True
    assert "nobody.knows" in closed["payload"]["text"]
    await _reached(admin, closed["event_id"], qscore="succeeded", service_session="succeeded")


async def test_a_message_that_is_no_json_is_written_again(
    admin: httpx.AsyncClient, case: Case, pool: Pool, tenant: str
) -> None:
    """It has no fields to edit: an edit of fields is refused, and a whole message takes its place."""
    dead_id = await bury(pool, tenant, b"{not json")
    refused = await admin.post(f"{DEAD}/{dead_id}/replay", json=WHY | {"message_patch": {"type": TYPE}})
    assert (refused.status_code, refused.json()["code"]) == (409, "command_refused")
    assert "not a JSON object" in refused.json()["detail"]
    whole = event_body(f"{tenant}:w").decode()
    answer = await admin.post(f"{DEAD}/{dead_id}/replay", json=WHY | {"message": whole})
    assert (answer.status_code, answer.json()["status"]) == (202, "replayed"), answer.text
