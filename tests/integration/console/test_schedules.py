"""Schedules over HTTP and on the pages: created, listed, paused, triggered, deleted; each with who and why."""

import httpx
from fastapi import FastAPI

from redrive.access import Role
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
    created = await admin.post(SCHEDULES, json=wanted)
    assert (created.status_code, created.json()["cron"]) == (201, ["0 3 * * *"])
    assert (await admin.post(SCHEDULES, json=wanted)).status_code == 409
    assert (await admin.post(SCHEDULES, json=wanted | {"name": "never", "cron": []})).status_code == 400
    page = (await admin.get("/schedules/nightly")).text
    assert case.name in page
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
    actions = [row["action"] for row in await case.audit() if row["action"].startswith("schedule_")]
    assert actions == [f"schedule_{verb}_requested" for verb in ("create", "trigger", "pause", "resume", "delete")]
