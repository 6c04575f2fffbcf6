"""Messages bring their traces along: an event's run goes on with it, and a batch of retries names those it holds."""

import json
import uuid
from typing import Any

from pamqp import commands

from tests.conftest import eventually
from tests.integration.bridges.conftest import rabbitmq, rabbitmq_programs
from tests.integration.bridges.rabbit import RabbitServer, retry_message
from tests.integration.events.conftest import valkey
from tests.integration.events.valkey import Valkey
from tests.integration.traces.collector import named
from tests.integration.traces.conftest import Scene

__all__ = ["rabbitmq", "rabbitmq_programs", "valkey"]

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, SENDER = named(CALLER)


async def test_the_run_of_an_event_goes_on_with_its_trace(scene: Scene, valkey: Valkey) -> None:
    """An entry that names a trace becomes a run of that trace; one that does not begins a new one."""
    await scene.start("worker")
    await scene.start(
        *("bridge", "redis"),
        REDIS_URL=valkey.url,
        REDRIVE_EVENTS_STREAM="traced",
        REDRIVE_EVENTS_PIPELINES=json.dumps({"*": "traced"}),
    )
    for fields in ({"traceparent": CALLER}, {}):
        event = {"dedupeKey": uuid.uuid4().hex, "type": "card.charged", "source": "tests", "payload": {}}
        await valkey.client.xadd("traced", {"event": json.dumps(event), **fields})
    theirs = await scene.collector.until("CompleteWorkflow:ModuleRun", where=lambda span: span.trace == TRACE)
    (taken,) = (span for span in theirs if span.name == "event.take")
    assert (taken.service, taken.parent) == ("redrive-bridge", SENDER)
    assert taken.facts | {"source": "traced", "event_type": "card.charged", "pipeline": "traced"} == taken.facts
    (begun,) = (span for span in theirs if span.name == "run.start")
    assert (begun.parent, begun.facts["run_id"]) == (taken.id, taken.facts["run_id"])
    ours = await scene.collector.until("CompleteWorkflow:ModuleRun", where=lambda span: span.trace != TRACE)
    assert [span.parent for span in ours if span.name == "event.take"] == [""]


async def test_a_retry_is_told_by_the_batches_that_it_came_and_went_with(scene: Scene, rabbitmq: RabbitServer) -> None:
    """The batch that was stored has a link to the message's trace; the message goes on with that of its sending."""
    mark = uuid.uuid4().hex[:8]
    incoming, work = f"retry.{mark}", f"work.{mark}"
    await rabbitmq.declare(incoming, work)
    await scene.start(
        *("bridge", "rabbitmq", "--tenant", f"traces-{mark}"),
        RABBITMQ_URL=rabbitmq.url,
        HTTP_PORT="0",
        SERVICE_NAME=f"retry-{mark}",
        RETRY_QUEUE=incoming,
        MANUAL_REVIEW_QUEUE=f"review.{mark}",
        BASE_DELAY_MS="10",
    )
    properties = commands.Basic.Properties(delivery_mode=2, headers={"traceparent": CALLER})
    async with rabbitmq.channel() as channel:
        await channel.basic_publish(retry_message(1, work, seed=mark), routing_key=incoming, properties=properties)

    async def came() -> list[Any]:
        return await rabbitmq.take(work)

    (message,) = await eventually(came)
    spans = await scene.collector.until("retry.store", "retry.send")
    (stored,) = (span for span in spans if span.name == "retry.store")
    (sent,) = (span for span in spans if span.name == "retry.send")
    assert (stored.links, stored.parent, sent.parent) == ([TRACE], "", "")
    assert stored.facts == {"count": 1, "source": incoming, "tenant_id": f"traces-{mark}"}
    assert sent.facts == {"count": 1, "tenant_id": f"traces-{mark}"}
    assert named(message.header.properties.headers["traceparent"]) == (sent.trace, sent.id)
