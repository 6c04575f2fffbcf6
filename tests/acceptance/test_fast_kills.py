"""Fast steps whose worker is killed, frozen, or dies of them: effects repeat with the same key, nothing is lost."""

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from redrive import Category, Redrive, Registry, RunStatus
from redrive.connection import database_url
from redrive.contracts import DEFAULT_TENANT
from redrive.dead_letters import LetterId
from redrive.keys import run_id_for_key, step_key
from redrive.postgres.database import open_pool
from redrive.processes.temporal import workflow_runner
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from redrive.store.runs import Execution, begin_step, get_run
from redrive.workflows.module_run import ModuleRun
from tests.acceptance.live import Sink
from tests.acceptance.test_zombies import PATIENCE, Cashier
from tests.conftest import eventually
from tests.integration.dead_letters.processes import WorkerProcess
from tests.integration.runs.samples import settled


@pytest.fixture
async def sink() -> AsyncIterator[Sink]:
    """The service in which effects are counted."""
    async with Sink(delay=0.01).serving() as sink:
        yield sink


@pytest.fixture
async def cashier() -> AsyncIterator[Cashier]:
    """The service that answers when it is told to."""
    async with Cashier().serving() as cashier:
        yield cashier


@pytest.fixture
async def workers(
    stack: StackInfo, settings: Settings, tmp_path: Path, sink: Sink, cashier: Cashier
) -> AsyncIterator[tuple[WorkerProcess, WorkerProcess]]:
    """Two workers of one task queue. None is started yet; both are ended, frozen or not."""
    environment = {
        "REDRIVE_MODULES": "tests.acceptance.fast_effects,tests.acceptance.stubborn",
        "REDRIVE_TASK_QUEUE": settings.task_queue,
        "REDRIVE_SERVICES": json.dumps({"sink": {"base_url": sink.address}, "cashier": {"base_url": cashier.address}}),
        # A slow machine may keep it frozen for longer than a module may block.
        "REDRIVE_STALL_LIMIT": "PT10M",
    }
    both = tuple(WorkerProcess(stack, tmp_path / name, **environment) for name in ("one", "other"))
    yield both[0], both[1]
    for worker in both:
        await worker.kill()


@pytest.fixture
def redrive(temporal: Client, settings: Settings) -> Redrive:
    """A caller without the modules' code."""
    return Redrive(temporal, task_queue=settings.task_queue, registry=Registry())


async def _until_dead(worker: WorkerProcess) -> None:
    await eventually(lambda: asyncio.sleep(0, worker.is_dead), within=PATIENCE)


async def _until_logged(worker: WorkerProcess, text: str) -> None:
    await eventually(lambda: asyncio.sleep(0, text in worker.log.read_text()), within=PATIENCE)


async def _replays(temporal: Client, run_id: str) -> bool:
    """Tell whether the workflow code takes the same decisions again."""
    replayer = Replayer(
        workflows=[ModuleRun], workflow_runner=workflow_runner(), data_converter=pydantic_data_converter
    )
    history = await temporal.get_workflow_handle(run_id).fetch_history()
    return (await replayer.replay_workflow(history)).replay_failure is None


def _assert_repeated(sink: Sink, place: str, run_id: str) -> None:
    """Check which effects of `killed-between` were repeated, and that each had its step's key."""
    effects = {step: sink.keys[f"{place}/{step}"] for step in ("before", "stored", "after")}
    assert {step: len(keys) for step, keys in effects.items()} == {"before": 2, "stored": 1, "after": 1}
    assert {step: set(keys) for step, keys in effects.items()} == {
        step: {f"{run_id}:{step}:effect"} for step in effects
    }


async def test_a_worker_killed_between_two_fast_steps(
    *, workers: tuple[WorkerProcess, WorkerProcess], sink: Sink, redrive: Redrive, temporal: Client, tmp_path: Path
) -> None:
    """The steps since the last workflow task run again, with the same keys; a stored result answers instead."""
    one, other = workers
    await one.start()
    run_id = (await redrive.start("killed-between", {"number": 1, "killed": str(tmp_path / "killed")})).run_id
    await _until_dead(one)
    await other.start()
    result = await redrive.result(run_id)

    assert result.status is RunStatus.SUCCESS
    _assert_repeated(sink, "/1", run_id)
    assert [step.attempt for step in result.steps] == [1, 1, 1]
    assert await _replays(temporal, run_id)


async def test_a_program_killed_with_its_own_worker(
    *, workers: tuple[WorkerProcess, WorkerProcess], sink: Sink, redrive: Redrive, temporal: Client, tmp_path: Path
) -> None:
    """It had the run's first workflow task with the start's answer; another worker takes it, with the same keys."""
    payload = json.dumps({"number": 3, "killed": str(tmp_path / "killed")})
    run_id = run_id_for_key(DEFAULT_TENANT, key := uuid.uuid4().hex)
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.acceptance.own_worker", "killed-between", key, payload),
        env=os.environ | workers[0].environment,
    )
    assert await program.wait() == -signal.SIGKILL
    await workers[1].start()
    result = await redrive.result(run_id)

    assert result.status is RunStatus.SUCCESS
    _assert_repeated(sink, "/3", run_id)
    assert await _replays(temporal, run_id)


async def test_a_step_that_kills_its_worker_becomes_a_dead_letter(
    *,
    workers: tuple[WorkerProcess, WorkerProcess],
    sink: Sink,
    redrive: Redrive,
    temporal: Client,
    settings: Settings,
    tmp_path: Path,
) -> None:
    """A workflow task is tried for ever; the step is not: after the first death, Temporal counts its attempts."""
    one, other = workers
    await one.start()
    run_id = (await redrive.start("lethal", {"number": 2, "killed": str(tmp_path / "killed")})).run_id
    await _until_dead(one)
    await other.start()
    await _until_dead(other)
    await one.start()
    view = await settled(redrive, run_id)

    assert view.status is RunStatus.DLQ_PENDING
    failure = view.steps[1].failure
    assert failure is not None
    assert (failure.category, [entry.attempt for entry in failure.attempts]) == (Category.TIMEOUT, [1])
    assert await _replays(temporal, run_id)
    assert set(sink.keys["/2/before"]) == {f"{run_id}:before:effect"}
    async with await open_pool(database_url(settings), max_size=1) as pool:
        row = await get_run(pool, DEFAULT_TENANT, run_id)
    assert row is None or row.status is not RunStatus.SUCCESS
    letter = LetterId(tenant=DEFAULT_TENANT, run_id=run_id, step="lethal")

    async def discarded() -> bool:
        return (await redrive.dead_letters.discard(letter, requested_by="ada", reason="lethal")).accepted

    await eventually(discarded)


async def test_a_frozen_worker_that_goes_on_cannot_overwrite_a_newer_result(
    workers: tuple[WorkerProcess, WorkerProcess], cashier: Cashier, redrive: Redrive, settings: Settings
) -> None:
    """Frozen past the workflow task's timeout, a zombie ends its fast step: the newer result stands, with one key."""
    frozen, other = workers
    await frozen.start()
    run_id = (await redrive.start("stubborn-fast", {})).run_id
    await cashier.until_asked(1)
    frozen.freeze()
    await other.start()
    await cashier.until_asked(2)
    cashier.answer(2)
    result = await redrive.result(run_id)
    frozen.thaw()
    # By its own clock and by Temporal's. Told later, it would end before it stores its result.
    await _until_logged(frozen, '"times_told": 2')
    cashier.answer(1)
    await _until_logged(frozen, '"event": "step.superseded"')

    assert result.output == {"receipt": 2}
    later = Execution(DEFAULT_TENANT, step_key(run_id, "pay-fast", "run"), run_id, "pay-fast", cycle=2, attempt=1)
    async with await open_pool(database_url(settings), max_size=1) as pool:
        assert (await begin_step(pool, later)).output == {"receipt": 2}
    assert cashier.keys == [step_key(run_id, "pay-fast", "charge")] * 2
