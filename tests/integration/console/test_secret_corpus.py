"""The corpus of secrets, planted wherever one can come from, and looked for in tables, logs, answers and pages."""

import json
import uuid
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from redrive import Redrive
from redrive.connection import connect_temporal
from redrive.postgres.tenancy import Pool
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from tests.conftest import eventually, owner_url
from tests.hostile.leaky import BATCHES
from tests.hostile.secrets import CARD, DOCUMENTS, TEXTS, WORD
from tests.integration.console.broker_rows import bury, event_body, give_up, store_event
from tests.integration.dead_letters.processes import WorkerProcess

ALL = [planted.carrier for planted in (*TEXTS, *DOCUMENTS)]
SECRETS = {planted.secret for planted in (*TEXTS, *DOCUMENTS)}
# What a replay needs as it came: protected by the right `payloads`, and redacted where it is shown.
TRUE_BYTES = {"events": "payload", "dead_events": "payload", "dead_messages": "original_payload"}
_TABLES = "SELECT table_name FROM information_schema.columns WHERE table_schema = 'redrive' AND column_name = 'tenant'"


async def rows(stack: StackInfo, tenant: str) -> str:
    """Return all that PostgreSQL holds of a tenant, but for the bytes that a replay needs."""
    connection = await asyncpg.connect(owner_url(stack))
    try:
        found = []
        for (table,) in await connection.fetch(_TABLES):
            left_out = TRUE_BYTES.get(table, "")
            found += await connection.fetch(
                f"SELECT (to_jsonb(t) - $2::text)::text AS row FROM redrive.{table} AS t WHERE tenant = $1",  # noqa: S608
                tenant,
                left_out,
            )
        return "\n".join(record["row"] for record in found)
    finally:
        await connection.close()


def leaks(text: str) -> list[str]:
    """Return the secrets that stand in a text, with what stands around them."""
    plain = text.replace("\\u0000", "")
    return [plain[max(0, plain.find(secret) - 60) :][:120] for secret in SECRETS if secret in plain]


async def _shown(admin: httpx.AsyncClient, *places: str) -> str:
    answers = [await admin.get(place) for place in places]
    assert {answer.status_code for answer in answers} == {200}, [answer.text[:300] for answer in answers]
    return "\n".join(answer.text for answer in answers)


@pytest.mark.timeout(240)
async def test_no_planted_secret_is_stored_logged_or_shown(
    stack: StackInfo, admin: httpx.AsyncClient, pool: Pool, tenant: str, tmp_path: Path
) -> None:
    """Payloads, errors, stacks, results, reasons, events and messages: of all shapes, stored in clear are none."""
    queue = f"queue-{uuid.uuid4().hex[:12]}"
    worker = WorkerProcess(stack, tmp_path, REDRIVE_TASK_QUEUE=queue, REDRIVE_MODULES="tests.hostile.leaky")
    await worker.start()
    settings = Settings(
        temporal_address=stack.temporal_address, database_url=stack.database_url, task_queue=queue, state_dir=tmp_path
    )
    plain = Redrive(await connect_temporal(settings), task_queue=queue)
    async with await Redrive.connect(settings) as keyed:
        for batch in range(len(BATCHES)):
            await plain.start("leaky", {"batch": batch, "planted": ALL}, tenant=tenant)
        run = await keyed.start("telling", {"planted": ALL}, tenant=tenant, key="telling")
        await keyed.result(run.run_id)

        async def dead() -> list[dict[str, Any]] | None:
            found: list[dict[str, Any]] = (await admin.get("/api/v1/workflow-dlq?limit=100")).json()["dead_letters"]
            return found if len(found) == len(BATCHES) else None

        letters = await eventually(dead, within=90)
        event = await store_event(pool, tenant, planted=ALL)
        buried = await bury(pool, tenant, event_body("k2", payload={"planted": ALL}))
        given_up = await give_up(pool, tenant, original_payload=b"\x08\x01" + "\n".join(map(json.dumps, ALL)).encode())
        shown = await _shown(
            admin,
            *(f"/api/v1/workflow-dlq/{each['id']}" for each in letters),
            *(f"/dead-letters/{each['id']}" for each in letters),
            *(f"/api/v1/runs/{each['run_id']}" for each in letters[:2]),
            *("/dead-letters", "/api/v1/workflow-dlq", "/", f"/api/v1/stored-events/{event.id}", f"/events/{event.id}"),
            *(f"/api/v1/dead-events/{buried}", f"/events/dead/{buried}", f"/messages/{given_up}"),
            f"/api/v1/dead-messages/{given_up}",
        )
        await worker.stop()
    log = worker.log.read_text()
    stored = await rows(stack, tenant)
    assert (stored.count("[redacted]") > 100, "leaky.told" in log, "[redacted]" in shown) == (True, True, True)
    clear = {"rows": leaks(stored), "log": leaks(log), "shown": leaks(shown)}
    print(f"planted {len(ALL)}, in clear: {sum(map(len, clear.values()))}")
    assert clear == {"rows": [], "log": [], "shown": []}


@pytest.mark.parametrize("field", ["correlation_id", "user_id", "key"])
@pytest.mark.parametrize("value", [CARD, f"token={WORD}", "rdt_" + "a1" * 20])
async def test_an_id_that_holds_a_secret_is_refused(
    admin: httpx.AsyncClient, stack: StackInfo, tenant: str, field: str, value: str
) -> None:
    """A start is refused, says which field, and neither repeats the secret nor leaves anything behind."""
    body: dict[str, Any] = {"pipeline": "work", "payload": {}}
    headers = {"Idempotency-Key": value} if field == "key" else {}
    answer = await admin.post("/api/v1/runs", json=body if headers else body | {field: value}, headers=headers)
    assert answer.status_code == 400
    assert field in answer.text
    assert value not in answer.text
    assert value not in await rows(stack, tenant)


async def test_a_command_whose_id_holds_a_secret_is_refused(admin: httpx.AsyncClient, pool: Pool, tenant: str) -> None:
    """The request id of a command is stored as it is: one that holds a secret is refused."""
    buried = await bury(pool, tenant, event_body("k"))
    order = {"reason": "x", "request_id": f"token={WORD}"}
    answer = await admin.post(f"/api/v1/dead-events/{buried}/discard", json=order, headers={"If-Match": "*"})
    assert (answer.status_code, WORD in answer.text) == (400, False)
    assert "request_id" in answer.text
