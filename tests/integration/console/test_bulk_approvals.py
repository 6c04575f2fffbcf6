"""The second approver for bulk operations: a plan waits on a page for another person, not for another token."""

import html
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from redrive import Registry, RunStatus
from redrive.access import Role, member
from redrive.console.app import build_app
from redrive.console.authentication import CSRF_HEADER, SESSION, csrf_token
from redrive.postgres.tenancy import Pool
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from redrive.store.access import open_member_session, put_member
from redrive.worker import running_worker
from tests.conftest import owner_url
from tests.integration.console.conftest import MakeToken, client_of
from tests.integration.console.test_bulk import BULK, REPLAY, until_bulk
from tests.integration.dead_letters.lab import Case, register
from tests.integration.store.letters import new_tenant

YES = {"reason": "looked at it"}


@pytest.fixture
async def strict(console_settings: Settings, case: Case) -> AsyncIterator[FastAPI]:
    """A console and a worker of the test's own where bulk operations need two."""
    settings = console_settings.model_copy(update={"approvals": True, "task_queue": f"queue-{case.name}"})
    registry = Registry()
    register(registry)
    app = build_app(settings)
    async with running_worker(settings, registry), app.router.lifespan_context(app):
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


async def planned(client: httpx.AsyncClient, **wish: Any) -> dict[str, Any]:
    """Return a start that fits a fresh plan."""
    plan = (await client.post(f"{BULK}/plan", json=REPLAY | wish)).json()
    assert plan["approval_needed"]
    return {"command": plan["command"], "plan_hash": plan["hash"], "reason": "the provider is back"}


async def refused_start(client: httpx.AsyncClient, start: dict[str, Any]) -> str:
    """Start what nobody approved, and return where its plan waits."""
    answer = await client.post(BULK, json=start)
    assert (answer.status_code, answer.json()["code"]) == (409, "APPROVAL_NEEDED")
    return f"/api/v1/approvals/{start['plan_hash']}"


async def test_a_plan_waits_for_another_admin(ann: httpx.AsyncClient, ben: httpx.AsyncClient, case: Case) -> None:
    """Asked by a start, seen with who and why, approved by another, started once, for this plan alone."""
    await case.park("second")
    case.mend()
    start = await planned(ann)
    approval = await refused_start(ann, start)
    waiting = (await ben.get("/api/v1/approvals")).json()["approvals"]
    assert [(each["plan_hash"], each["reason"]) for each in waiting] == [(start["plan_hash"], start["reason"])]
    assert waiting[0]["plan"]["groups"][0]["run_again"] == [{"name": "second", "effect": "keyed"}]
    own = await ann.post(approval, json=YES)
    assert (own.status_code, own.json()["code"]) == (409, "same_approver")
    assert (await ben.post(approval, json=YES)).status_code == 200
    other = await ann.post(BULK, json=start | {"command": start["command"] | {"canary": 1}})
    assert (other.status_code, other.json()["code"]) == (409, "PLAN_CHANGED")
    started = await ann.post(BULK, json=start)
    assert started.status_code == 202
    bulk_id = started.json()["bulk_id"]
    assert (await until_bulk(ann, bulk_id, "DONE"))["progress"]["applied"] == 1
    assert (await ben.get(approval)).json()["used_for"] == bulk_id


async def test_one_person_is_one_pair_of_eyes(
    strict: FastAPI, stack: StackInfo, access: Pool, make_token: MakeToken, case: Case
) -> None:
    """Signed in, by a token made there, by one made for them elsewhere: whichever asks, the others cannot approve."""
    await case.park("second")
    ada = f"ada@{case.tenant}.example"
    url = owner_url(stack)
    await put_member(url, ada, tenant=case.tenant, role=Role.ADMIN, changed_by="the tests")
    session = await open_member_session(access, ada, timedelta(hours=1))
    assert session
    async with client_of(strict) as browser:
        browser.cookies.set(SESSION, session)
        browser.headers[CSRF_HEADER] = csrf_token(session)
        made = await browser.post("/api/v1/tokens", json={"name": "a friend", "role": "admin"})
        async with (
            client_of(strict, made.json()["secret"]) as friend,
            client_of(strict, await make_token(name="laptop", person=member(ada))) as laptop,
        ):
            eyes = [browser, friend, laptop]
            for rate, asking in enumerate(eyes, start=1):
                approval = await refused_start(asking, await planned(asking, rate=rate))
                for each in eyes:
                    answer = await each.post(approval, json=YES)
                    assert (answer.status_code, answer.json()["code"]) == (409, "same_approver")


async def test_another_tenant_neither_sees_nor_approves(
    strict: FastAPI, ann: httpx.AsyncClient, make_token: MakeToken, case: Case
) -> None:
    """To a foreign admin the plan is not there, as a page or in the API; an owner may approve it."""
    await case.park("second")
    start = await planned(ann)
    approval = await refused_start(ann, start)
    async with client_of(strict, await make_token(tenant=new_tenant())) as foreign:
        assert (await foreign.get("/api/v1/approvals")).json() == {"approvals": []}
        assert (await foreign.get(approval)).status_code == 404
        assert (await foreign.get(f"/bulk/approvals/{start['plan_hash']}")).status_code == 404
        refused = await foreign.post(approval, json=YES)
        assert (refused.status_code, refused.json()["code"]) == (404, "approval_not_found")
    async with client_of(strict, await make_token(Role.OWNER)) as owner:
        assert (await owner.post(approval, json=YES)).status_code == 200


async def test_what_an_edit_puts_in_is_redacted_and_for_those_who_see_payloads(
    strict: FastAPI, ann: httpx.AsyncClient, ben: httpx.AsyncClient, make_token: MakeToken, case: Case
) -> None:
    """A secret is not stored with the plan; a viewer sees that there is an edit, not what it is."""
    await case.park("second")
    start = await planned(ann, input_patch={"n": 41, "note": "password=hunter2"})
    approval = await refused_start(ann, start)
    page = f"/bulk/approvals/{start['plan_hash']}"
    shown = (await ben.get(approval)).json()["plan"]["command"]["input_patch"]
    assert (shown["n"], "hunter2" in shown["note"]) == (41, False)
    assert '"n": 41' in html.unescape((await ben.get(page)).text)
    async with client_of(strict, await make_token(Role.VIEWER)) as viewer:
        assert "input_patch" not in (await viewer.get(approval)).json()["plan"]["command"]
        seen = html.unescape((await viewer.get(page)).text)
        assert ("Waits for an admin" in seen, '"n": 41' in seen, "data-api" in seen) == (True, False, False)
    await ben.post(approval, json=YES)
    assert "give the same command again where it was planned" in (await ben.get(page)).text
    case.mend()
    assert (await ann.post(BULK, json=start)).status_code == 202


async def test_page_of_a_plan_names_its_options_as_the_form_does(ann: httpx.AsyncClient, case: Case) -> None:
    """How far and since when are words and a time that a person reads."""
    await case.park("second")
    start = await planned(ann, selection={"since": "2026-01-02T03:04:05+01:00"})
    await refused_start(ann, start)
    page = (await ann.get(f"/bulk/approvals/{start['plan_hash']}")).text
    facts = ("<dt>How far</dt><dd>and go on</dd>", "<dt>Since</dt><dd>2026-01-02 02:04:05 UTC</dd>")
    assert [fact for fact in facts if fact not in page] == []


@pytest.fixture
async def lenient_worker(console_settings: Settings, case: Case) -> AsyncIterator[Settings]:
    """A worker of the test's own whose settings do not ask for approvals."""
    settings = console_settings.model_copy(update={"task_queue": f"queue-{case.name}"})
    registry = Registry()
    register(registry)
    async with running_worker(settings, registry):
        yield settings


async def test_a_worker_that_asks_for_no_approval_holds_what_the_console_holds(
    lenient_worker: Settings, make_token: MakeToken, case: Case
) -> None:
    """On at the console and off at the worker is on; a plan that is held is held for every other console as well."""
    await case.park("second")
    case.mend()
    strict, lenient = build_app(lenient_worker.model_copy(update={"approvals": True})), build_app(lenient_worker)
    async with (
        strict.router.lifespan_context(strict),
        lenient.router.lifespan_context(lenient),
        client_of(strict, await make_token(name="ann")) as ann,
        client_of(lenient, await make_token(name="eve")) as eve,
        client_of(strict, await make_token(name="ben")) as ben,
    ):
        start = await planned(ann)
        approval = await refused_start(ann, start)
        await refused_start(eve, start)
        assert (await case.view()).status is RunStatus.DLQ_PENDING
        assert (await ben.post(approval, json=YES)).status_code == 200
        started = await ann.post(BULK, json=start)
        assert started.status_code == 202
        assert (await until_bulk(ann, started.json()["bulk_id"], "DONE"))["progress"]["applied"] == 1
