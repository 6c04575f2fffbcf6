"""Nothing is lost between the failure and the record, whoever dies: PostgreSQL, a worker, both."""

import contextlib
import os
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from redrive import Redrive, RunStatus
from redrive.connection import connect_temporal
from redrive.dead_letters import LetterId
from redrive.settings import Settings
from redrive.starter.stack.stack import Stack
from tests.conftest import eventually, owner_url
from tests.integration.dead_letters.processes import WorkerProcess, stopped
from tests.queues import open_queues


@pytest.fixture(scope="module")
async def own_stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A stack that tests may hurt."""
    async with Stack(Settings(), state_dir=tmp_path_factory.mktemp("own"), workers=0) as running:
        yield running


class Scene:
    """A worker process, a client, and a folder whose files say how the step behaves."""

    def __init__(self, stack: Stack, folder: Path, redrive: Redrive, worker: WorkerProcess, task_queue: str) -> None:
        self.stack = stack
        self.task_queue = task_queue
        self.folder = folder
        self.redrive = redrive
        self.worker = worker
        self.run_id = ""

    @property
    def letter(self) -> LetterId:
        return LetterId(tenant="default", run_id=self.run_id, step="fragile")

    def fail(self, how: str | None) -> None:
        for name in ("terminal", "transient"):
            (self.folder / name).unlink(missing_ok=True)
        if how:
            (self.folder / how).write_text("broken")

    async def start(self) -> None:
        self.run_id = (await self.redrive.start("fragile", {"folder": str(self.folder)})).run_id

    async def until(self, status: RunStatus) -> None:
        async def has() -> bool:
            return (await self.redrive.status(self.run_id)).status is status

        await eventually(has, within=60)

    async def until_record(self, status: str) -> dict[str, Any]:
        async def has() -> dict[str, Any] | None:
            try:
                rows = await self.rows("SELECT * FROM redrive.dead_letters WHERE run_id = $1")
            except (OSError, asyncpg.PostgresError):
                return None
            assert len(rows) <= 1
            return rows[0] if rows and rows[0]["status"] == status else None

        return await eventually(has, within=60)

    async def actions(self) -> list[str]:
        return [row["action"] for row in await self.rows("SELECT * FROM redrive.audit_log WHERE run_id = $1")]

    async def rows(self, query: str) -> list[dict[str, Any]]:
        connection = await asyncpg.connect(owner_url(self.stack.info))
        try:
            return [dict(row) for row in await connection.fetch(query, self.run_id)]
        finally:
            await connection.close()


@pytest.fixture
async def scene(own_stack: Stack, tmp_path: Path) -> AsyncIterator[Scene]:
    """A worker of its own on the stack that may be hurt."""
    queue = f"queue-{uuid.uuid4().hex[:12]}"
    info = own_stack.info
    settings = Settings(temporal_address=info.temporal_address, database_url=info.database_url, task_queue=queue)
    worker = WorkerProcess(info, tmp_path, REDRIVE_TASK_QUEUE=queue)
    await worker.start()
    redrive = Redrive(await connect_temporal(settings), task_queue=queue)
    try:
        yield Scene(own_stack, tmp_path, redrive, worker, queue)
    finally:
        await worker.stop()


async def test_record_is_written_when_postgres_is_back(scene: Scene) -> None:
    """While PostgreSQL does not answer the run parks; afterwards there is one record."""
    scene.fail("terminal")
    with stopped(scene.stack.info.children["postgres"]):
        await scene.start()
        await scene.until(RunStatus.DLQ_PENDING)
    await scene.until_record("pending")
    assert await scene.actions() == ["dead_lettered"]


async def test_record_is_written_after_postgres_crashed(scene: Scene) -> None:
    """Connections that broke are made anew."""
    scene.fail("terminal")
    await scene.start()
    await scene.until_record("pending")
    crashed = scene.stack.info.children["postgres"]
    with contextlib.suppress(ProcessLookupError):
        os.kill(crashed, signal.SIGKILL)
    await scene.start()
    await scene.until(RunStatus.DLQ_PENDING)

    async def restarted() -> bool:
        return scene.stack.info.children.get("postgres") not in {None, crashed}

    await eventually(restarted)
    await scene.until_record("pending")
    assert await scene.actions() == ["dead_lettered"]


async def test_worker_killed_between_exhaustion_and_record_loses_nothing(scene: Scene) -> None:
    """The next worker writes the record, once."""
    scene.fail("terminal")
    with stopped(scene.stack.info.children["postgres"]):
        await scene.start()
        await scene.until(RunStatus.DLQ_PENDING)
        await scene.worker.kill()
    await scene.worker.start()
    await scene.until_record("pending")
    assert await scene.actions() == ["dead_lettered"]


async def test_worker_killed_between_command_and_outcome_replays_once(scene: Scene) -> None:
    """The next worker takes the replay to its end; the record learns of it."""
    scene.fail("terminal")
    await scene.start()
    await scene.until_record("pending")
    scene.fail("transient")
    answer = await scene.redrive.dead_letters.replay(scene.letter, requested_by="ada", reason="mended")
    assert answer.accepted
    await scene.worker.kill()
    scene.fail(None)
    await scene.worker.start()
    await scene.until(RunStatus.SUCCESS)
    record = await scene.until_record("replayed")
    assert record["replay_count"] == 1
    assert await scene.actions() == ["dead_lettered", "replay_requested", "replay_outcome"]


async def test_command_given_while_postgres_is_away_is_carried_out_later(scene: Scene) -> None:
    """The signal waits in the queue's history."""
    scene.fail("terminal")
    await scene.start()
    await scene.until_record("pending")
    scene.fail(None)
    handle, *_ = await open_queues(scene.redrive._client, scene.letter.tenant, scene.task_queue)
    command = {"request_id": "later", "requested_by": "ada", "reason": "mended"}
    with stopped(scene.stack.info.children["postgres"]):
        await handle.signal("replay", command | {"run_id": scene.letter.run_id, "step": scene.letter.step})
    await scene.until(RunStatus.SUCCESS)
    await scene.until_record("replayed")
