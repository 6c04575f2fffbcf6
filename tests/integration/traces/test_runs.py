"""One trace follows a run: from its caller over the workflow and each attempt to the service that is called."""

import contextlib
import time
from collections import Counter
from datetime import datetime, timedelta

import httpx
import pytest
from temporalio.client import Client
from temporalio.contrib.opentelemetry import TracingInterceptor
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from redrive.processes.temporal import workflow_runner
from redrive.starter.stack.ports import reserve
from redrive.worker import WORKFLOWS
from tests.conftest import eventually
from tests.integration.traces.collector import Span, named
from tests.integration.traces.conftest import TOKEN, Scene
from tests.unit.redrive.conftest import hang, reply

CARD = "card-number-that-nobody-may-see"
# How long an exporter waits for its collector: what does not wait for it ends sooner.
EXPORTER_PATIENCE = timedelta(seconds=40)


def only(spans: list[Span], name: str) -> Span:
    (found,) = (span for span in spans if span.name == name)
    return found


async def test_one_trace_follows_a_run(scene: Scene) -> None:
    """Start, workflow, both attempts and both calls are one trace; the attempt that failed is marked as failed."""
    worker = await scene.start("worker")
    run = await scene.run(card=CARD)
    (begun,) = await scene.collector.until("run.start", where=lambda span: span.name == "run.start")
    assert begun.facts == {
        "pipeline": "traced",
        "tenant_id": "default",
        "run_id": run["run_id"],
        "label.mission_id": "42",
    }
    spans = await scene.collector.until("CompleteWorkflow:ModuleRun", where=lambda span: span.trace == begun.trace)
    started = only(spans, "StartWorkflow:ModuleRun")
    scheduled = only(spans, "StartActivity:run_step")
    attempts = [span for span in spans if span.name == "RunActivity:run_step"]
    calls = [next(span for span in spans if span.parent == attempt.id) for attempt in attempts]

    assert (begun.parent, started.parent, scheduled.parent) == ("", begun.id, started.id)
    assert only(spans, "RunWorkflow:ModuleRun").parent == started.id
    assert {attempt.parent for attempt in attempts} == {scheduled.id}
    assert [span.service for span in (begun, *attempts)] == ["redrive", "redrive-worker", "redrive-worker"]
    assert [named(request.headers["traceparent"]) for request in scene.shop.received] == [
        (call.trace, call.id) for call in calls
    ]

    assert [(span.failed, span.facts["attempt"]) for span in attempts] == [(True, 1), (False, 2)]
    assert attempts[0].facts["category"] == "provider_5xx"
    assert attempts[0].facts | {"step": "charge", "pipeline": "traced", "tenant_id": "default"} == attempts[0].facts
    assert [(call.failed, call.facts["http_status"]) for call in calls] == [(True, 503), (False, 201)]
    assert {span.facts.get("label.mission_id") for span in (*attempts, *calls)} == {"42"}

    assert await scene.stop(worker) == 0
    lines = [line for line in await scene.log("worker") if line.get("run_id") == run["run_id"]]
    assert Counter(line["event"] for line in lines)["charge.asked"] == 2
    assert {line["trace_id"] for line in lines} == {begun.trace}


async def test_a_replayed_run_goes_on_with_its_trace(scene: Scene, temporal: Client) -> None:
    """Dead letter and replay are the run's trace, with a link to the operator's; and its history replays either way."""
    scene.shop.on("/charges", reply(400, {}), reply(201, {}))
    await scene.start("worker")
    run = await scene.run(code=5)
    letter = f"{run['run_id']}/charge"
    said = await scene.command("dlq", "replay", letter, "--reason", "it is back", "--yes", "--wait", "--json")
    assert said.code == 0, said.err
    (begun,) = await scene.collector.until("run.start", where=lambda span: span.name == "run.start")
    spans = await scene.collector.until("CompleteWorkflow:ModuleRun", where=lambda span: span.trace == begun.trace)
    reports = [span.id for span in spans if span.name == "RunActivity:report_exhausted"]
    assert only(spans, "dead_letter.record").parent in reports
    assert [span.facts["cycle"] for span in spans if span.name == "RunActivity:run_step"] == [1, 2]
    command = "SignalWorkflow:replay"
    (sent,) = await scene.collector.until(command, where=lambda span: span.name == command)
    assert [span.links for span in spans if span.name == "HandleSignal:replay"] == [[sent.trace]]
    assert sent.trace != begun.trace

    history = await temporal.get_workflow_handle(run["run_id"]).fetch_history()
    assert "_tracer-data" in history.to_json()
    for interceptors in ([], [TracingInterceptor()]):
        replayer = Replayer(
            workflows=WORKFLOWS,
            workflow_runner=workflow_runner(),
            data_converter=pydantic_data_converter,
            interceptors=interceptors,
        )
        assert (await replayer.replay_workflow(history)).replay_failure is None


async def test_no_secret_is_in_a_span(scene: Scene) -> None:
    """Neither the payload, nor the service's token, nor what the service said reaches the collector."""
    worker = await scene.start("worker")
    run = await scene.run(card=CARD)
    await scene.collector.until("CompleteWorkflow:ModuleRun")
    assert await scene.stop(worker) == 0
    assert run["run_id"].encode() in scene.collector.bytes
    for secret in (CARD, TOKEN, "is at its limit", "Traceback"):
        assert secret.encode() not in scene.collector.bytes
    assert [request.headers["authorization"] for request in scene.shop.received] == [f"Bearer {TOKEN}"] * 2


async def test_a_request_to_the_console_and_its_run_are_one_trace(scene: Scene) -> None:
    """The console goes on with its caller's trace, and the run with the console's; no query is told."""
    with contextlib.closing(reserve("a console", asked=None, preferred=8300)) as place:
        address = f"http://127.0.0.1:{place.number}"
    await scene.start("worker")
    await scene.start("console", REDRIVE_CONSOLE_ADDRESS=address.removeprefix("http://"))
    made = await scene.command("tokens", "create", "--role", "admin", "--tenant", "default", "--name", "traces")
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"authorization": f"Bearer {made.out.strip()}", "traceparent": caller}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=60) as client:
        await eventually(lambda: _answers(client), within=90)
        order = {"pipeline": "traced", "payload": {"card": CARD}}
        answer = await client.post("/api/v1/runs", params={"note": CARD}, json=order)
        refused = await client.post("/api/v1/runs", json={"pipeline": "none"}, headers={"traceparent": "nonsense"})
    assert (answer.status_code, refused.status_code) == (201, 422)
    spans = await scene.collector.until("CompleteWorkflow:ModuleRun", where=lambda span: span.trace == named(caller)[0])
    request = next(span for span in spans if span.facts.get("method") == "POST")
    assert (request.name, request.service) == ("console.request", "redrive-console")
    assert (request.trace, request.parent) == named(caller)
    assert (request.facts["route"], request.facts["http_status"]) == ("/api/v1/runs", 201)
    assert only(spans, "run.start").parent == request.id
    assert len([span for span in spans if span.name == "RunActivity:run_step"]) == 2
    assert CARD.encode() not in scene.collector.bytes
    assert made.out.strip().encode() not in scene.collector.bytes


async def _answers(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/readyz", headers={"traceparent": "none"})).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "silent"])
async def test_a_collector_that_is_away_neither_fails_nor_slows_a_run(scene: Scene, silent: bool) -> None:
    """Whether nobody listens at the collector's address or nobody answers: the run and the process end in time."""
    scene.collector.server.on("/v1/traces", hang)
    scene.command.variables["OTEL_EXPORTER_OTLP_TIMEOUT"] = str(EXPORTER_PATIENCE.seconds)
    if not silent:
        scene.command.variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:1"
    worker = await scene.start("worker")
    run = await scene.run(card=CARD)
    assert run["status"] == "SUCCESS"
    assert datetime.fromisoformat(run["closed_at"]) - datetime.fromisoformat(run["started_at"]) < EXPORTER_PATIENCE
    stopping = time.monotonic()
    assert await scene.stop(worker) == 0
    assert time.monotonic() - stopping < EXPORTER_PATIENCE.total_seconds()
    assert bool(scene.collector.spans) == silent
