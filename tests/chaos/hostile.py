"""`make hostile`: a whole stack under a corpus of hostile documents, by every way in, beside a quiet tenant.

Each document goes to the API with and without a token, onto the Redis stream, to RabbitMQ, into the start of a run and
as a signal to a dead letter queue. Counted at the end: processes that died, answers of 5xx, workflows that are
stuck, and how much longer a run of another tenant took meanwhile.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field

import aiormq
import httpx
import redis.asyncio as redis
from aiormq.abc import AbstractChannel
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import RawValue
from temporalio.converter import DataConverter

from redrive.bridges.rabbitmq.retry_message_pb2 import RetryMessage
from redrive.contracts import Broker, Workflow
from redrive.dead_letters import Verb
from redrive.starter.stack.state import StackInfo
from tests.acceptance.live import COMMAND, Up, environment, working_directory
from tests.hostile.documents import Document, around, corpus
from tests.queues import open_queues

NOISY, QUIET = "noisy", "quiet"
MEASURED = 15
STUCK_AFTER = 3
PAGES = ("/", "/dead-letters", "/runs", "/events", "/messages", "/audit", "/bulk")


@dataclass
class Seen:
    """What happened."""

    sent: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def answered(self, what: str, answer: httpx.Response) -> None:
        """Note an answer of the console."""
        self.sent[what] += 1
        self.statuses[answer.status_code] += 1
        if answer.status_code >= 500:
            self.failures.append(f"{what}: {answer.status_code} {answer.text[:200]}")


def token(up: Up, tenant: str) -> str:
    """Make a token of an admin."""
    words = ("tokens", "create", "--name", tenant, "--role", "admin", "--tenant", tenant)
    made = subprocess.run([COMMAND, *words], cwd=up.directory, env=environment(), capture_output=True, text=True)  # noqa: PLW1510
    return made.stdout.strip()


def console(info: StackInfo, secret: str | None = None) -> httpx.AsyncClient:
    """Return a client of the console."""
    headers = {"authorization": f"Bearer {secret}"} if secret else {}
    return httpx.AsyncClient(base_url=str(info.console), headers=headers, timeout=60)


async def latency(quiet: httpx.AsyncClient) -> float:
    """Return how long a run of the quiet tenant takes, from its start to its end."""
    started = time.monotonic()
    answer = await quiet.post("/api/v1/runs", json={"pipeline": "hello", "payload": {"name": "Ada"}})
    answer.raise_for_status()
    place = f"/api/v1/runs/{answer.json()['run_id']}"
    while (await quiet.get(place)).json()["status"] not in {"SUCCESS", "FAILED"}:  # noqa: ASYNC110  # another process
        await asyncio.sleep(0.02)
    return time.monotonic() - started


async def over_http(info: StackInfo, secret: str, document: Document, seen: Seen) -> None:
    """Send a document to the API, without and with a token, and a part of it to the pages."""
    headers = {"content-type": "application/json"}
    start = around("payload", document.data, pipeline="hello")
    async with console(info) as stranger, console(info, secret) as admin:
        seen.answered("stranger", await stranger.post("/api/v1/runs", content=document.data, headers=headers))
        for what, path, body in (
            ("body", "/api/v1/runs", document.data),
            ("payload", "/api/v1/runs", start),
            ("bulk plan", "/api/v1/bulk/plan", around("selection", document.data, verb="replay")),
        ):
            seen.answered(what, await admin.post(path, content=body, headers=headers))
        part = document.data[:200].decode("utf-8", "replace")
        for page in PAGES:
            parameters = {"q": part, "cursor": part, "status": part[:20], "since": part[:30]}
            seen.answered("page", await admin.get(page, params=parameters))


async def over_temporal(client: Client, info: StackInfo, queue: str, document: Document, seen: Seen) -> None:
    """Start a run by hand with a document, and send it to a dead letter queue."""
    argument = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=document.data))
    await client.start_workflow(Workflow.MODULE_RUN, argument, id=f"hostile-{uuid.uuid4()}", task_queue=info.task_queue)
    await client.get_workflow_handle(queue).signal(Verb.REPLAY, argument)
    seen.sent["start by hand"] += 1
    seen.sent["signal"] += 1


async def over_brokers(stream: redis.Redis, channel: AbstractChannel, document: Document, seen: Seen) -> None:
    """Put a document onto the Redis stream and into the queue of retries, as it is and inside of a good message."""
    names = {"dedupeKey": uuid.uuid4().hex, "type": "hello", "source": "hostile", "tenant": NOISY}
    envelope = around("payload", document.data, **names)
    for body in (document.data, envelope):
        await stream.xadd("redrive.events", {"event": body})
    retry = RetryMessage(message_id=str(uuid.uuid4()), original_payload=document.data, original_queue="hostile.work")
    for body in (document.data, retry.SerializeToString()):
        await channel.basic_publish(body, routing_key="retry.scheduled")
    seen.sent["redis"] += 2
    seen.sent["rabbitmq"] += 2


async def park(admin: httpx.AsyncClient, client: Client, info: StackInfo) -> str:
    """Start a run that parks at once, and return the id of the queue that it reports to."""
    await admin.post("/api/v1/runs", json={"pipeline": "order", "payload": {"item": "lamp", "quantity": 1}})
    while not (await admin.get("/api/v1/workflow-dlq")).json()["dead_letters"]:  # noqa: ASYNC110  # it happens in another process
        await asyncio.sleep(0.2)
    queue, *_ = await open_queues(client, NOISY, info.task_queue)
    return queue.id


async def stuck(client: Client) -> list[str]:
    """Return the open workflows whose workflow task fails over and over."""
    found = []
    async for each in client.list_workflows("ExecutionStatus = 'Running'"):
        description = (await client.get_workflow_handle(each.id).describe()).raw_description
        if description.pending_workflow_task.attempt > STUCK_AFTER:
            found.append(each.id)
    return found


async def until_taken(client: Client, stream: redis.Redis) -> None:
    """Wait until the bridge holds nothing and no run by hand is open."""
    while True:
        pending = (await stream.xpending("redrive.events", "redrive"))["pending"]
        lag = (await stream.xinfo_groups("redrive.events"))[0]["lag"]
        by_hand = await client.count_workflows("ExecutionStatus = 'Running' AND WorkflowId STARTS_WITH 'hostile-'")
        if not pending and not lag and not by_hand.count:
            return
        await asyncio.sleep(1)


async def attack(up: Up, info: StackInfo, seen: Seen) -> dict[str, float]:
    """Send the whole corpus by all ways, and measure the quiet tenant before and meanwhile."""
    noisy, quiet = token(up, NOISY), token(up, QUIET)
    client = await Client.connect(info.temporal_address, data_converter=DataConverter.default)
    stream = redis.from_url(info.brokers[Broker.REDIS].get_secret_value())
    connection = await aiormq.connect(info.brokers[Broker.RABBITMQ].get_secret_value())
    channel = await connection.channel()
    await channel.queue_declare("hostile.work", durable=True)
    async with console(info, noisy) as admin, console(info, quiet) as other:
        queue = await park(admin, client, info)
        before = [await latency(other) for _ in range(MEASURED)]
        meanwhile: list[float] = []

        async def measure() -> None:
            while True:
                meanwhile.append(await latency(other))
                await asyncio.sleep(0.5)

        measuring = asyncio.create_task(measure())
        for document in corpus():
            await over_http(info, noisy, document, seen)
            await over_temporal(client, info, queue, document, seen)
            await over_brokers(stream, channel, document, seen)
        measuring.cancel()
        await asyncio.gather(measuring, return_exceptions=True)
        async with asyncio.timeout(300):
            await until_taken(client, stream)
    by_status = Counter[str]()
    async for each in client.list_workflows("WorkflowId STARTS_WITH 'hostile-'"):
        by_status[WorkflowExecutionStatus(each.status or 0).name] += 1
    seen.failures += [f"stuck: {each}" for each in await stuck(client)]
    print("runs started by hand:", dict(by_status))
    await connection.close()
    await stream.aclose()
    return {"before": statistics.median(before), "meanwhile": statistics.median(meanwhile)}


def main() -> int:
    """Run it and print the figures; the exit code says whether all of it held."""
    seen = Seen()
    with working_directory() as directory, Up(directory, "--with", "redis,rabbitmq") as up:
        info = up.info
        took = asyncio.run(attack(up, info, seen))
        died = {name for name, pid in info.children.items() if up.info.children.get(name) != pid}
    print("sent:", json.dumps(seen.sent), "statuses:", dict(sorted(seen.statuses.items())))
    print("\n".join(seen.failures[:20]))
    print(f"documents {seen.sent['body']}, processes that died {sorted(died)}, 5xx or stuck {len(seen.failures)}")
    ratio = took["meanwhile"] / took["before"]
    print(f"quiet tenant {took['before']:.2f} s before, {took['meanwhile']:.2f} s meanwhile ({ratio:.2f}x)")
    return 1 if died or seen.failures else 0


if __name__ == "__main__":
    sys.exit(main())
