"""Schedules over HTTP and on the pages: created, listed, paused, triggered, deleted; each with who and why."""

import httpx
import pytest
from fastapi import FastAPI

from redrive.access import Role
from redrive.console.api import schedules as schedule_routes
from tests.conftest import eventually
from tests.integration.console.conftest import MakeToken, client_of
from tests.integration.dead_letters.lab import Case

SCHEDULES = "/api/v1/schedules"
WHY = {"reason": "the nightly report"}


async def test_a_schedule_is_created_used_and_deleted(
    app: FastAPI, admin: httpx.AsyncClient, make_token: MakeToken, case: Case
) -> None:
    """Its pages show it, with the payload redacted and only for those who may; a trigger gives the run's id."""
    payload = {"case": case.name, "password": "hunter2-hunter2"}
    wanted = WHY | {"name": "nightly", "pipeline": "three", "payload": payload, "cron": ["0 3 * * *"]}
    wanted |= {"labels": {"mission_id": "42"}}
    created = await admin.post(SCHEDULES, json=wanted)
    assert (created.status_code, created.json()["cron"]) == (201, ["0 3 * * *"])
    assert (await admin.post(SCHEDULES, json=wanted)).status_code == 409
    assert (await admin.post(SCHEDULES, json=wanted | {"name": "never", "cron": []})).status_code == 400
    reserved = await admin.post(SCHEDULES, json=wanted | {"name": "never", "labels": {"tenant_id": "x"}})
    assert (reserved.status_code, "labels.tenant_id" in reserved.json()["detail"]) == (400, True)
    page = (await admin.get("/schedules/nightly")).text
    assert case.name in page
    assert 'href="/runs?label=mission_id%3D42"' in page
    assert "hunter2" not in page
    async with client_of(app, await make_token(Role.VIEWER)) as viewer:
        assert case.name not in (await viewer.get("/schedules/nightly")).text

    async def listed() -> bool:
        return "/schedules/nightly" in (await admin.get("/schedules")).text

    await eventually(listed)
    started = (await admin.post(f"{SCHEDULES}/nightly/trigger", json=WHY)).json()
    assert started["run_id"]
    assert (await admin.post(f"{SCHEDULES}/nightly/pause", json=WHY)).status_code == 202
    assert (await admin.get(f"{SCHEDULES}/nightly")).json()["paused"]
    assert (await admin.post(f"{SCHEDULES}/nightly/resume", json=WHY)).status_code == 202
    assert (await admin.post(f"{SCHEDULES}/nightly/delete", json=WHY)).status_code == 202
    assert (await admin.get(f"{SCHEDULES}/nightly")).status_code == 404
    refused = await admin.post(SCHEDULES, json=wanted | {"name": "wrong", "cron": ["noon"]})
    assert (refused.status_code, "5-7 fields" in refused.text) == (400, True)
    trail = [row for row in await case.audit() if row["action"].startswith("schedule_")]
    verbs = ("create", "trigger", "pause", "resume", "delete", "create")
    assert [row["action"] for row in trail] == [
        *(f"schedule_{verb}_requested" for verb in verbs),
        "schedule_create_refused",
    ]
    assert "5-7 fields" in str(trail[-1]["after"])


async def test_a_list_that_is_cut_says_so(
    monkeypatch: pytest.MonkeyPatch, admin: httpx.AsyncClient, case: Case
) -> None:
    """In the API and on the page; a list that has them all says nothing."""
    wanted = WHY | {"pipeline": "three", "payload": {"case": case.name}, "cron": ["0 3 * * *"]}
    for name in ("one", "two"):
        assert (await admin.post(SCHEDULES, json=wanted | {"name": name})).status_code == 201

    async def listed() -> bool:
        return len((await admin.get(SCHEDULES)).json()["schedules"]) == 2

    await eventually(listed)
    assert not (await admin.get(SCHEDULES)).json()["more"]
    assert "There are others" not in (await admin.get("/schedules")).text
    monkeypatch.setattr(schedule_routes, "MOST_SCHEDULES", 1)
    cut = (await admin.get(SCHEDULES)).json()
    assert (len(cut["schedules"]), cut["more"]) == (1, True)
    assert "There are others" in (await admin.get("/schedules")).text
    for name in ("one", "two"):
        assert (await admin.post(f"{SCHEDULES}/{name}/delete", json=WHY)).status_code == 202
