"""The second approver (`REDRIVE_APPROVALS=on`): an edit waits for another admin, bound to what it would do."""

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from redrive.access import Role
from redrive.console.app import build_app
from redrive.contracts import RunStatus
from redrive.postgres.tenancy import Pool, transaction
from redrive.settings import Settings
from tests.integration.console.conftest import MakeToken, client_of
from tests.integration.dead_letters.lab import Case
from tests.integration.store.letters import new_tenant

YES = {"reason": "looked at it"}
EDIT = {"reason": "a typo", "request_id": "edit-1", "input_patch": {"n": 41, "note": None}}


@pytest.fixture
async def strict(console_settings: Settings) -> AsyncIterator[FastAPI]:
    """A console where edits need two."""
    app = build_app(console_settings.model_copy(update={"approvals": True}))
    async with app.router.lifespan_context(app):
        yield app


@pytest.fixture
async def ann(strict: FastAPI, make_token: MakeToken) -> AsyncIterator[httpx.AsyncClient]:
    """The admin who asks."""
    async with client_of(strict, await make_token(name="ann")) as client:
        yield client


@pytest.fixture
async def ben(strict: FastAPI, make_token: MakeToken) -> AsyncIterator[httpx.AsyncClient]:
    """The admin who approves."""
    async with client_of(strict, await make_token(name="ben")) as client:
        yield client


async def test_an_edit_waits_for_another_admin(
    strict: FastAPI, ann: httpx.AsyncClient, ben: httpx.AsyncClient, make_token: MakeToken, case: Case
) -> None:
    """Asked, seen, approved by another, carried out once: and the audit log has all of it."""
    await case.park("second")
    case.mend()
    replay = f"/api/v1/workflow-dlq/{case.letter('second').workflow_id}/replay"
    asked = await ann.post(replay, json=EDIT)
    assert (asked.status_code, asked.json()["code"]) == (409, "approval_needed")
    waiting = (await ben.get("/api/v1/approvals")).json()["approvals"]
    assert [each["plan"]["input_patch"] for each in waiting] == [{"n": 41, "note": None}]
    approve = f"/api/v1/approvals/{waiting[0]['plan_hash']}"
    own = await ann.post(approve, json=YES)
    assert (own.status_code, own.json()["code"]) == (409, "same_approver")
    async with client_of(strict, await make_token(tenant=new_tenant())) as foreign:
        assert (await foreign.post(approve, json=YES)).status_code == 404
        assert (await foreign.get("/api/v1/approvals")).json() == {"approvals": []}
    assert (await ben.post(approve)).status_code == 422
    assert (await ben.post(approve, json=YES)).json()["approval_reason"] == YES["reason"]
    assert (await ben.post(approve, json=YES)).status_code == 200
    first = await ann.post(replay, json=EDIT)
    assert first.status_code == 202
    await case.until(RunStatus.SUCCESS)
    assert (await ann.post(replay, json=EDIT)).json() == first.json()
    assert case.service.calls[-2].given.n == 41
    actions = [(row["action"], row["actor"].split()[0]) for row in await case.audit("second")]
    assert actions[1:4] == [("approval_asked", "ann"), ("approved", "ben"), ("replay_requested", "ann")]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({"n": "many"}, "n: Input should be a valid integer"),
        ({"notes": "x"}, "notes: the input has no such field; did"),
    ],
    ids=["value", "name"],
)
async def test_an_edit_that_does_not_fit_waits_for_nobody(
    ann: httpx.AsyncClient, ben: httpx.AsyncClient, case: Case, edit: dict[str, str], said: str
) -> None:
    """Once it is approved, nobody could start it: it is refused before somebody is asked."""
    await case.park("second")
    replay = f"/api/v1/workflow-dlq/{case.letter('second').workflow_id}/replay"
    refused = await ann.post(replay, json={"reason": "a typo", "input_patch": edit})
    assert (refused.status_code, refused.json()["code"]) == (409, "command_refused")
    assert said in refused.json()["detail"]
    assert (await ben.get("/api/v1/approvals")).json() == {"approvals": []}


async def test_an_output_that_does_not_fit_waits_for_nobody(
    ann: httpx.AsyncClient, ben: httpx.AsyncClient, case: Case
) -> None:
    """An output is checked as an edit is, before somebody is asked to approve it."""
    await case.park("second")
    resolve = f"/api/v1/workflow-dlq/{case.letter('second').workflow_id}/resolve"
    refused = await ann.post(resolve, json={"reason": "by hand", "output": {"step": "second", "n": "many"}})
    assert (refused.status_code, refused.json()["code"]) == (409, "command_refused")
    assert "the output does not fit: n: Input should be a valid integer" in refused.json()["detail"]
    assert (await ben.get("/api/v1/approvals")).json() == {"approvals": []}


async def test_an_approval_is_for_that_edit_alone(ann: httpx.AsyncClient, ben: httpx.AsyncClient, case: Case) -> None:
    """Another value needs another approval; a plain replay needs none; a foreign hash is not found."""
    await case.park("second")
    letter = f"/api/v1/workflow-dlq/{case.letter('second').workflow_id}"
    planned = (await ann.post(f"{letter}/plan", json={"input_patch": {"n": 41, "note": None}})).json()
    assert planned["needs_approval"]
    await ann.post(f"{letter}/replay", json=EDIT)
    assert (await ben.post(f"/api/v1/approvals/{planned['hash']}", json=YES)).status_code == 200
    other = await ann.post(f"{letter}/replay", json=EDIT | {"input_patch": {"n": 999}})
    assert other.json()["code"] == "approval_needed"
    resolved = await ann.post(f"{letter}/resolve", json={"reason": "by hand", "output": {"step": "second", "n": 1}})
    assert resolved.json()["code"] == "approval_needed"
    assert (await ben.post("/api/v1/approvals/none", json=YES)).status_code == 404
    assert (await ann.post(f"{letter}/replay", json={"reason": "as it is"})).status_code == 202


async def test_a_token_of_ones_own_is_no_second_pair(strict: FastAPI, ann: httpx.AsyncClient, case: Case) -> None:
    """A token that somebody made over the API counts as them, and so does one that was made with that."""
    await case.park("second")
    wanted = {"name": "a friend", "role": "admin"}
    secret = (await ann.post("/api/v1/tokens", json=wanted)).json()["secret"]
    await ann.post(f"/api/v1/workflow-dlq/{case.letter('second').workflow_id}/replay", json=EDIT)
    waiting = (await ann.get("/api/v1/approvals")).json()["approvals"]
    async with client_of(strict, secret) as friend:
        further = (await friend.post("/api/v1/tokens", json=wanted)).json()["secret"]
    for each in (secret, further):
        async with client_of(strict, each) as friend:
            answer = await friend.post(f"/api/v1/approvals/{waiting[0]['plan_hash']}", json=YES)
        assert (answer.status_code, answer.json()["code"]) == (409, "same_approver")


async def test_an_hour_is_all_there_is(ann: httpx.AsyncClient, ben: httpx.AsyncClient, pool: Pool, case: Case) -> None:
    """After it nothing is approved, and what was approved is not carried out; asked again, it waits again."""
    await case.park("second")
    replay = f"/api/v1/workflow-dlq/{case.letter('second').workflow_id}/replay"
    await ann.post(replay, json=EDIT)
    approve = f"/api/v1/approvals/{(await ben.get('/api/v1/approvals')).json()['approvals'][0]['plan_hash']}"
    await ben.post(approve, json=YES)
    async with transaction(pool, case.tenant) as connection:
        await connection.execute("UPDATE approvals SET expires_at = expires_at - interval '61 minutes'")
    late = await ben.post(approve, json=YES)
    assert (late.status_code, late.json()["code"]) == (404, "approval_not_found")
    assert (await ann.post(replay, json=EDIT)).json()["code"] == "approval_needed"
    assert (await ben.get(approve)).json()["approved_by"] is None
    assert (await ben.post(approve, json=YES)).status_code == 200


async def test_a_viewer_sees_that_there_is_an_edit_but_not_which(
    strict: FastAPI, ann: httpx.AsyncClient, make_token: MakeToken, case: Case
) -> None:
    """What an edit puts in is a payload: for those who may see payloads."""
    await case.park("second")
    await ann.post(f"/api/v1/workflow-dlq/{case.letter('second').workflow_id}/replay", json=EDIT)
    async with client_of(strict, await make_token(Role.VIEWER)) as viewer:
        waiting = (await viewer.get("/api/v1/approvals")).json()["approvals"]
    assert [each["plan"] for each in waiting] == [{"verb": "replay"}]


async def test_an_approved_edit_is_started_as_it_was_approved(
    ann: httpx.AsyncClient, ben: httpx.AsyncClient, case: Case
) -> None:
    """Not before the approval, then by whoever approved it, without writing it again, once."""
    await case.park("second")
    case.mend()
    await ann.post(f"/api/v1/workflow-dlq/{case.letter('second').workflow_id}/replay", json=EDIT)
    plan_hash = (await ben.get("/api/v1/approvals")).json()["approvals"][0]["plan_hash"]
    start = f"/api/v1/approvals/{plan_hash}/start"
    early = await ann.post(start, json={})
    assert (early.status_code, early.json()["code"]) == (409, "not_approved")
    await ben.post(f"/api/v1/approvals/{plan_hash}", json=YES)
    listed = (await ben.get("/bulk")).text
    assert "replay with an edit" in listed
    page = (await ben.get(f"/dead-letters/{case.letter('second').workflow_id}", headers={"accept": "text/html"})).text
    assert "Replay with this edit" in page
    assert "Replay without this edit" in page
    started = await ben.post(start, json={"request_id": "start-1"})
    assert (started.status_code, started.json()["accepted"]) == (202, True)
    await case.until(RunStatus.SUCCESS)
    assert (await ben.post(start, json={"request_id": "start-1"})).json() == started.json()
    assert case.service.calls[-2].given.n == 41
    again = await ann.post(start, json={})
    assert (again.status_code, again.json()["code"]) == (409, "plan_changed")
    rows = [(row["action"], row["actor"].split()[0], row["reason"]) for row in await case.audit("second")]
    assert ("replay_requested", "ben", EDIT["reason"]) in rows


async def test_an_edit_with_a_secret_is_not_started_from_its_record(
    ann: httpx.AsyncClient, ben: httpx.AsyncClient, case: Case
) -> None:
    """The record has no secrets: the edit has to be sent again by whoever knows them, and the page says so."""
    await case.park("second")
    edit = EDIT | {"input_patch": {"note": "password=hunter2-hunter2"}}
    letter = case.letter("second").workflow_id
    await ann.post(f"/api/v1/workflow-dlq/{letter}/replay", json=edit)
    plan_hash = (await ben.get("/api/v1/approvals")).json()["approvals"][0]["plan_hash"]
    await ben.post(f"/api/v1/approvals/{plan_hash}", json=YES)
    answer = await ben.post(f"/api/v1/approvals/{plan_hash}/start", json={})
    assert (answer.status_code, answer.json()["code"]) == (409, "redacted_plan")
    page = (await ben.get(f"/dead-letters/{letter}")).text
    assert "Replay with this edit" not in page
    assert "sends the same edit again" in page
    assert "hunter2" not in page
