"""Runs over HTTP: started once per key, looked at, canceled."""

import httpx

from redrive.contracts import RunStatus
from tests.conftest import eventually
from tests.integration.dead_letters.lab import Case

RUNS = "/api/v1/runs"


def order_of(case: Case, **changes: object) -> dict[str, object]:
    """Return a start of the case's run."""
    return {"pipeline": "three", "payload": {"case": case.name, "n": 1} | changes}


async def test_a_key_starts_one_run(admin: httpx.AsyncClient, case: Case) -> None:
    """The first start answers 201 with its address, the second 200 and says that it is the first one's answer."""
    key = {"Idempotency-Key": f"order:{case.name}"}
    first = await admin.post(RUNS, json=order_of(case), headers=key)
    second = await admin.post(RUNS, json=order_of(case), headers=key)
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.headers["Idempotent-Replayed"] == "true"
    assert first.json()["run_id"] == second.json()["run_id"]
    assert first.headers["Location"] == f"{RUNS}/{first.json()['run_id']}"
    case.run_id = first.json()["run_id"]
    view = await case.until(RunStatus.SUCCESS)
    assert view.tenant == case.tenant


async def test_a_key_answers_with_what_came_of_its_run(admin: httpx.AsyncClient, case: Case) -> None:
    """Once the run has ended its key gives the output; with another payload the key is refused, and starts nothing."""
    key = {"Idempotency-Key": f"order:{case.name}"}
    case.run_id = (await admin.post(RUNS, json=order_of(case), headers=key)).json()["run_id"]
    await case.until(RunStatus.SUCCESS)
    again = await admin.post(RUNS, json=order_of(case), headers=key)
    other = await admin.post(RUNS, json=order_of(case, n=2), headers=key)
    assert (again.status_code, again.json()["status"]) == (200, "SUCCESS")
    assert again.json()["response"] == (await case.redrive.result(case.run_id)).output
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")


async def test_a_bad_key_is_named(admin: httpx.AsyncClient, case: Case) -> None:
    """A key with a blank in it gives 400, and the header's name."""
    answer = await admin.post(RUNS, json=order_of(case), headers={"Idempotency-Key": "two words"})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_key")
    assert answer.json()["places"][0]["place"] == "header.Idempotency-Key"


async def test_what_no_worker_knows_is_refused(admin: httpx.AsyncClient, case: Case) -> None:
    """An unknown pipeline gives 422 with a code of its own; a payload that does not fit is named by its field."""
    unknown = await admin.post(RUNS, json={"pipeline": "nothing-like-it"})
    assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_pipeline")
    misfit = await admin.post(RUNS, json={"pipeline": "three", "payload": {"case": 5}})
    assert misfit.status_code == 400
    assert "case" in misfit.json()["detail"]


async def test_lists_runs_page_by_page(admin: httpx.AsyncClient, case: Case) -> None:
    """Temporal's list, in pages, of the tenant alone; a cursor of another list is refused."""
    started = {(await admin.post(RUNS, json=order_of(case))).json()["run_id"] for _ in range(3)}

    async def listed() -> set[str] | None:
        rows = (await admin.get(RUNS)).json()["runs"]
        return {row["run_id"] for row in rows} if len(rows) == 3 else None

    assert await eventually(listed) == started
    page = (await admin.get(RUNS, params={"limit": 2})).json()
    rest = (await admin.get(RUNS, params={"limit": 2, "cursor": page["cursor"]})).json()
    assert {row["run_id"] for row in page["runs"] + rest["runs"]} == started
    other = await admin.get(RUNS, params={"pipeline": "slow", "cursor": page["cursor"]})
    assert (other.status_code, other.json()["code"]) == (400, "invalid_input")


async def test_cancel_stops_a_parked_run(admin: httpx.AsyncClient, case: Case) -> None:
    """A parked run is canceled over HTTP; its dead letter is closed with it."""
    await case.park("second")
    answer = await admin.post(f"{RUNS}/{case.run_id}/cancel", json={"reason": "ordered twice"})
    assert answer.status_code == 202
    await case.until(RunStatus.CANCELED)
    asked = [row for row in await case.audit() if row["action"] == "cancel_requested"]
    assert [(row["run_id"], row["reason"]) for row in asked] == [(case.run_id, "ordered twice")]


async def test_modules_lists_what_workers_know(admin: httpx.AsyncClient, case: Case) -> None:
    """The catalog names the pipelines of the workers."""
    catalog = (await admin.get("/api/v1/modules")).json()
    assert {"three", "slow"} <= {pipeline["name"] for pipeline in catalog["pipelines"]}
