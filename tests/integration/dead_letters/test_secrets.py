"""Secrets are planted wherever they can come from, and looked for wherever Redrive writes."""

import json
import uuid
from pathlib import Path

import asyncpg

from redrive import Redrive
from redrive.connection import connect_temporal
from redrive.dead_letters import LetterId
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from tests.conftest import eventually, owner_url
from tests.integration.dead_letters.processes import WorkerProcess
from tests.integration.dead_letters.sink import Sink

MARK = "c4n4ry"
CARD = "4111111111111111"
SECRETS = {
    "bearer": f"Bearer {MARK}-bearer-abcdef123456",
    "jwt": f"eyJhbGciOiJIUzI1NiJ9.{MARK}payload.{MARK}signature",
    "card": CARD,
    "spaced card": "4111 1111 1111 1111",
    "url": f"postgresql://ada:{MARK}-password@db.example.com/x",
    "pem": f"-----BEGIN RSA PRIVATE KEY-----\n{MARK}MIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
    "named": f"member_no={MARK}-7781",
    "our own": f"{MARK}-own-7785",
    "json": f'{{"password": "{MARK}-hunter2", "member_no": "{MARK}-7782"}}',
}
TEXT = "; ".join(f"{name}: {secret}" for name, secret in SECRETS.items())
PAYLOAD = {**SECRETS, "member_no": f"{MARK}-7783", "nested": [{"api_key": f"{MARK}-key", "member_no": f"{MARK}-7784"}]}


def leaks(text: str) -> list[str]:
    """Return where a secret stands in a text."""
    places = [text.find(secret) for secret in (MARK, CARD, "4111 1111 1111 1111")]
    return [text[max(0, place - 80) : place + 60] for place in places if place >= 0]


async def dump(database_url: str) -> dict[str, str]:
    """Return the text of every table."""
    connection = await asyncpg.connect(database_url)
    try:
        tables = await connection.fetch(
            "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname = 'redrive'"
        )
        return {
            row["name"]: "\n".join(
                line["text"]
                for line in await connection.fetch(f"SELECT t::text AS text FROM {row['name']} AS t")  # noqa: S608
            )
            for row in tables
        }
    finally:
        await connection.close()


async def test_no_secret_reaches_a_table_a_log_or_an_alert(stack: StackInfo, tmp_path: Path) -> None:
    """Payload, error text, stack and the body of an HTTP error are redacted before anything is written or sent."""
    queue = f"queue-{uuid.uuid4().hex[:12]}"
    tenant = f"tenant-{uuid.uuid4().hex[:12]}"
    (tmp_path / "terminal").write_text(TEXT)
    async with Sink() as webhook, Sink(status=422, answer=TEXT) as service:
        worker = WorkerProcess(
            stack,
            tmp_path,
            REDRIVE_TASK_QUEUE=queue,
            REDRIVE_REDACTED_KEYS="member_no",
            REDRIVE_SERVICES=json.dumps({"shop": {"base_url": service.url, "token": SECRETS["our own"]}}),
            REDRIVE_ALERTS=f'{{"webhook_url": "{webhook.url}", "webhook_secret": "s"}}',
        )
        await worker.start()
        settings = Settings(temporal_address=stack.temporal_address, task_queue=queue)
        redrive = Redrive(await connect_temporal(settings), task_queue=queue)
        payload = {"folder": str(tmp_path), "url": service.url, "details": PAYLOAD}
        letters = []
        for step in ("fragile", "calling", "welcoming"):
            given = {"member_no": f"{MARK}-7786"} if step == "welcoming" else payload
            run_id = (await redrive.start(step, given, tenant=tenant)).run_id
            letters.append(LetterId(tenant=tenant, run_id=run_id, step=step))

        async def told() -> bool:
            return len(webhook.received) >= 3

        await eventually(told)
        for letter in letters:
            patch = {"member_no": f"{MARK}-7787"}
            answer = await redrive.dead_letters.replay(letter, requested_by="ada", reason="x", input_patch=patch)
            assert not answer.accepted
            await redrive.dead_letters.discard(letter, requested_by="ada", reason=f"it said {TEXT}")
        await worker.stop()
    tables = await dump(owner_url(stack))
    assert tenant in tables["redrive.dead_letters"]
    assert "[redacted]" in tables["redrive.dead_letters"]
    assert {name: leaks(text) for name, text in tables.items() if leaks(text)} == {}
    log = worker.log.read_text()
    assert "run.dead_lettered" in log
    assert leaks(log) == []
    bodies = b"\n".join(request.body for request in webhook.received).decode()
    assert "[redacted]" in bodies
    assert leaks(bodies) == []
