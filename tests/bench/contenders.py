"""The two contenders: a worker process each on the same server, and a way to make one run from this process."""

import asyncio
import contextlib
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
from temporalio.client import Client

from redrive import Redrive
from redrive.connection import connect_temporal
from redrive.settings import Settings
from redrive.starter.stack.child import Program
from redrive.starter.stack.stack import Stack
from redrive.starter.stack.state import StackInfo
from redrive.starter.stack.supervisor import Supervisor
from redrive.starter.stack.workers import WORKER, worker_environment, worker_program
from tests.bench.models import Order
from tests.bench.modules import PIPELINES
from tests.bench.plain import PlainRun

ORDER = Order(number=7, customer="c-1")
REDRIVE, PLAIN = "redrive", "plain"


@dataclass(frozen=True)
class Contender:
    """One way to do the work: `run(steps)` starts a run of that many steps and waits until it has ended."""

    name: str
    worker: psutil.Process
    server: psutil.Process
    run: Callable[[int], Awaitable[object]]


@dataclass(frozen=True)
class Stage:
    """A stack with a worker for each contender, by name."""

    client: Client
    redrive: Redrive
    info: StackInfo
    folder: Path
    server: psutil.Process
    workers: Mapping[str, psutil.Process]


@contextlib.asynccontextmanager
async def contenders(plain_runner: str) -> AsyncIterator[list[Contender]]:
    """Bring up the two that make runs which succeed."""
    async with stage("tests.bench.modules", plain_runner) as on:
        runs = {REDRIVE: partial(_run_redrive, on.redrive), PLAIN: partial(_run_plain, on.client)}
        yield [Contender(name, on.workers[name], on.server, runs[name]) for name in (REDRIVE, PLAIN)]


@contextlib.asynccontextmanager
async def stage(modules: str, plain_runner: str = "sandbox") -> AsyncIterator[Stage]:
    """Bring up a stack with a worker for each contender; everything is stopped and removed at the end."""
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as directory:
        state = Path(directory)
        async with Stack(Settings(), state_dir=state, modules=[modules], workers=0) as stack:
            environment = with_bytecode(worker_environment(stack.info, state_dir=state, embedded_temporal=True), state)
            address = stack.info.temporal_address
            workers = Supervisor(state / "logs")
            try:
                await workers.start(
                    worker_program(REDRIVE, WORKER, environment, state / REDRIVE),
                    _plain_program(address, environment, state / PLAIN, plain_runner),
                )
                client = await connect_temporal(Settings(temporal_address=address))
                yield Stage(
                    client=client,
                    redrive=Redrive(client, task_queue=stack.info.task_queue),
                    info=stack.info,
                    folder=state,
                    server=psutil.Process(stack.info.children["temporal"]),
                    workers={name: psutil.Process(status.pid) for name, status in workers.statuses.items()},
                )
            finally:
                await workers.stop()


def with_bytecode(environment: Mapping[str, str], state: Path) -> dict[str, str]:
    """Let the workers keep compiled code, as installed ones do: the sandbox loads the workflow's file for each run."""
    kept = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(state / "bytecode")}


def _plain_program(address: str, environment: Mapping[str, str], ready_file: Path, runner: str) -> Program:
    return Program(
        name=PLAIN,
        title="the plain worker",
        command=[sys.executable, "-m", "tests.bench.plain_worker", address, PLAIN, str(ready_file), runner],
        environment=environment,
        directory=Path.cwd(),
        ready=partial(asyncio.to_thread, ready_file.exists),
    )


async def _run_redrive(redrive: Redrive, steps: int) -> object:
    started = await redrive.start(PIPELINES[steps], ORDER)
    return await redrive.result(started.run_id)


async def _run_plain(client: Client, steps: int) -> object:
    return await client.execute_workflow(
        PlainRun.run, args=[ORDER, steps], id=f"plain-{uuid.uuid4().hex}", task_queue=PLAIN
    )
