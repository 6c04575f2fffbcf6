"""Dead messages of RabbitMQ over HTTP."""

import uuid

import httpx
from fastapi import FastAPI

from redrive.access import Right, Role
from redrive.postgres.tenancy import Pool, transaction
from redrive.store.audit import list_audit
from redrive.store.messages.dead import mark_replayed, parse_id, put_dead
from redrive.store.messages.retry_queue import take_due
from tests.integration.console.broker_rows import SOURCE, give_up
from tests.integration.console.conftest import MakeToken, client_of
from tests.integration.store.letters import new_tenant
from tests.integration.store.retries import new_dead

MESSAGES = "/api/v1/dead-messages"
WHY = {"reason": "billing is back", "request_id": "one"}


async def test_messages_are_listed_page_by_page(admin: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """The pages hold every message that fits once; a cursor that no list gave is refused."""
    billing = [await give_up(pool, tenant) for _ in range(3)]
    await give_up(pool, tenant, original_queue="mail")
    query: dict[str, str | int] = {"queue": "billing", "status": "pending", "limit": 2}
    first = (await admin.get(MESSAGES, params=query)).json()
    second = (await admin.get(MESSAGES, params=query | {"cursor": first["cursor"]})).json()
    listed = [row["message_id"] for row in first["dead_messages"] + second["dead_messages"]]
    assert (sorted(listed), second["cursor"]) == (sorted(billing), None)
    assert "payload" not in first["dead_messages"][0]
    wrong = await admin.get(MESSAGES, params={"cursor": first["cursor"]})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_input")


async def test_replay_is_commanded_once_and_audited(admin: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """The message goes to the sweep with its retries at zero; the same request has the same answer, another one 409."""
    name = await give_up(pool, tenant)
    address = f"{MESSAGES}/message-{name}"
    seen = await admin.get(address)
    assert (seen.json()["status"], seen.json()["payload"]["text"]) == ("pending", "order 7")
    tag = {"If-Match": seen.headers["ETag"]}
    answer = await admin.post(f"{address}/replay", json=WHY, headers=tag)
    assert (answer.status_code, answer.json()["status"]) == (202, "replaying")
    again = await admin.post(f"{address}/replay", json=WHY, headers=tag)
    assert (again.status_code, again.json()) == (202, answer.json())
    other = await admin.post(f"{address}/replay", json={"reason": "me too"})
    assert (other.status_code, other.json()["code"]) == (409, "command_refused")
    async with transaction(pool, tenant) as connection:
        (due,) = await take_due(connection, tenant, 10)
        assert (str(due.message_id), due.retry_count) == (name, 0)
        await mark_replayed(connection, tenant, [due.message_id])
    story = (await admin.get(f"{MESSAGES}/{name}")).json()
    assert story["status"] == "replayed"
    actions = ["dead_lettered", "replay_requested", "refused", "replay_outcome"]
    assert [line["action"] for line in story["audit"]] == actions
    requested = story["audit"][1]
    assert requested["actor"].startswith("test admin (tok_")
    assert requested["reason"] == "billing is back"


async def test_a_command_to_a_message_that_changed_is_refused(
    admin: httpx.AsyncClient, pool: Pool, tenant: str
) -> None:
    """A message that was given up again is another version: 412 with that of now, and nothing is ordered."""
    message = new_dead()
    name = await give_up(pool, tenant, message_id=message.message_id)
    address = f"{MESSAGES}/{name}"
    tag = {"If-Match": (await admin.get(address)).headers["ETag"]}
    assert (await admin.post(f"{address}/ignore", json=WHY)).status_code == 202
    async with transaction(pool, tenant) as connection:
        await put_dead(connection, tenant, SOURCE, [message])
    late = await admin.post(f"{address}/discard", json={"reason": "late"}, headers=tag)
    assert (late.status_code, late.json()["code"], late.headers["ETag"]) == (412, "version_changed", '"2-pending"')
    lines = await list_audit(pool, tenant, f"message-{name}")
    assert [line.action for line in lines] == ["dead_lettered", "discarded", "dead_lettered"]


async def test_content_is_a_right_of_its_own_and_redacted(
    app: FastAPI, make_token: MakeToken, pool: Pool, tenant: str
) -> None:
    """A viewer reads the record alone; who may see payloads reads text without secrets, and hex of what is no text."""
    text = await give_up(pool, tenant, original_payload=b'{"password": "hunter2", "n": 1}')
    raw = await give_up(pool, tenant, original_payload=b"\x00\xff\x10")
    async with client_of(app, await make_token(Role.VIEWER)) as viewer:
        record = (await viewer.get(f"{MESSAGES}/{text}")).json()
    assert (record["payload"], record["payload_hidden"]) == (None, True)
    rights = frozenset({Right.READ, Right.PAYLOADS})
    async with client_of(app, await make_token(Role.VIEWER, rights=rights)) as trusted:
        shown = (await trusted.get(f"{MESSAGES}/{text}")).json()["payload"]
        dump = (await trusted.get(f"{MESSAGES}/{raw}")).json()["payload"]
    assert "hunter2" not in shown["text"]
    assert '"n": 1' in shown["text"]
    assert (dump["encoding"], dump["text"]) == ("hex", "00 ff 10")


async def test_an_owner_names_the_tenant_of_an_id_that_two_have(
    owner: httpx.AsyncClient, pool: Pool, tenant: str
) -> None:
    """Senders choose the ids: two tenants may have the same one, and a command must not guess."""
    name = await give_up(pool, tenant)
    other = new_tenant()
    await give_up(pool, other, message_id=parse_id(name))
    unclear = await owner.post(f"{MESSAGES}/{name}/ignore", json=WHY)
    assert (unclear.status_code, unclear.json()["places"][0]["place"]) == (422, "query.tenant")
    clear = await owner.post(f"{MESSAGES}/{name}/ignore", json=WHY, params={"tenant": other})
    assert clear.status_code == 202
    statuses = {row["tenant"]: row["status"] for row in await _both(owner, tenant, other)}
    assert statuses == {tenant: "pending", other: "discarded"}


async def _both(owner: httpx.AsyncClient, *tenants: str) -> list[dict[str, str]]:
    pages = [(await owner.get(MESSAGES, params={"tenant": tenant})).json() for tenant in tenants]
    return [row for page in pages for row in page["dead_messages"]]


async def test_an_id_that_nobody_has_is_named(admin: httpx.AsyncClient) -> None:
    """Whatever stands there: 404, and where to look it up."""
    for wrong in ("nonsense", "message-0b2f6d3e-6c0a-4c53-9d0e-0d2f3a1b4c5d"):
        answer = await admin.get(f"{MESSAGES}/{wrong}")
        assert (answer.status_code, answer.json()["code"]) == (404, "message_not_found")


async def test_a_beginning_of_an_id_is_enough(admin: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """One that no other has names the message; one that two have is refused, and says how many there are."""
    same = uuid.uuid4().hex[:8]
    for last in "12":
        await give_up(pool, tenant, message_id=uuid.UUID(same + last * 24))
    for text in (f"{same}-11", f"message-{same}1"):
        assert (await admin.get(f"{MESSAGES}/{text}")).json()["message_id"].startswith(f"{same}-1111"), text
    unclear = await admin.post(f"{MESSAGES}/{same}/ignore", json=WHY)
    assert unclear.status_code == 400
    assert "2 ids begin with it" in unclear.json()["detail"]
