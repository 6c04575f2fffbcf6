"""What the two servers do differently: the same probes on the embedded server and on the cluster, side by side.

Then how long the cluster refuses work when it loses a node, or PostgreSQL.
"""

import asyncio
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

from temporalio import workflow
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateRPCTimeoutOrCancelledError, WorkflowUpdateStage
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from redrive.connection import connect_temporal
from redrive.settings import Settings
from redrive.starter.stack.stack import Stack
from tests.bench.server_queues import QUEUE, Probe, fail_once, listed, measured, work
from tests.cluster.case import PATIENCE, side_by_side
from tests.cluster.cluster import Cluster

_RUNS = 20
_IN_FLIGHT = 20
_UPDATES = 2100
_UPDATES_AT_ONCE = 5
# More than one for each shard, so that every shard is asked.
_STARTS = 200
_CALL = timedelta(seconds=3)
Ask = Callable[[Client], Awaitable[str]]
Act = Callable[[], Awaitable[None]]


@workflow.defn
class Listener:
    """Takes updates: some wait until the end, others are answered at once, with what the history says of its length."""

    def __init__(self) -> None:
        self._over = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self._over)
        await workflow.wait_condition(workflow.all_handlers_finished)

    @workflow.signal
    def end(self) -> None:
        """Let it end."""
        self._over = True

    @workflow.update
    async def wait(self) -> None:
        """Wait until the end."""
        await workflow.wait_condition(lambda: self._over)

    @workflow.update
    async def is_long(self) -> bool:
        """Tell whether Temporal advises to cut the history short."""
        return workflow.info().is_continue_as_new_suggested()


async def run_differences(cluster: Cluster) -> list[str]:
    """Probe both, and print what each answers."""
    async with _embedded() as embedded:
        ours = await cluster.client()
        print("  | | embedded | cluster |", flush=True)
        for name, ask in PROBES.items():
            print(f"  | {name} | {await ask(embedded)} | {await ask(ours)} |", flush=True)
    await _losses(cluster)
    return []


@asynccontextmanager
async def _embedded() -> AsyncIterator[Client]:
    with tempfile.TemporaryDirectory(prefix="redrive-cluster-") as directory:
        # PostgreSQL does not run as root: its account has to get through here.
        Path(directory).chmod(0o711)
        async with Stack(Settings(), state_dir=Path(directory) / "state", workers=0) as stack:
            yield await connect_temporal(Settings(temporal_address=stack.info.temporal_address))


@asynccontextmanager
async def _worker(client: Client) -> AsyncIterator[None]:
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[Probe, Listener],
        activities=[work, fail_once],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        yield


async def _times(kind: str, count: int, client: Client) -> str:
    async with _worker(client):
        await measured(client, kind, count, 3)
        return await measured(client, kind, count, _RUNS)


async def _retention(client: Client) -> str:
    answer = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    return f"{answer.config.workflow_execution_retention_ttl.ToTimedelta().total_seconds() / 3600:.0f} h"


async def _eager(client: Client) -> str:
    """Start with a worker of the same client at hand, and ask for the first workflow task with the answer."""
    async with _worker(client):
        handles = [
            await client.start_workflow(
                Probe.run, args=["work", 0], id=uuid.uuid4().hex, task_queue=QUEUE, request_eager_start=True
            )
            for _ in range(_RUNS)
        ]
        await asyncio.gather(*(handle.result() for handle in handles))
    # As the SDK notes it; it has no public name.
    return f"{sum(getattr(handle, '__temporal_eagerly_started', False) for handle in handles)} of {_RUNS} starts"


async def _long_id(length: int, client: Client) -> str:
    try:
        await client.start_workflow(
            Probe.run, args=["work", 0], id="i" * length, task_queue="nobody", rpc_timeout=_CALL
        )
    except RPCError as error:
        return error.status.name
    return "accepted"


@asynccontextmanager
async def _listener(client: Client) -> AsyncIterator[WorkflowHandle[Listener, None]]:
    async with _worker(client):
        handle = await client.start_workflow(Listener.run, id=uuid.uuid4().hex, task_queue=QUEUE)
        yield handle
        await handle.signal(Listener.end)
        await handle.result()


async def _updates_in_flight(client: Client) -> str:
    async with _listener(client) as handle:

        async def one() -> str:
            try:
                await handle.start_update(Listener.wait, wait_for_stage=WorkflowUpdateStage.ACCEPTED, rpc_timeout=_CALL)
            except RPCError as error:
                return error.status.name
            except WorkflowUpdateRPCTimeoutOrCancelledError:
                return "no answer"
            return "accepted"

        return _counted(await asyncio.gather(*(one() for _ in range(_IN_FLIGHT))))


async def _updates_in_all(client: Client) -> str:
    """Send updates until they are refused, and count when Temporal first advises to cut the history short."""
    answered: list[bool] = []
    refused: list[str] = []
    async with _listener(client) as handle:

        async def one(_: int) -> None:
            if refused:
                return
            try:
                answered.append(await handle.execute_update(Listener.is_long, rpc_timeout=10 * _CALL))
            except RPCError as error:
                refused.append(error.status.name)

        await side_by_side(_UPDATES_AT_ONCE, range(_UPDATES), one)
    advised = f"advised to continue as new after {answered.index(True)}" if True in answered else "never advised"
    return f"{len(answered)} answered, then {_counted(refused) or 'none refused'}; {advised}"


def _counted(what: list[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(Counter(what).items()))


PROBES: dict[str, Ask] = {
    "one step, ms (p95)": partial(_times, "work", 1),
    "retry after 50 ms": partial(_times, "retry", 1),
    "timer of 50 ms": partial(_times, "timer", 1),
    "from start to list": lambda client: listed(client, _RUNS),
    "retention": _retention,
    "eager starts": _eager,
    "a workflow id of 255": partial(_long_id, 255),
    "of 256": partial(_long_id, 256),
    f"{_IN_FLIGHT} updates in flight": _updates_in_flight,
    f"{_UPDATES} updates in all": _updates_in_all,
}


async def _losses(cluster: Cluster) -> None:
    """Take something away, and start runs on every shard through the other node until each was accepted."""
    second, cut = cluster.nodes[1], ExitStack()

    async def cut_off() -> None:
        cut.enter_context(cluster.network.node_alone(1))

    async def mend() -> None:
        cut.close()

    await _loss(cluster, "nothing is lost", _nothing, _nothing)
    await _loss(cluster, "node 2 is stopped", second.stop, second.start)
    await _loss(cluster, "node 2 is killed", second.kill, second.start)
    if cluster.network.can_cut:
        await _loss(cluster, "node 2 is cut off", cut_off, mend)
    await _loss(cluster, "PostgreSQL is restarted", cluster.postgres.restart, _nothing)


async def _nothing() -> None:
    """Do nothing."""


async def _loss(cluster: Cluster, name: str, take: Act, give_back: Act) -> None:
    client = await connect_temporal(Settings(temporal_address=cluster.node_address(0)))
    began, took = time.perf_counter(), []

    async def one() -> None:
        await _insist_on_start(client)
        took.append(time.perf_counter() - began)

    await asyncio.gather(take(), *(one() for _ in range(_STARTS)))
    took.sort()
    half, last = took[_STARTS // 2], took[-1]
    print(f"  {name}: of {_STARTS} starts half were accepted after {half:.1f} s, all after {last:.1f} s", flush=True)
    await give_back()


async def _insist_on_start(client: Client) -> None:
    name = uuid.uuid4().hex
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await client.start_workflow(
                    Probe.run,
                    args=["work", 0],
                    id=name,
                    task_queue="nobody",
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                    rpc_timeout=_CALL,
                )
            except RPCError:
                await asyncio.sleep(0.2)
            else:
                return
