"""Alerts: told once for failures that look alike, signed, and never in the way."""

import asyncio
import hashlib
import hmac
import json
import socket
from datetime import UTC, datetime, timedelta

import asyncpg
from pydantic import SecretStr
from temporalio.client import Client

from activities.dead_letters import DeadLetterActivities
from redrive import Registry, RunStatus
from redrive.contracts import Attempt, FailedCycle
from redrive.dead_letters import Exhausted, LetterId, LetterStatus, Verb
from redrive.errors import Category
from redrive.metrics import Metrics
from redrive.policy import STEP
from redrive.redaction import Redactor
from redrive.settings import AlertSettings, Settings
from store.database import Database
from tests.conftest import Running, WorkerFactory, eventually
from tests.integration.dead_letters.lab import Case, register
from tests.integration.dead_letters.sink import Sink


def case_of(running: Running) -> Case:
    url = running.settings.database_url
    assert url
    return Case(running.redrive, running.temporal, url.get_secret_value(), running.settings.task_queue)


async def test_alert_is_signed(worker: WorkerFactory, registry: Registry) -> None:
    """The receiver can prove who sent the body, and when."""
    register(registry)
    async with Sink() as sink:
        alerts = AlertSettings(webhook_url=sink.url, webhook_secret=SecretStr("shared"))
        async with worker(alerts=alerts) as running:
            case = await case_of(running).park("second")

            async def told() -> bool:
                return bool(sink.received)

            await eventually(told)
            await case.order(Verb.DISCARD)
    request = sink.received[0]
    signed = request.headers["x-redrive-timestamp"].encode() + b"." + request.body
    expected = hmac.new(b"shared", signed, hashlib.sha256).hexdigest()
    assert request.headers["x-redrive-signature"] == f"sha256={expected}"
    body = json.loads(request.body)
    assert (body["letter"]["run_id"], body["category"], body["count"]) == (case.run_id, "validation", 1)


async def test_runs_that_fail_alike_are_one_alert(worker: WorkerFactory, registry: Registry) -> None:
    """Twenty dead letters of one tenant with one cause: one message."""
    register(registry)
    async with Sink() as sink:
        async with worker(alerts=AlertSettings(webhook_url=sink.url)) as running:
            first = case_of(running)
            cases = [first, *(case_of(running) for _ in range(19))]
            for case in cases:
                case.tenant = first.tenant
            await asyncio.gather(*(case.park("second") for case in cases))

            async def told() -> bool:
                return bool(sink.received)

            await eventually(told)
            await asyncio.gather(*(case.order(Verb.DISCARD) for case in cases))
        assert len(sink.received) == 1


async def test_ten_minutes_later_the_count_is_told(temporal: Client, settings: Settings) -> None:
    """300 alike failures raise one alert; the next, after the window, tells how many there were meanwhile."""
    assert settings.database_url
    url, tenant = settings.database_url.get_secret_value(), settings.task_queue
    async with Database(url) as database:
        activities = DeadLetterActivities(
            temporal, database, Registry(), Redactor(), Metrics(), task_queue=settings.task_queue
        )
        recorded = [await activities.record_exhausted(_exhausted(tenant, number)) for number in range(300)]
        assert [result.alert.count for result in recorded if result.alert] == [1]
        again = await activities.record_exhausted(_exhausted(tenant, 0))
        assert again.alert == recorded[0].alert, "a record that is written again has the same answer"
        connection = await asyncpg.connect(url)
        await connection.execute(
            "UPDATE redrive.alerts SET sent_at = sent_at - interval '11 minutes' WHERE tenant = $1", tenant
        )
        await connection.close()
        late = await activities.record_exhausted(_exhausted(tenant, 300))
        assert late.alert
        assert late.alert.count == 300


def _exhausted(tenant: str, number: int) -> Exhausted:
    now = datetime.now(UTC)
    attempt = Attempt(attempt=1, at=now, category=Category.NETWORK, error_type="OSError", error="refused")
    return Exhausted(
        letter=LetterId(tenant=tenant, run_id=f"run-{tenant}-{number}", step="second"),
        pipeline="three",
        cycle=FailedCycle(
            step="second",
            cycle=1,
            category=Category.NETWORK,
            error_type="OSError",
            message=f"refused after {number} ms",
            attempts=[attempt],
        ),
        payload={"n": number},
        config=STEP,
        correlation_id="c",
        key=None,
        at=now,
    )


async def test_dead_webhook_holds_up_nothing(worker: WorkerFactory, registry: Registry) -> None:
    """The record is written and orders are carried out while alerts fail."""
    register(registry)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        async with worker(alerts=AlertSettings(webhook_url=url)) as running:
            case = await case_of(running).park("second")
            await case.works_still()
            await case.until_letter("second", LetterStatus.REPLAYED)


async def test_webhook_that_never_answers_holds_up_nothing(worker: WorkerFactory, registry: Registry) -> None:
    """An order is carried out while the alert still waits for its answer."""
    register(registry)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        async with worker(alerts=AlertSettings(webhook_url=url), shutdown_grace=timedelta(milliseconds=100)) as running:
            case = await case_of(running).park("second")
            case.mend()
            assert (await case.order(Verb.REPLAY)).accepted
            assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS
