"""Bulk operations over HTTP: planned, started, followed live, stopped; of the caller's tenant alone."""

import asyncio
from typing import Any

import httpx
from fastapi import FastAPI

from tests.conftest import eventually
from tests.integration.console.conftest import MakeToken, client_of
from tests.integration.console.test_events import events_of
from tests.integration.dead_letters.lab import Case
from tests.integration.store.letters import new_tenant

BULK = "/api/v1/bulk"
REPLAY = {"verb": "replay", "selection": {"step": "second"}}


async def until_bulk(client: httpx.AsyncClient, bulk_id: str, status: str) -> dict[str, Any]:
    """Wait until a bulk operation has a status."""

    async def has() -> dict[str, Any] | None:
        view: dict[str, Any] = (await client.get(f"{BULK}/{bulk_id}")).json()
        return view if view["status"] == status else None

    return await eventually(has, within=60)


async def test_a_group_is_replayed_and_watched(live: str, make_token: MakeToken, case: Case) -> None:
    """Plan, start, live progress to the end, one line for each item. The hash of another plan is refused."""
    await case.park("second")
    await case.park("second")
    case.mend()
    headers = {"Authorization": f"Bearer {await make_token()}"}
    async with httpx.AsyncClient(base_url=live, headers=headers, timeout=60) as admin:
        stream = events_of(admin)
        assert (await anext(stream))[0] == "resync"
        plan = (await admin.post(f"{BULK}/plan", json=REPLAY)).json()
        assert (plan["count"], [step["name"] for step in plan["groups"][0]["run_again"]]) == (2, ["second"])
        command = {"command": plan["command"], "plan_hash": plan["hash"], "reason": "the provider is back"}
        stale = await admin.post(BULK, json=command | {"plan_hash": "of yesterday"})
        assert (stale.status_code, stale.json()["code"]) == (409, "PLAN_CHANGED")
        started = await admin.post(BULK, json=command | {"request_id": case.name})
        assert started.status_code == 202
        bulk_id = started.json()["bulk_id"]
        assert (await admin.post(BULK, json=command | {"request_id": case.name})).json()["bulk_id"] == bulk_id
        assert (await until_bulk(admin, bulk_id, "DONE"))["progress"]["applied"] == 2
        items = (await admin.get(f"{BULK}/{bulk_id}/items")).json()["items"]
        assert [item["status"] for item in items] == ["APPLIED", "APPLIED"]
        assert [view["id"] for view in (await admin.get(BULK)).json()["bulk"]] == [bulk_id]
        async with asyncio.timeout(60):
            last = [data async for name, _, data in _until_done(stream) if name == "bulk"][-1]
        assert (last["id"], last["progress"]["applied"]) == (bulk_id, 2)


async def _until_done(stream: Any) -> Any:
    async for event in stream:
        yield event
        if event[0] == "bulk" and event[2]["status"] == "DONE":
            await stream.aclose()
            return


async def test_a_bulk_operation_is_paused_and_stopped(admin: httpx.AsyncClient, case: Case) -> None:
    """Paused before its second item, resumed, paused and stopped: the rest is skipped, and says so."""
    for _ in range(3):
        await case.park("second")
    plan = (await admin.post(f"{BULK}/plan", json=REPLAY | {"canary": 1, "stop_percent": 100, "rate": 0.01})).json()
    command = {"command": plan["command"], "plan_hash": plan["hash"], "reason": "slowly"}
    bulk_id = (await admin.post(BULK, json=command)).json()["bulk_id"]
    why = {"reason": "the provider is slow"}
    assert (await admin.post(f"{BULK}/{bulk_id}/pause", json=why)).json()["status"] == "PAUSED"
    assert (await admin.post(f"{BULK}/{bulk_id}/resume", json=why)).json()["status"] == "RUNNING"
    assert (await admin.post(f"{BULK}/{bulk_id}/stop", json=why)).status_code == 202
    progress = (await until_bulk(admin, bulk_id, "STOPPED"))["progress"]
    assert progress["skipped"] >= 2
    assert progress["total"] == progress["skipped"] + progress["failed"] + progress["applied"] == 3


async def test_a_foreign_admin_cannot_touch_it(
    app: FastAPI, admin: httpx.AsyncClient, make_token: MakeToken, case: Case
) -> None:
    """Neither seen nor paused, resumed or stopped; and a plan of theirs has none of these letters."""
    await case.park("second")
    plan = (await admin.post(f"{BULK}/plan", json=REPLAY | {"rate": 0.01})).json()
    command = {"command": plan["command"], "plan_hash": plan["hash"], "reason": "ours"}
    bulk_id = (await admin.post(BULK, json=command)).json()["bulk_id"]
    async with client_of(app, await make_token(tenant=new_tenant())) as foreign:
        assert (await foreign.get(BULK)).json() == {"bulk": []}
        assert (await foreign.get(f"{BULK}/{bulk_id}")).status_code == 404
        assert (await foreign.get(f"{BULK}/{bulk_id}/items")).status_code == 404
        for verb in ("pause", "resume", "stop"):
            assert (await foreign.post(f"{BULK}/{bulk_id}/{verb}", json={"reason": "mischief"})).status_code == 404
        theirs = {"verb": "replay", "selection": {"letters": [case.letter("second").workflow_id]}}
        for path, body in ((f"{BULK}/plan", theirs), (BULK, command)):
            refused = await foreign.post(path, json=body)
            assert (refused.status_code, "no open dead letter" in refused.json()["detail"]) == (400, True)
        named = await foreign.post(f"{BULK}/plan", json=REPLAY | {"tenant": case.tenant})
        assert (named.status_code, named.json()["places"][0]["place"]) == (422, "body.tenant")
    await admin.post(f"{BULK}/{bulk_id}/stop", json={"reason": "over"})
