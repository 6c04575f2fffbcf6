"""Alerts: told once for failures that look alike, signed, and never in the way."""

import asyncio
import hashlib
import hmac
import json
import socket
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
from pydantic import SecretStr
from temporalio.client import Client

from redrive import Registry, RunStatus
from redrive.activities.alerts import AlertWorkflows
from redrive.activities.dead_letters import LetterRecords
from redrive.categories import Category
from redrive.connection import owner_database_url
from redrive.contracts import ALERT_WINDOW, Attempt, FailedCycle, Workflow
from redrive.dead_letters import AlertInput, Exhausted, LetterId, LetterStatus, Verb
from redrive.metrics import Metrics
from redrive.policy import STEP
from redrive.postgres.database import Database
from redrive.redaction.redactor import Redactor
from redrive.settings import AlertSettings, Settings
from redrive.store.alerts import last_sent
from tests.conftest import Running, WorkerFactory, eventually
from tests.integration.dead_letters.lab import Case, register
from tests.integration.dead_letters.sink import Received, Sink


def case_of(running: Running) -> Case:
    url = owner_database_url(running.settings)
    return Case(running.redrive, running.temporal, url, running.settings.task_queue)


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
            await case.command(Verb.DISCARD)
    request = sink.received[0]
    signed = request.headers["x-redrive-timestamp"].encode() + b"." + request.body
    expected = hmac.new(b"shared", signed, hashlib.sha256).hexdigest()
    assert request.headers["x-redrive-signature"] == f"sha256={expected}"
    body = json.loads(request.body)
    assert (body["letter"]["run_id"], body["category"], body["count"]) == (case.run_id, "validation", 1)


async def test_runs_that_fail_alike_are_one_alert(worker: WorkerFactory, registry: Registry) -> None:
    """Twenty dead letters of one tenant with one cause: one message at once, and one for those that it held back.

    The second is sent although no other failure comes and all the letters are closed by then.
    """
    register(registry)
    async with Sink() as sink:
        alerts = AlertSettings(webhook_url=sink.url, window=timedelta(seconds=4))
        async with worker(alerts=alerts) as running:
            first = case_of(running)
            cases = [first, *(case_of(running) for _ in range(19))]
            for case in cases:
                case.tenant = first.tenant
            await asyncio.gather(*(case.park("second") for case in cases))
            await asyncio.gather(*(case.command(Verb.DISCARD) for case in cases))

            async def all_told() -> bool:
                told: list[int] = [json.loads(request.body)["count"] for request in sink.received]
                return sum(told) == len(cases)

            await eventually(all_told)
        assert json.loads(sink.received[0].body)["count"] == 1
        # A slow machine takes more than one window to park them all.
        assert len(sink.received) < len(cases) / 2


async def test_count_is_told_once_whoever_asks_again(temporal: Client, settings: Settings) -> None:
    """300 alike failures are one alert and one follow-up; a later failure tells nothing twice."""
    assert settings.database_url
    url, tenant = settings.database_url.get_secret_value(), settings.task_queue
    async with Database(url) as database:
        workflows = AlertWorkflows(temporal, database, task_queue=settings.task_queue, window=ALERT_WINDOW)
        records = LetterRecords(database, workflows, Redactor(), Metrics())
        for number in (*range(300), 0):
            await records.record_exhausted(_exhausted(tenant, number))
        now, later = await _alerts(temporal, settings)
        assert (now.alert.count, now.since) == (1, None)
        assert later.since == await last_sent(await database.pool(), tenant, now.alert.fingerprint)
        assert [await workflows.take_suppressed(later) for _ in range(2)] == [299, 299]
        connection = await asyncpg.connect(owner_database_url(settings))
        await connection.execute(
            "UPDATE redrive.alerts SET sent_at = sent_at - interval '11 minutes' WHERE tenant = $1", tenant
        )
        await connection.close()
        await records.record_exhausted(_exhausted(tenant, 300))
        assert [given.alert.count for given in await _alerts(temporal, settings, 3) if given.since is None] == [1, 1]


async def _alerts(temporal: Client, settings: Settings, count: int = 2) -> list[AlertInput]:
    """Wait for the alerts of a queue without a worker, and return them, those first that are due now."""
    query = f"WorkflowType = '{Workflow.RAISE_ALERT}' AND TaskQueue = '{settings.task_queue}'"

    async def listed() -> list[str] | None:
        found = [each.id async for each in temporal.list_workflows(query)]
        return found if len(found) == count else None

    given = [await _given(temporal, each) for each in await eventually(listed)]
    return sorted(given, key=lambda each: each.since is not None)


async def _given(temporal: Client, workflow_id: str) -> AlertInput:
    """Return what a workflow was started with; one that is due later is due when it says."""
    handle = temporal.get_workflow_handle(workflow_id)
    started = (await handle.fetch_history()).events[0].workflow_execution_started_event_attributes
    given: AlertInput
    [given] = await temporal.data_converter.decode(started.input.payloads, [AlertInput])
    delay = started.first_workflow_task_backoff.ToTimedelta()
    assert (delay > timedelta(0)) is (given.since is not None)
    return given


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
        revision=1,
        config=STEP,
        correlation_id="c",
        key=None,
        started_at=now,
        at=now,
    )


async def test_alert_outlives_its_letter(worker: WorkerFactory, registry: Registry) -> None:
    """A channel that is back after the letter was closed still gets the alert."""
    register(registry)
    async with Sink(status=503) as sink, worker(alerts=AlertSettings(webhook_url=sink.url)) as running:
        case = await case_of(running).park("second")
        await case.command(Verb.DISCARD)
        await case.until_letter("second", LetterStatus.DISCARDED)
        refused = len(sink.received)

        async def tried_again() -> bool:
            return len(sink.received) > refused

        sink.status = 204
        await eventually(tried_again)


async def test_dead_webhook_holds_up_nothing(worker: WorkerFactory, registry: Registry) -> None:
    """The record is written and commands are carried out while alerts fail."""
    register(registry)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        async with worker(alerts=AlertSettings(webhook_url=url)) as running:
            case = await case_of(running).park("second")
            await case.works_still()
            await case.until_letter("second", LetterStatus.REPLAYED)


async def test_webhook_that_never_answers_holds_up_nothing(worker: WorkerFactory, registry: Registry) -> None:
    """A command is carried out while the alert still waits for its answer."""
    register(registry)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        async with worker(alerts=AlertSettings(webhook_url=url), shutdown_grace=timedelta(milliseconds=100)) as running:
            case = await case_of(running).park("second")
            case.mend()
            assert (await case.command(Verb.REPLAY)).accepted
            assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS


async def test_sentry_gets_the_alert_as_an_event(worker: WorkerFactory, registry: Registry) -> None:
    """Alike failures are one issue there, and the event says which dead letter it is about."""
    register(registry)
    async with Sink(status=200) as sink, worker(alerts=AlertSettings(sentry_dsn=_dsn(sink.url))) as running:
        case = await case_of(running).park("second")
        await eventually(_count(sink, 1))
        await case.command(Verb.DISCARD)
    request = sink.received[0]
    assert request.headers["x-sentry-auth"].startswith("Sentry sentry_key=public, ")
    event = _event(request)
    assert (event["level"], event["message"]) == ("error", "second: validation: the service is broken")
    assert event["contexts"]["dead letter"]["letter"]["run_id"] == case.run_id
    assert event["fingerprint"][0] == case.tenant


async def test_sentry_that_is_down_is_tried_again_and_the_webhook_told_once(
    worker: WorkerFactory, registry: Registry
) -> None:
    """No channel waits for the other, and the event has one id however often it is sent."""
    register(registry)
    async with Sink(status=503) as sentry, Sink() as hook:
        alerts = AlertSettings(sentry_dsn=_dsn(sentry.url), webhook_url=hook.url)
        async with worker(alerts=alerts) as running:
            case = await case_of(running).park("second")
            await eventually(_count(hook, 1))
            await eventually(_count(sentry, 2))
            sentry.status = 200
            tried = len(sentry.received)
            await eventually(_count(sentry, tried + 1))
            await case.command(Verb.DISCARD)
    assert len({_event(request)["event_id"] for request in sentry.received}) == 1
    assert len(hook.received) == 1


async def test_sentry_that_never_answers_holds_up_nothing(worker: WorkerFactory, registry: Registry) -> None:
    """The worker's loop goes on, and a command is carried out, while the alert still waits for its answer."""
    register(registry)
    loop = asyncio.get_running_loop()

    def accepted(silent: socket.socket) -> socket.socket:
        connection, _ = silent.accept()
        # Less than Sentry's own SDK waits at most.
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(timeout=4.5)
        return connection

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        alerts = AlertSettings(sentry_dsn=_dsn(f"http://127.0.0.1:{silent.getsockname()[1]}/"))
        async with worker(alerts=alerts, shutdown_grace=timedelta(milliseconds=100)) as running:
            case = await case_of(running).park("second")
            with await asyncio.to_thread(accepted, silent):
                case.mend()
                assert (await case.command(Verb.REPLAY)).accepted
                assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS


def _dsn(url: str) -> SecretStr:
    return SecretStr(url.replace("http://", "http://public@") + "1")


def _event(request: Received) -> Any:
    """Return the event of an envelope: lines of JSON, the third of which is the event."""
    return json.loads(request.body.split(b"\n")[2])


def _count(sink: Sink, count: int) -> Callable[[], Awaitable[bool]]:
    async def are_there() -> bool:
        return len(sink.received) >= count

    return are_there
