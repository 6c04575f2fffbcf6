"""Runs that people start: by a form, or like another run, as it was or edited; each once, and in the audit log."""

import httpx

from redrive.contracts import RunStatus
from tests.integration.dead_letters.lab import Case

RUNS = "/api/v1/runs"


async def test_a_start_by_hand_is_audited_and_happens_once(admin: httpx.AsyncClient, case: Case) -> None:
    """With a reason the start is in the audit log; the same request id is the same run and the same line."""
    wanted = {
        "pipeline": "three",
        "payload": {"case": case.name, "n": 1},
        "reason": "asked for by phone",
        "request_id": f"press-{case.name}",
    }
    first = await admin.post(RUNS, json=wanted)
    second = await admin.post(RUNS, json=wanted)
    assert (first.status_code, second.status_code) == (201, 200)
    case.run_id = first.json()["run_id"]
    assert second.json()["run_id"] == case.run_id
    await case.until(RunStatus.SUCCESS)
    lines = [row for row in await case.audit() if row["action"] == "run_start_requested"]
    assert [(row["run_id"], row["reason"]) for row in lines] == [(case.run_id, "asked for by phone")]
    misfit = await admin.post(RUNS, json=wanted | {"payload": {}, "request_id": "other"})
    assert misfit.status_code == 400
    assert len([row for row in await case.audit() if row["action"] == "run_start_requested"]) == 1


async def test_a_start_by_a_program_is_not_audited(admin: httpx.AsyncClient, case: Case) -> None:
    """Without a reason nothing is written for it."""
    answer = await admin.post(RUNS, json={"pipeline": "three", "payload": {"case": case.name}})
    case.run_id = answer.json()["run_id"]
    await case.until(RunStatus.SUCCESS)
    assert "run_start_requested" not in [row["action"] for row in await case.audit()]


async def test_a_run_is_started_again_with_an_edited_payload(admin: httpx.AsyncClient, case: Case) -> None:
    """A new run with the true payload, secrets included, and the edit; the first one stays, and the log names both."""
    await case.start(note="hunter2 is no secret here", password="hunter2-hunter2")
    first = case.run_id
    await case.until(RunStatus.SUCCESS)
    page = (await admin.get(f"/runs/{first}/again")).text
    assert "[redacted]" in page
    assert "hunter2-hunter2" not in page
    wanted = {"reason": "the amount was wrong", "payload_patch": {"n": 5}}
    answer = await admin.post(f"{RUNS}/{first}/again", json=wanted)
    assert answer.status_code == 201
    case.run_id = answer.json()["run_id"]
    assert case.run_id != first
    await case.until(RunStatus.SUCCESS)
    assert case.service.calls[-1].given.n == 5
    assert case.service.calls[-1].given.note == "hunter2 is no secret here"
    line = next(row for row in await case.audit() if row["action"] == "run_start_requested")
    assert (line["run_id"], line["reason"]) == (case.run_id, "the amount was wrong")
    assert line["after"]["again"] == first
    assert (await admin.post(f"{RUNS}/no-such-run/again", json=wanted)).status_code == 404


async def test_the_form_of_a_pipeline_has_its_fields(admin: httpx.AsyncClient, case: Case) -> None:
    """Fields of the payload, required ones first, without outputs of earlier steps; what was entered is checked."""
    page = (await admin.get("/runs/new?pipeline=three")).text
    places = [page.index(f'name="field.{name}"') for name in ("case", "n", "note", "place")]
    assert places[0] == min(places)
    assert 'name="field.second"' not in page
    plan = "/runs/plan?pipeline=three"
    fits = (await admin.post(plan, data={"field.case": "a", "field.n": "3"})).text
    assert "Fits." in fits
    assert "&#34;n&#34;: 3" in fits
    assert "is not a number" in (await admin.post(plan, data={"field.case": "a", "field.n": "three"})).text
    assert "Needed: <code>case</code>" in (await admin.post(plan, data={})).text
    assert "Does not fit" in (await admin.post(plan, data={"document": '{"case": 5}'})).text
