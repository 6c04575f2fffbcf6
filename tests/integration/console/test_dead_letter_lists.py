"""Dead letters over HTTP: lists and their pages."""

import re

import httpx

from redrive.postgres.tenancy import Pool
from redrive.store.dead_letters.records import record_exhausted
from tests.integration.store.letters import exhausted, new_letter, new_tenant


async def test_lists_the_tenants_letters_page_by_page(admin: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """The pages hold every letter of the tenant once, the newest first."""
    letters = [new_letter(tenant) for _ in range(5)]
    for letter in letters:
        await record_exhausted(pool, exhausted(letter))
    first = (await admin.get("/api/v1/workflow-dlq", params={"limit": 3})).json()
    second = (await admin.get("/api/v1/workflow-dlq", params={"limit": 3, "cursor": first["cursor"]})).json()
    listed = [row["id"] for row in first["dead_letters"] + second["dead_letters"]]
    assert sorted(listed) == sorted(letter.workflow_id for letter in letters)
    assert second["cursor"] is None


async def test_lists_letters_by_their_ids(admin: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """Several ids are several fields of the address; one of another tenant is not there."""
    letters = [new_letter(tenant), new_letter(tenant), new_letter(tenant), new_letter(new_tenant())]
    for letter in letters:
        await record_exhausted(pool, exhausted(letter))
    wanted = [letter.workflow_id for letter in letters[1:]]
    answer = (await admin.get("/api/v1/workflow-dlq", params={"letters": wanted})).json()
    assert {row["id"] for row in answer["dead_letters"]} == set(wanted[:2])
    assert answer["total"] == {"count": 2, "exact": True}


async def test_groups_page_says_when_there_are_more(admin: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """Fifty groups are shown, and called the largest when there may be others; fewer are called all there are."""
    for number in range(49):
        await record_exhausted(pool, exhausted(new_letter(tenant, f"step-{number}")))
    assert _summary(await admin.get("/dead-letters")) == "49 open, in 49 groups that look alike"
    for _ in range(3):
        await record_exhausted(pool, exhausted(new_letter(tenant, "another-step")))
    await record_exhausted(pool, exhausted(new_letter(tenant, "and-another")))
    assert _summary(await admin.get("/dead-letters")) == "52 open, in the 50 largest groups that look alike"


async def test_lists_show_the_end_of_an_error(admin: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """A wrapped error names its cause last: of a long one, lists and groups have the beginning and the end."""
    message = "could not pay: " + "while calling the provider " * 30 + "the card is expired"
    await record_exhausted(pool, exhausted(new_letter(tenant), message=message))
    row = (await admin.get("/api/v1/workflow-dlq")).json()["dead_letters"][0]
    assert row["message"].startswith("could not pay: ")
    assert row["message"].endswith("the card is expired")
    assert len(row["message"]) == 300
    for page in ("/dead-letters", "/dead-letters?view=list", "/"):
        assert "the card is expired</span>" in (await admin.get(page)).text


async def test_filters_offer_what_there_is(admin: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """Pipelines and steps of the tenant's dead letters, and what was asked for; nothing that fits is not well."""
    await record_exhausted(pool, exhausted(new_letter(tenant, "step-a")))
    await record_exhausted(pool, exhausted(new_letter(new_tenant(), "step-of-others")))
    page = (await admin.get("/dead-letters?view=list&step=gone")).text
    assert "<option>step-a</option>" in page
    assert "<option selected>gone</option>" in page
    assert "step-of-others" not in page
    assert '<div class="empty">' in page
    assert 'class="empty well"' in (await admin.get("/dead-letters?view=list&status=replaying")).text


def _summary(page: httpx.Response) -> str:
    """Return the line above the groups, as somebody reads it."""
    line = page.text.partition('<p class="summary">')[2].partition("</p>")[0]
    return " ".join(re.sub("<[^>]*>", "", line).split())


async def test_me_says_who_asks(admin: httpx.AsyncClient, tenant: str) -> None:
    """A token's holder is told name, role, tenant and rights."""
    answer = await admin.get("/api/v1/me")
    assert answer.status_code == 200
    assert answer.json()["tenant"] == tenant
    assert answer.json()["role"] == "admin"


async def test_nobody_is_refused(nobody: httpx.AsyncClient) -> None:
    """Without a token there is nothing to see, and the answer says what to do."""
    answer = await nobody.get("/api/v1/workflow-dlq")
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "unauthorized"
