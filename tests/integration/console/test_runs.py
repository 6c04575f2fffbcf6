"""Runs over HTTP: started once per key, looked at, canceled."""

import httpx
from fastapi import FastAPI

from redrive.access import Role
from redrive.contracts import RunStatus
from redrive.dead_letters import Verb
from tests.conftest import eventually
from tests.integration.console.conftest import MakeToken, client_of
from tests.integration.dead_letters.lab import Case
from tests.integration.store.letters import new_tenant

RUNS = "/api/v1/runs"
LETTERS = "/api/v1/workflow-dlq"


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


async def test_labels_are_started_with_and_filtered_by(admin: httpx.AsyncClient, case: Case) -> None:
    """A start takes labels; the lists of runs and of dead letters, and their pages, are filtered by them."""
    case.service.broken.add("second")
    labels = {"mission_id": f"m-{case.name}", "stage_id": "2"}
    case.run_id = (await admin.post(RUNS, json=order_of(case) | {"labels": labels})).json()["run_id"]
    await admin.post(RUNS, json=order_of(case) | {"labels": {"mission_id": "other"}})
    view = await case.until(RunStatus.DLQ_PENDING)
    assert view.labels == labels
    label = {"label": f"mission_id=m-{case.name},stage_id=2"}

    async def runs() -> list[str]:
        return [row["run_id"] for row in (await admin.get(RUNS, params=label)).json()["runs"]]

    async def letters() -> list[str]:
        return [row["run_id"] for row in (await admin.get(LETTERS, params=label)).json()["dead_letters"]]

    assert await eventually(runs) == await eventually(letters) == [case.run_id]
    [letter] = (await admin.get(LETTERS, params=label)).json()["dead_letters"]
    assert (await admin.get(f"{LETTERS}/{letter['id']}")).json()["labels"] == labels
    for page in (f"/runs/{case.run_id}", f"/dead-letters/{letter['id']}"):
        assert f'label=mission_id%3Dm-{case.name}"' in (await admin.get(page)).text
    for page in ("/runs", "/dead-letters?view=list"):
        text = (await admin.get(page, params=label | {"view": "list"})).text
        assert text.count(f'data-row="{case.run_id if page == "/runs" else letter["id"]}"') == 1
        assert text.count("data-row=") == 1
    assert f'name="label" value="{label["label"]}"' in (await admin.get("/bulk/new", params=label)).text
    for wrong in ("mission_id", "Mission=1", "a=b,"):
        answer = await admin.get(RUNS, params={"label": wrong})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), wrong
    refused = await admin.post(RUNS, json=order_of(case) | {"labels": {"run_id": "x"}})
    assert refused.status_code == 400
    assert "labels.run_id" in refused.json()["detail"]


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
    assert [pipeline["fast"] for pipeline in catalog["pipelines"] if pipeline["name"] == "brief"] == [["brief"]]


async def test_the_page_of_modules_shows_which_steps_are_fast(admin: httpx.AsyncClient, case: Case) -> None:
    """In their pipeline, and at the module that is fast in all of them."""
    page = (await admin.get("/modules")).text
    assert page.count(">fast</span>") == 2
    assert '<a href="#module-brief">brief</a> <span class="chip"' in page


async def test_a_step_shows_what_it_was_given_and_returned(
    app: FastAPI, admin: httpx.AsyncClient, make_token: MakeToken, case: Case
) -> None:
    """Input with edits and output, redacted, after the run has ended too; only for those who may see payloads."""
    await case.park("second", password="hunter2-hunter2")
    steps = f"{RUNS}/{case.run_id}/steps"
    first = (await admin.get(f"{steps}/first")).json()
    assert (first["is_done"], first["output"]["step"], first["edits"]) == (True, "first", [])
    case.mend()
    await case.command(Verb.REPLAY, step="second", input_patch={"n": 41})
    await case.until(RunStatus.SUCCESS)
    second = (await admin.get(f"{steps}/second")).json()
    assert (second["input"]["n"], second["edits"], second["output"]["n"]) == (41, [{"n": 41}], 42)
    assert "hunter2" not in str(second)
    page = (await admin.get(f"/runs/{case.run_id}/steps/second")).text
    assert "Input with the edit" in page
    assert (await admin.get(f"{steps}/no-such")).status_code == 404
    async with client_of(app, await make_token(Role.VIEWER)) as viewer:
        assert (await viewer.get(f"{steps}/first")).status_code == 403
        assert "Input and output" not in (await viewer.get(f"/runs/{case.run_id}")).text
    async with client_of(app, await make_token(tenant=new_tenant())) as foreign:
        assert (await foreign.get(f"{steps}/first")).status_code == 404


async def test_runs_are_found_by_key_correlation_id_and_date(admin: httpx.AsyncClient, case: Case) -> None:
    """One search for ids, keys and correlation ids; dates bound the start; nothing of others is found."""
    key = f"order:{case.name}"
    wanted = order_of(case) | {"correlation_id": f"trace-{case.name}"}
    run_id = (await admin.post(RUNS, json=wanted, headers={"Idempotency-Key": key})).json()["run_id"]
    await admin.post(RUNS, json=order_of(case))
    case.run_id = run_id
    await case.until_row(RunStatus.SUCCESS)

    async def found(**params: str) -> list[str]:
        return [row["run_id"] for row in (await admin.get(RUNS, params=params)).json()["runs"]]

    async def all_listed() -> bool:
        return len(await found()) == 2

    await eventually(all_listed)
    for text in (key, f"trace-{case.name}", run_id):
        assert await found(text=text) == [run_id]
    assert await found(text="nothing-like-it") == []
    assert await found(until="2020-01-01T00:00:00Z") == []
    assert len(await found(since="2020-01-01T00:00:00Z")) == 2
    assert run_id[-8:] in (await admin.get("/runs", params={"text": key, "since": "1h"})).text
