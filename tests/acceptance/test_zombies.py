"""A worker is frozen in the middle of a step, another one takes over, and the first goes on as if nothing had been."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import pytest
from temporalio.client import Client

from redrive import Category, Redrive, Registry
from redrive.connection import database_url
from redrive.contracts import DEFAULT_TENANT
from redrive.keys import step_key
from redrive.postgres.database import open_pool
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from redrive.store.runs import Execution, begin_step
from tests.conftest import eventually
from tests.integration.dead_letters.processes import WorkerProcess

MODULES = "tests.acceptance.stubborn"
PIPELINE, STEP = "stubborn", "pay"
# A heartbeat is missed after 6 s.
PATIENCE = 90.0


class Cashier:
    """A service that numbers the requests, and answers each when it is told to."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.address = ""
        self._told = [asyncio.Event(), asyncio.Event()]

    def answer(self, number: int) -> None:
        """Let the request with this number have its answer."""
        self._told[number - 1].set()

    async def until_asked(self, times: int) -> None:
        """Wait until so many requests have come."""

        async def asked() -> bool:
            return len(self.keys) == times

        await eventually(asked, within=PATIENCE)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Self]:
        """Serve on a free port; `address` says where."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.address = f"http://{host}:{port}"
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        await reader.readexactly(int(headers["content-length"]))
        self.keys.append(headers["idempotency-key"])
        number = len(self.keys)
        await self._told[number - 1].wait()
        body = json.dumps({"receipt": number})
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        writer.write(f"{head}connection: close\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()


@pytest.fixture
async def cashier() -> AsyncIterator[Cashier]:
    """The service that the step calls."""
    async with Cashier().serving() as cashier:
        yield cashier


@pytest.fixture
async def workers(
    stack: StackInfo, settings: Settings, tmp_path: Path, cashier: Cashier
) -> AsyncIterator[tuple[WorkerProcess, WorkerProcess]]:
    """Two workers of one task queue. None is started yet; both are ended, frozen or not."""
    environment = {
        "REDRIVE_MODULES": MODULES,
        "REDRIVE_TASK_QUEUE": settings.task_queue,
        "REDRIVE_SERVICES": json.dumps({"cashier": {"base_url": cashier.address}}),
        # With its one place taken, a worker asks for no other step: none is handed to a process that is frozen.
        "REDRIVE_MAX_CONCURRENT_STEPS": "1",
        # A slow machine may keep it frozen for longer than a module may block.
        "REDRIVE_STALL_LIMIT": "PT10M",
    }
    both = tuple(WorkerProcess(stack, tmp_path / name, **environment) for name in ("frozen", "other"))
    yield both[0], both[1]
    for worker in both:
        await worker.kill()


async def _until_said(worker: WorkerProcess, event: str) -> None:
    """Wait until a worker's log has an event."""

    async def said() -> bool:
        return f'"event": "{event}"' in worker.log.read_text()

    await eventually(said, within=PATIENCE)


@pytest.mark.parametrize("zombie_comes", ["after the newer result", "before the newer result"])
async def test_a_frozen_worker_that_goes_on_cannot_overwrite_a_newer_result(
    *,
    workers: tuple[WorkerProcess, WorkerProcess],
    cashier: Cashier,
    settings: Settings,
    temporal: Client,
    zombie_comes: str,
) -> None:
    """The newer result stands, in the table and in the run; the zombie is refused, and says so."""
    frozen, other = workers
    redrive = Redrive(temporal, task_queue=settings.task_queue, registry=Registry())
    await frozen.start()
    run_id = (await redrive.start(PIPELINE, {})).run_id
    await cashier.until_asked(1)
    await other.start()
    frozen.freeze()
    await cashier.until_asked(2)
    if zombie_comes == "after the newer result":
        cashier.answer(2)
        await _until_said(other, "step.succeeded")
    frozen.thaw()
    await _until_said(frozen, "pay.goes_on")
    cashier.answer(1)
    await _until_said(frozen, "step.superseded")
    cashier.answer(2)
    result = await redrive.result(run_id)

    assert result.output == {"receipt": 2}
    assert await _stored(settings, run_id) == {"receipt": 2}
    assert cashier.keys == [step_key(run_id, STEP, "charge")] * 2
    assert "step.succeeded" not in frozen.log.read_text()
    (lost,) = result.steps[0].attempts
    assert (lost.attempt, lost.category, lost.error_type) == (1, Category.TIMEOUT, "Interrupted")


async def _stored(settings: Settings, run_id: str) -> object:
    """Return the result that answers the next execution of the step."""
    later = Execution(DEFAULT_TENANT, step_key(run_id, STEP, "run"), run_id, STEP, cycle=2, attempt=1)
    async with await open_pool(database_url(settings), max_size=1) as pool:
        return (await begin_step(pool, later)).output
