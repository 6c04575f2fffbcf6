"""Retries in flight, over HTTP and as pages: of the tenant alone, while a step really waits."""

from datetime import UTC, datetime, timedelta

import httpx

from redrive.contracts import RunStatus
from redrive.postgres.tenancy import Pool
from redrive.store.runs import put_retrying
from tests.conftest import eventually
from tests.integration.dead_letters.lab import Case
from tests.integration.store.letters import new_tenant
from tests.integration.store.retrying import new_retrying

RETRYING = "/api/v1/retrying"
KEPT = timedelta(minutes=1)


async def test_a_waiting_step_is_listed_on_every_page_that_says_so(admin: httpx.AsyncClient, case: Case) -> None:
    """In the API, on the page of retries and on the overview; its run's page draws the step."""
    case.service.flaky.add("patient")
    case.service.error = "<b>the bank</b> is down"
    await case.start(pipeline="slow")

    async def listed() -> list[dict[str, object]]:
        rows: list[dict[str, object]] = (await admin.get(RETRYING)).json()["retrying"]
        return rows

    (row,) = await eventually(listed)
    assert (row["run_id"], row["step"], row["attempt"], row["max_attempts"]) == (case.run_id, "patient", 1, 2)
    for address in ("/retrying", "/"):
        page = (await admin.get(address)).text
        assert f'href="/runs/{case.run_id}"' in page
        assert "&lt;b&gt;the bank&lt;/b&gt; is down" in page
    page = (await admin.get(f"/runs/{case.run_id}")).text
    assert 'class="track"' in page
    assert "failed attempts: 1" in page
    await admin.post(f"/api/v1/runs/{case.run_id}/cancel", json={"reason": "seen"})
    await case.until(RunStatus.CANCELED)


async def test_pages_hold_every_retry_once(
    admin: httpx.AsyncClient, owner: httpx.AsyncClient, pool: Pool, tenant: str
) -> None:
    """Those that are due first come first, with how many there are; an owner may ask for one tenant."""
    now = datetime.now(UTC)
    for number in (3, 1, 2):
        due = now + timedelta(minutes=number)
        await put_retrying(pool, new_retrying(tenant, run_id=f"run-{number}-{tenant}", next_at=due), KEPT)
    await put_retrying(pool, new_retrying(new_tenant()), KEPT)
    first = (await admin.get(RETRYING, params={"limit": 2})).json()
    second = (await admin.get(RETRYING, params={"limit": 2, "cursor": first["cursor"]})).json()
    rows = first["retrying"] + second["retrying"]
    assert [row["run_id"] for row in rows] == [f"run-{number}-{tenant}" for number in (1, 2, 3)]
    assert (first["total"], second["cursor"]) == ({"count": 3, "exact": True}, None)
    one = (await owner.get(RETRYING, params={"tenant": tenant})).json()
    assert one["retrying"] == rows
    assert (await owner.get(RETRYING, params={"cursor": first["cursor"]})).status_code == 400
